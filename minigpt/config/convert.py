"""Conversion between plain dictionaries and the typed configs of schema.py. Standard library only.

Reading is strict and collects every fault. Dictionaries, files and sentences name a setting as users type it
(`init.from`); its Python name (`init.source`) is used only in code.
"""

import contextlib
import copy
import dataclasses
import difflib
import functools
import json
import re
import sys
import types
import typing
from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from minigpt.config.schema import RETIRED
from minigpt.config.setting import Setting
from minigpt.redact import redact

Config = TypeVar("Config")
SHARES = dict[str, float]  # the type of a setting that holds names with shares
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One mistake: the settings that it concerns, and a sentence for the user."""

    keys: tuple[str, ...]
    sentence: str


@functools.cache
def settings(cls: type, prefix: str = "", way: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return every setting of a config class, in order: dotted name as users type it -> its Setting."""
    known: dict[str, Setting] = {}
    kinds = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        about, kind, path = field.metadata.get("setting", Setting()), kinds[field.name], (*way, field.name)
        key = prefix + (about.key or field.name)
        if dataclasses.is_dataclass(kind):
            known |= settings(typing.cast(type, kind), f"{key}.", path)
        elif "setting" in field.metadata:
            literal = about.literal or about.folder or about.file or about.model
            known[key] = dataclasses.replace(about, key=key, path=path, kind=kind, literal=literal)
    return known


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as nested plain dictionaries, ready for JSON."""
    plain: dict[str, Any] = {}
    for key, value in values(config).items():
        *way, last = key.split(".")
        functools.reduce(lambda section, name: section.setdefault(name, {}), way, plain)[last] = value
    return plain


def values(config: Any) -> dict[str, Any]:
    """Return the value of every setting of a config, by its dotted name."""
    known = settings(config.__class__)
    return {key: copy.copy(functools.reduce(getattr, setting.path, config)) for key, setting in known.items()}


def assign(config: Any, key: str, value: Any) -> None:
    """Set one setting of a config, by its dotted name."""
    *way, last = settings(config.__class__)[key].path
    setattr(functools.reduce(getattr, way, config), last, value)


def flatten(mapping: Mapping[Any, Any], whole: Container[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one: {"model": {"bias": True}} -> {"model.bias": True}.

    An empty dictionary is a value, and so are the dictionaries of the names in `whole`.
    """
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        is_section = isinstance(value, Mapping) and value and name not in whole
        flat |= flatten(value, whole, name + ".") if is_section else {name: value}
    return flat


