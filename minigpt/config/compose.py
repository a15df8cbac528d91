"""From a command line to a checked, typed config.

The chosen YAML files are composed by Hydra (files.py). Single settings never pass through its grammar: their text is
read by the type schema.py gives them, so commas, quotes and braces mean nothing special. Every fault of the files
and the command line is reported at once, before torch is imported and before anything is written.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.config.check import find_faults, find_notes
from minigpt.config.commands import CLASSES
from minigpt.config.convert import (
    SHARES,
    Fault,
    fitted,
    flatten,
    nearest,
    no_setting,
    read,
    settings,
    shares_of,
    shown,
    value_from_text,
)
from minigpt.config.files import compose_files, config_folder, find_groups, inherited_settings, taken_names, to_yaml
from minigpt.config.help import help_page
from minigpt.config.schema import TrainerConfig
from minigpt.config.sources import is_begun, there
from minigpt.faults import UserFault
from minigpt.invocation import typed
from minigpt.launcher import launched
from minigpt.redact import redact

# The values of these are the user's own text and are taken unchanged: null, 123 and ${x} are text here.
LITERAL = {key for cls in CLASSES.values() for key, setting in settings(cls).items() if setting.literal}

NOT_EVALUATED = "${...} is not evaluated. Write the value itself."
OPTIONS = ("--config-dir", "-cd", "--cfg", "-c")  # options with a value


@dataclass
class Request:
    """What a command line asks for."""

    command: str
    cls: type  # of the config
    choices: dict[str, str] = field(default_factory=dict)  # group -> choice
    values: dict[str, Any] = field(default_factory=dict)  # setting -> value
    faults: list[Fault] = field(default_factory=list)
    folder: Path | None = None  # --config-dir
    show: bool = False  # --cfg job
    help: bool = False

    def refuse(self, sentence: str, *keys: str) -> None:
        """Note a fault of some settings, or of a group without a known file; "experiment" stands for all settings."""
        self.faults.append(Fault(keys, sentence))

    def refuse_what_is_certain(self, faults: list[Fault]) -> None:
        """Note those faults that hold whatever the settings and files that were refused before should have said."""
        refused = {key for fault in self.faults for key in fault.keys}

        def sources(key: str) -> set[str]:
            return {key} if key in self.values else {key, key.partition(".")[0], "experiment"}

        self.faults += [fault for fault in faults if all(refused.isdisjoint(sources(key)) for key in fault.keys)]

    def groups(self) -> dict[str, dict[str, Path]]:
        """Return the command's groups of files; none if configs/ has no file of the command's name."""
        ours = config_folder()
        folders = [ours, self.folder] if self.folder else [ours]
        return find_groups(self.cls, *folders) if (ours / f"{self.command}.yaml").is_file() else {}


def compose(command: str, arguments: list[str], cls: type | None = None) -> Any:
    """Return the config that a command line describes.

    Args:
        command: one of CLASSES.
        arguments: the command line after the command's name.
        cls: a config class in place of the command's own, such as one with more settings.

    Raises:
        UserFault: with every fault of the command line, the files and the rules (check.py).
        SystemExit: code 0, after --help or --cfg job has printed.
    """
    request = Request(command, cls or CLASSES[command])
    _read_arguments(request, arguments)
    if request.help:
        print(help_page(command, request.cls, request.groups()))
        raise SystemExit(0)
    config: Any
    mapping = _read_files(request)
    config, wrong = read(request.cls, _inherit(request, mapping) | request.values)
    rank = _take_from_launcher(config.trainer, request.values) if command in ("train", "benchmark") else 0
    request.refuse_what_is_certain(wrong)
    request.refuse_what_is_certain(find_faults(config))
    for note in [] if rank else _overruled(request, mapping):  # before the faults: it may be the reason for them
        print(f"Note: {note}", file=sys.stderr)
    if request.faults:
        raise UserFault(*dict.fromkeys(fault.sentence for fault in request.faults))
    if request.show:
        print(redact(to_yaml(config)), end="")
        raise SystemExit(0)
    for note in [] if rank else find_notes(config):
        print(f"Note: {note}", file=sys.stderr)
    return config


def _take_from_launcher(trainer: TrainerConfig, typed: Mapping[str, Any]) -> int:
    """Take hosts and devices from torchrun or srun if a strategy for several was chosen and they were left out.

    Returns:
        The rank of this process.
    """
    found = launched(trainer.strategy, trainer.nodes, trainer.devices)
    if found is None or found.world_size == 1 or trainer.strategy == "auto":
        return 0
    if "trainer.devices" not in typed and trainer.devices == 1:
        trainer.devices = found.local_size
    if "trainer.nodes" not in typed and trainer.nodes == 1:
        trainer.nodes = found.nodes
    return found.rank


def train_arguments(command: str, arguments: list[str]) -> list[str]:
    """Return those arguments of a command that are for `train`. The command must have composed without a fault."""
    train, cls = CLASSES["train"], CLASSES[command]
    own = (settings(cls).keys() | find_groups(cls)) - settings(train).keys() - find_groups(train).keys()
    return [argument for argument in arguments if argument.partition("=")[0].lstrip("+") not in own]


# --- the command line ---


def _read_arguments(request: Request, arguments: list[str]) -> None:
    known, groups = settings(request.cls), request.groups()
    words = next((key for key, setting in known.items() if setting.words), None)
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, text = argument.partition("=")
        key = name.removeprefix("+").removeprefix("+")
        if argument in ("--help", "-h"):
            request.help = True
        elif name in OPTIONS:
            _read_option(request, name, text if equals else rest.pop(0) if rest else "")
        elif argument in ("-m", "--multirun"):
            request.refuse(f"{argument} is for trainings alone, not with --cfg. {_one_value()}")
        elif equals and key in groups:
            request.choices[key] = text
        elif equals and key in known:
            _read_setting(request, key, text)
        elif words and not name.startswith("-") and (not equals or os.sep in name or os.path.exists(argument)):
            request.values.setdefault(words, []).append(argument)
        elif not equals or name.startswith(("-", "~")):
            follows = rest.pop(0) if rest and name.startswith("-") and not equals and "=" not in rest[0] else text
            request.refuse(_not_a_setting(request, name, follows))
        else:
            request.refuse(_unknown(request, key), key)


def _read_option(request: Request, name: str, text: str) -> None:
    folder = Path(os.path.expanduser(text))
    if name in ("--cfg", "-c"):
        request.show = True
        if text != "job":
            request.refuse(f"--cfg prints the composed configuration. Type --cfg job, got {text!r}.")
    elif not folder.is_dir() or not text or "${" in text:
        request.refuse(f"--config-dir wants a folder with group folders in it, got {text!r}.")
    else:
        request.folder = folder.resolve()


def _read_setting(request: Request, key: str, text: str) -> None:
    setting = settings(request.cls)[key]
    kind = setting.kind
    if kind == SHARES:  # an unquoted {a:0.7,b:0.3} comes in several words from the shell
        found, before = value_from_text(kind, text), request.values.get(key, {})
        if isinstance(found, dict) and isinstance(before, dict):
            names, found = [*before, *(name for name, _ in shares_of(text))], before | found
            for name in sorted({name for name in names if names.count(name) > 1}):
                request.refuse(f"{key} names {shown(name)} twice. Give each source one share.", key)
        request.values[key] = found
    elif setting.literal:
        if key == "adapter" and kind != list[str] and key in request.values:  # minigpt serve takes several
            both = f"adapter={shown(request.values[key])} and adapter={shown(text)}"
            request.refuse(f"{both}: {request.command} takes one. minigpt serve lists a model for each.", key)
        request.values[key] = [*request.values.get(key, []), text] if kind == list[str] else text
    elif "${" in text and kind != list[str]:
        request.refuse(f"{key}={shown(text)}: {NOT_EVALUATED}", key)
    else:
        request.values[key] = value_from_text(kind, text)
        first = value_from_text(kind, text.partition(",")[0])
        if "," in text and fitted(kind, request.values[key])[1] and not fitted(kind, first)[1]:
            request.refuse(f"{key} takes one value, got {shown(text)}. {_one_value()}", key)


def _one_value() -> str:
    return f"Several are trained one after the other with -m: {typed('train')} -m key=a,b"


def _not_a_setting(request: Request, name: str, value: str) -> str:
    """Return the sentence for an argument that isn't key=value: `--max_steps 100`, a stray word."""
    bare = name.lstrip("-~").replace("-", "_")
    groups = request.groups()
    meant = [f"{group}={name}" for group, choices in groups.items() if name in choices]
    near = nearest(bare, [*settings(request.cls), *groups]) if bare and not meant else []
    meant += [f"{each}={redact(value) if value.isprintable() and value else 'VALUE'}" for each in near]
    hint = f"Did you mean {' or '.join(meant)}?" if meant else f"See {typed(request.command)} --help."
    return f"{shown(f'{name} {value}'.rstrip())} is not how a setting is written: key=value, no dashes. {hint}"


