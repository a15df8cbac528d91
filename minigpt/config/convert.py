"""Between plain dictionaries and the typed configs of schema.py. Standard library only.

Reading is strict and collects every fault. The outside spelling of a setting (`init.from`) is used in
dictionaries, files and sentences; its Python name (`init.source`) only in code.
"""

import copy
import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from minigpt.config.schema import REMOVED, Setting
from minigpt.faults import UserFault

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing wrong: the outside dotted names it touches and the sentence for the person."""

    keys: tuple[str, ...]
    sentence: str


@functools.cache
def settings(cls: type, prefix: str = "") -> dict[str, Setting]:
    """Every setting of a config class, in order: dotted name as users type it -> all that is known about it."""
    found: dict[str, Setting] = {}
    for name, (field, kind) in _fields(cls).items():
        if dataclasses.is_dataclass(kind):
            found |= settings(typing.cast(type, kind), f"{prefix}{name}.")
        else:
            about = field.metadata.get("setting", Setting())
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            found[prefix + name] = dataclasses.replace(about, key=prefix + name, kind=kind, default=default)
    return found


@functools.cache
def _fields(cls: type) -> dict[str, tuple[dataclasses.Field, Any]]:
    """The fields of a config class and their types, by the names that users type."""
    kinds = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    return {each.metadata.get("setting", Setting()).key or each.name: (each, kinds[each.name]) for each in fields}


def sections(cls: type) -> list[str]:
    """The names that hold settings of their own: model, data, trainer ..."""
    return list(dict.fromkeys(key.rpartition(".")[0] for key in settings(cls) if "." in key))


def to_dict(config: Any) -> dict[str, Any]:
    """The config as nested plain dictionaries in the users' spelling, ready for JSON."""
    plain: dict[str, Any] = {}
    for name, (field, _) in _fields(config.__class__).items():
        value = getattr(config, field.name)
        plain[name] = to_dict(value) if dataclasses.is_dataclass(value) else copy.copy(value)
    return plain