def read(cls: type[Config], mapping: Any) -> tuple[Config, list[Fault]]:
    """Return the typed config that a mapping describes, and its faults: unknown settings and wrong types.

    Settings that are not mentioned, or faulty, keep their defaults.
    """
    config, known = cls(), settings(typing.cast(type, cls))
    if not isinstance(mapping, Mapping):
        return config, [Fault((), f"A config must be a mapping of names to values, got {shown(mapping)}.")]
    faults: list[Fault] = []
    for key, value in flatten(mapping, known).items():
        if key in known:
            checked, wanted = checked_value(known[key].kind, value)
            if wanted:
                faults.append(Fault((key,), f"{key} must be {wanted}, got {shown(checked)}."))
            else:
                assign(config, key, checked)
        elif not (inside := ", ".join(name for name in known if name.startswith(f"{key}."))):
            faults.append(Fault((key,), no_setting(key, known)))
        elif value != {}:
            faults.append(Fault((key,), f"{key} is a group of settings ({inside}), got {shown(value)}."))
    return config, faults


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union: int and NoneType for `int | None`."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def in_words(kind: Any) -> str:
    """Return a type in words for users."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    words |= {SHARES: "sources with their shares like texts/:0.7,more.jsonl:0.3"}
    words |= {dict: 'a JSON object like {"seed": {"choices": [1, 2]}}'}
    words |= {list: 'a text, or a JSON list in quotes like \'["END", "\\n\\n"]\''}
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(as_typed(word) for word in typing.get_args(kind))
    named = kind if kind in words else typing.get_origin(kind)
    return words[named] if named in words else " or ".join(in_words(part) for part in union_members(kind))


def checked_value(kind: Any, value: Any) -> tuple[Any, str]:
    """Return the converted value and "", or the value and a description of the type that was wanted."""
    part, *null = union_members(kind)
    if int in null:  # words or a number
        checked, wanted = (value, "") if type(value) is int else checked_value(part, value)
        return checked, wanted and f"{wanted} or a whole number"
    wanted = in_words(part)
    if value is None and null:
        return None, ""
    if typing.get_origin(part) is Literal:
        words = typing.get_args(part)
        if "off" in words:  # YAML 1.1 reads a bare `off` as false
            value = {"True": "on", "true": "on", "False": "off", "false": "off"}.get(str(value), value)
        good = isinstance(value, str | bool) and value in words
        texts = [] if good else [word for word in words if isinstance(word, str)]
        close = difflib.get_close_matches(str(value).lower().replace("gpu", "cuda"), texts, n=1)
        wanted += f" (did you mean {close[0]}?)" if close and len(words) > 1 else ""
    elif part is float:
        good = type(value) in (int, float) and abs(value) <= sys.float_info.max  # of a float, even for an int
        value, wanted = (float(value), "") if good else (value, "a finite number" if type(value) is float else wanted)
    elif part is int:
        good = type(value) is int
    elif typing.get_origin(part) is list:
        good = isinstance(value, list) and not any(checked_value(typing.get_args(part)[0], item)[1] for item in value)
    elif part == SHARES:
        good = isinstance(value, Mapping) and not any(checked_value(float, share)[1] for share in value.values())
        value = {str(name): float(share) for name, share in value.items()} if good else value
    else:
        good = isinstance(value, Mapping) if typing.get_origin(part) is dict else type(value) is part
    return value, "" if good else wanted + (" or null" if null else "")


def value_from_text(kind: Any, text: str) -> Any:
    """Convert text typed at a terminal to a value of this type.

    Text that can't be converted is returned unchanged, and `checked_value` refuses it.
    """
    part, *null = union_members(kind)
    if type(None) in null and text.lower() in ("null", "none"):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        if int in (part, *null):
            return int(text) if text.isascii() and not text[:1].isspace() else text
        if part is float:
            return float(text)
        if part is bool or (typing.get_origin(part) is Literal and True in typing.get_args(part)):
            return {"true": True, "false": False}.get(text.lower(), text)
        if part == SHARES:
            pairs = [pair.rpartition(":") for pair in text.strip(" {}").split(",")]  # a:0.7,b:0.3, in braces or not
            return {name.strip(): float(share) for name, _, share in pairs}
        if typing.get_origin(part) is list and text[:1] != "[":
            return [text.replace("\\n", "\n")]  # as one types it
        if typing.get_origin(part) in (list, dict):
            return json.loads(text)
    return text


def seconds_of(text: str) -> float | None:
    """Return a time as people type it (90s, 20min, 1h30m, 8 hours) in seconds; None for any other text."""
    text, part = text.strip().lower(), r"(\d+(?:\.\d+)?) ?(s|m|h|d)(?:ecs?|econds?|ins?|inutes?|ours?|rs?|ays?)? ?"
    if not re.fullmatch(f"(?:{part})+", text):
        return None
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(part, text))


def as_typed(value: Any) -> str:
    """Return a value as it is typed on a command line."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """Return a value as a sentence quotes it: short, on one line, without a password in it."""
    if value is None or isinstance(value, bool):
        return as_typed(value)
    text = "a group of settings" if isinstance(value, Mapping) else redact(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def no_setting(key: str, known: Iterable[str]) -> str:
    """Return the message for an unknown setting: its replacement if it is retired, else the closest names."""
    if key in RETIRED:
        return f"{key} is retired: {RETIRED[key]}."
    meant = nearest(key, known)
    hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    return f"No setting {shown(key)}.{hint}"


def nearest(key: str, known: Iterable[str]) -> list[str]:
    """Return the settings most likely meant: usually one, several if only the section is missing, perhaps none."""
    key, whole = key.lower(), list(known)
    named: dict[str, list[str]] = {}  # by the last part of the name
    for name in whole:
        named.setdefault(name.rpartition(".")[2], []).append(name)
    section, _, last = key.rpartition(".")
    if last in named:
        return difflib.get_close_matches(key, named[last], n=1, cutoff=0) if section else named[last][:4]
    near = difflib.get_close_matches(key, whole, n=1, cutoff=0.75)
    near_last = difflib.get_close_matches(key, named, n=1, cutoff=0.65)
    return near or [name for close in near_last for name in named[close][:4]]