def _unknown(request: Request, key: str) -> str:
    """Return the sentence for a setting that the command does not have."""
    known = [*settings(request.cls), *request.groups()]
    inside = ", ".join(each for each in known if each.startswith(key + "."))
    if inside and key:
        return f"'{key}' is a group of settings. Set one of: {inside}."
    for own, setting in settings(request.cls).items():
        if key in setting.aka.split():
            return f"No setting '{key}'. Here it is {own}: {setting.meaning}."
    owner = next((command for command, cls in CLASSES.items() if key in settings(cls)), None)
    if owner and not any(each.rpartition(".")[2] == key.rpartition(".")[2] for each in known):
        return f"No setting '{key}' of the command {request.command}: it belongs to {owner}."
    return no_setting(key, known)


# --- files ---


def _read_files(request: Request) -> dict[str, Any]:
    """Return the settings in all chosen files, flat."""
    groups = request.groups()
    if not groups:
        return {}
    for group, choice in list(request.choices.items()):
        if choice not in groups[group]:
            del request.choices[group]
            meant = [each for each in nearest(choice, groups[group]) if each]
            hint = f" Did you mean {group}={meant[0]}?" if meant else ""
            hint = f" {_one_value()}" if "," in choice else hint
            request.refuse(f"No {group} {shown(choice)}.{hint} There are: {', '.join(groups[group])}.", group)
    mapping: dict[str, Any] = {}
    unfit = taken_names(request.cls, request.folder) if request.folder else []
    try:
        mapping = {} if unfit else compose_files(request.command, request.choices, request.folder)
    except ValueError as error:
        unfit = [f"The config files don't compose: {' '.join(redact(str(error)).split())[:600]}"]
    for sentence in unfit:
        request.refuse(sentence, "experiment")
    if "experiment" in request.choices:
        chosen = request.choices["experiment"]
        if isinstance(mapping.get("experiment"), Mapping):  # its settings: Hydra takes them for those of its group
            first = "must begin with the line # @package _global_."
            request.refuse(f"experiment={shown(chosen)}: its file, or one in its defaults, {first}", "experiment")
            mapping["experiment"] = chosen
        mapping.setdefault("experiment", chosen)
    flat = flatten(mapping, settings(request.cls))
    for key, value in flat.items():
        if isinstance(value, str) and "${" in value:
            request.refuse(f"A config file says {key}: {redact(value)}, but {NOT_EVALUATED}", key)
    return flat