def values(config: Any, prefix: str = "") -> dict[str, Any]:
    """The value of every setting of a config, by its dotted name."""
    flat: dict[str, Any] = {}
    for name, (field, _) in _fields(config.__class__).items():
        value = getattr(config, field.name)
        flat |= values(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else {prefix + name: value}
    return flat


def flatten(mapping: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one: {"model": {"bias": True}} -> {"model.bias": True}. An empty one is a value."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, name + ".") if isinstance(value, Mapping) and value else {name: value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested dictionaries: {"model.bias": True} -> {"model": {"bias": True}}."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return nested


def from_dict(cls: type[Config], mapping: Mapping[str, Any]) -> Config:
    """The typed config this mapping describes; settings it doesn't mention keep their defaults.

    Raises:
        UserFault: with every unknown setting (and the nearest right one) and every wrong type at once.
    """
    config, faults = read(cls, mapping)
    if faults:
        raise UserFault(*(fault.sentence for fault in faults))
    return config


def read(cls: type[Config], mapping: Any) -> tuple[Config, list[Fault]]:
    """Like from_dict, but returns the faults; a faulty setting keeps its default."""
    faults: list[Fault] = []
    if not isinstance(mapping, Mapping):
        faults.append(Fault((), f"A config must be a mapping of names to values, got {shown(mapping)}."))
        mapping = {}
    config = _read_section(cls, mapping, "", list(settings(typing.cast(type, cls))), faults)
    return config, faults


def _read_section(cls: Any, mapping: Mapping, prefix: str, known: list[str], faults: list[Fault]) -> Any:
    fields = _fields(cls)
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if key not in fields:
            unknown = list(flatten({name: value})) or [name]
            faults.extend(Fault((each,), no_setting(each, known)) for each in unknown)
            continue
        field, kind = fields[key]
        if not dataclasses.is_dataclass(kind):
            value, wanted = fitted(kind, value)
            if wanted:
                faults.append(Fault((name,), f"{name} must be {wanted}, got {shown(mapping[key])}."))
            else:
                found[field.name] = value
        elif isinstance(value, Mapping):
            found[field.name] = _read_section(kind, value, name + ".", known, faults)
        else:
            inside = ", ".join(each for each in known if each.startswith(name + "."))
            faults.append(Fault((name,), f"{name} is a group of settings ({inside}), got {shown(value)}."))
    return cls(**found)


def fitted(kind: Any, value: Any) -> tuple[Any, str]:
    """The value as this type wants it and "", or the value and what was wanted in words."""
    optional = typing.get_origin(kind) in (Union, types.UnionType)
    if optional:
        if value is None:
            return None, ""
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is Literal:
        value, wanted = _fitted_word(typing.get_args(kind), value)
    elif kind is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
        value, wanted = (
            (float(value), "") if good else (value, "a finite number" if isinstance(value, float) else "a number")
        )
    elif kind is int:
        good = isinstance(value, int) and not isinstance(value, bool)
        wanted = "" if good else "a whole number" + _whole_hint(value)
    elif kind is bool:
        wanted = "" if isinstance(value, bool) else "true or false"
    elif kind is str:
        wanted = "" if isinstance(value, str) else "text"
    elif typing.get_origin(kind) is dict:
        wanted = "" if isinstance(value, Mapping) else 'a JSON object like {"seed": {"choices": [1, 2]}}'
    else:
        assert kind == list[str], f"schema.py uses a type that convert.py doesn't know: {kind}"
        good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        value, wanted = (list(value), "") if good else (value, 'a JSON list of strings like ["END", "\\n\\n"]')
    return value, wanted + (" or null" if wanted and optional else "")


def _fitted_word(words: tuple[str, ...], value: Any) -> tuple[Any, str]:
    if "on" in words and (value is True or value == "true"):  # YAML 1.1 reads a bare `on` as true
        return "on", ""
    if "off" in words and (value is False or value == "false"):
        return "off", ""
    if isinstance(value, str) and value in words:
        return value, ""
    close = difflib.get_close_matches(str(value).lower(), words, n=1, cutoff=0.6)
    return value, "one of " + ", ".join(words) + (f" (did you mean {close[0]}?)" if close and len(words) > 1 else "")


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of a float
        return False


def _whole_hint(value: Any) -> str:
    """For 1e6: the spelling we take."""
    try:
        number = float(value)
        return f" (write {int(number)})" if number.is_integer() and 1 <= abs(number) < 1e15 else ""
    except (TypeError, ValueError, OverflowError):
        return ""


def misfit(cls: type, mapping: Mapping[str, Any]) -> str:
    """The first value in a mapping that a dataclass's field of that name can't hold, as `name=value`; "" if none.

    Numbers must be finite and not negative. For what programs write: there are no suggestions here.
    """
    for name, kind in typing.get_type_hints(cls).items():
        if name in mapping and not _can_hold(kind, mapping[name]):
            return f"{name}={shown(mapping[name])}"
    return ""


def _can_hold(kind: Any, value: Any) -> bool:
    if typing.get_origin(kind) in (Union, types.UnionType):
        return any(_can_hold(part, value) for part in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(_can_hold(typing.get_args(kind)[0], each) for each in value)
    if kind is float:
        return type(value) in (int, float) and _finite(value) and value >= 0
    return type(value) is kind and (kind is not int or value >= 0)


def value_from_text(kind: Any, text: str) -> Any:
    """The value that text typed at a terminal stands for in a setting of this type.

    Text that is no such value is returned as it is, for `fitted` to refuse.
    """
    parts = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in parts and text.lower() in ("null", "none"):
        return None
    try:
        if int in parts:
            return int(text) if text.isascii() and not text[:1].isspace() else text
        if float in parts:
            return float(text)
        if bool in parts:
            return {"true": True, "false": False}.get(text.lower(), text)
        if list[str] in parts or any(typing.get_origin(part) is dict for part in parts):
            return json.loads(text)
    except (ValueError, RecursionError):
        pass
    return text


def shown(value: Any) -> str:
    """A value as a sentence quotes it: short, on one line."""
    text = {True: "true", False: "false", None: "null"}.get(value) if isinstance(value, bool | None) else None
    text = text or (repr(value) if not isinstance(value, Mapping) else "a group of settings")
    return text if len(text) <= 80 else text[:77] + "..."


def no_setting(key: str, known: Iterable[str]) -> str:
    """The sentence for an unknown setting, with the nearest right ones or why it was removed."""
    if key in REMOVED:
        return f"{key} is no setting any more: {REMOVED[key]}. Leave it out."
    meant = nearest(key, known)
    hint = f" Did you mean {' or '.join(repr(each) for each in meant)}?" if meant else ""
    return f"No setting {shown(key)}.{hint}"


def nearest(key: str, known: Iterable[str]) -> list[str]:
    """The settings most likely meant: usually one, several if only the section is missing, none if nothing is near."""
    known = list(known)
    section, _, last = key.rpartition(".")
    same_last = [each for each in known if each.rpartition(".")[2] == last]
    if not section and same_last:
        return same_last[:4]

    def likeness(each: str) -> float:
        whole = _ratio(key, each)
        return whole if section else max(whole, 0.85 * _ratio(key, each.rpartition(".")[2]))

    best = max(known, key=likeness, default="")
    if same_last and likeness(best) < 0.85:
        best = max(same_last, key=likeness)
        return [best]
    near = likeness(best) >= 0.6 and _ratio(last, best.rpartition(".")[2]) >= 0.5  # a shared section alone says little
    return [best] if near else []


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower(), autojunk=False).ratio()