def _overruled(request: Request, mapping: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each group typed beside an experiment whose file replaces settings of that group."""
    chosen = {group: choice for group, choice in request.choices.items() if group != "experiment"}
    unread = any("experiment" in fault.keys for fault in request.faults)
    if not chosen or "experiment" not in request.choices or unread:
        return []
    known, notes = settings(request.cls), []
    try:
        alone = flatten(compose_files(request.command, chosen, request.folder), known)
    except ValueError:  # a file that changed since it was read
        return []
    for group, choice in chosen.items():
        untyped = [
            key for key in mapping if key.startswith(group + ".") and key in known.keys() - request.values.keys()
        ]
        own = {key: alone.get(key, known[key].default) for key in untyped}
        changes = [f"{key}={shown(mapping[key])} (not {shown(own[key])})" for key in own if mapping[key] != own[key]]
        if changes:
            replaced = f"experiment={request.choices['experiment']} replaces these settings of {group}={choice}"
            notes.append(f"{replaced}: {', '.join(changes)}. Type a setting to choose its value yourself.")
    return notes


def _inherit(request: Request, mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the architecture of `init.from`. One on the command line must be the same.

    If `init.from` is gone, a run that continues has the same architecture.
    """
    given = mapping | request.values
    source, run, origin = given.get("init.from"), given.get("run.dir"), "init.from"
    if isinstance(source, str) and isinstance(run, str) and not there(source) and is_begun(run):
        source, origin = run, "run.dir"
    theirs = inherited_settings(request.cls, source) if isinstance(source, str) and source else {}
    typed_keys = {key for key in given if key in request.values or key.partition(".")[0] in request.choices}
    for key in theirs.keys() & typed_keys - {"model.block_size"}:  # rotary positions may grow
        typed_value = fitted(settings(request.cls)[key].kind, given[key])[0]
        if resolved(key, typed_value, theirs) != resolved(key, theirs[key], theirs):
            wanted = f"{key}={shown(theirs[key])}. Leave it out: it is taken from there."
            wrong = f"{key}={shown(given[key])} does not fit {origin}={shown(source)}, whose weights have"
            request.refuse(f"{wrong} {wanted}", key)
    taken = {key: value for key, value in theirs.items() if key not in typed_keys}
    changes = [f"{key}={shown(value)}" for key, value in taken.items() if given.get(key, value) != value]
    if changes:
        print(f"Note: {origin}={shown(source)} brings {', '.join(changes)}.", file=sys.stderr)
    return mapping | taken


def resolved(key: str, value: Any, model: dict[str, Any]) -> Any:
    """Return what a value of the architecture stands for: the choice that a word means, the size that 0 means."""
    width, heads = model.get("model.n_embd", 0), model.get("model.n_head", 1)
    swiglu = model.get("model.activation") == "swiglu"
    sizes = {
        "model.n_kv_head": heads,
        "model.head_dim": width // max(heads, 1),
        "model.n_hidden": -(-8 * width // 96) * 32 if swiglu else 4 * width,  # as minigpt/model/gpt.py has it
    }
    words: dict[str, dict[Any, str]] = {
        "model.bias": {True: "all", False: "none"},
        "model.qk_norm": {"auto": "layernorm" if model.get("model.attention") == "rotary" else "none"},
    }
    return (value or sizes[key]) if key in sizes else words.get(key, {}).get(value, value)
