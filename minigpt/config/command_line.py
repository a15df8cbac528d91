"""The parts of a command line: groups, settings and options, and a sentence for every other argument.

Single settings never pass through Hydra's grammar: their text is read by the type schema.py gives them, so commas,
quotes and braces mean nothing special.
"""

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.config.commands import CLASSES
from minigpt.config.convert import Fault, checked_value, nearest, no_setting, settings, shown, value_from_text
from minigpt.config.schema import TrainConfig
from minigpt.config.sources import expand, is_begun
from minigpt.config.yaml_files import CONFIGS, find_groups, find_shipped_groups
from minigpt.redact import redact

WHOLE = {"data.mix", *(key for key, setting in settings(TrainConfig).items() if setting.literal)}  # -m: commas are text
MULTIRUN = ("-m", "--multirun")


@dataclass
class Request:
    """The parts of a command line."""

    command: str
    cls: type  # of the config
    choices: dict[str, str] = field(default_factory=dict)  # group -> choice
    values: dict[str, Any] = field(default_factory=dict)  # setting -> value
    chosen: set[str] = field(default_factory=set)  # settings that a typed group has, beside an experiment
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None  # --config-dir
    show: bool = False  # --cfg job
    help: str = ""  # "usual" settings, or "all"

    def refuse(self, sentence: str, *keys: str) -> None:
        """Note a fault of some settings, or of a group without a known file; "experiment" means all settings."""
        self.faults.append(Fault(keys, sentence))

    def refuse_what_is_certain(self, faults: list[Fault]) -> None:
        """Keep only faults that do not depend on a setting, group or file that was already refused."""
        refused = {key for fault in self.faults for key in fault.keys}

        def sources(key: str) -> set[str]:
            return {key} if key in self.values else {key, key.partition(".")[0], "experiment"}

        self.faults += [fault for fault in faults if all(refused.isdisjoint(sources(key)) for key in fault.keys)]

    def groups(self) -> dict[str, dict[str, Path]]:
        """Return the command's groups of files; none if configs/ has no file of the command's name."""
        has_files = (CONFIGS / f"{self.command}.yaml").is_file()
        find = find_groups if self.folder else find_shipped_groups
        return find(self.cls, self.folder) if has_files else {}


def read_arguments(request: Request, arguments: list[str]) -> None:
    """Read the words after a command's name."""
    known, groups, waiting = settings(request.cls), request.groups(), list(arguments)
    words, more = next((key for key, setting in known.items() if setting.words), None), list[str]()
    while waiting:
        argument = waiting.pop(0)
        name, equals, text = argument.partition("=")
        key = name.removeprefix("+").removeprefix("+")
        if name in ("--help", "-h"):
            asked = waiting.pop(0) if waiting[:1] == ["all"] else text
            request.help = "all" if "all" in (asked, request.help) else "usual"
        elif name in ("--cfg", "-c", "--config-dir", "-cd"):
            _read_option(request, name, text if equals else waiting.pop(0) if waiting else "")
        elif equals and key in groups:
            request.choices[key] = text
        elif equals and key in known:
            _read_setting(request, key, text)
        elif words and not name.startswith("-") and (not equals or os.sep in name or os.path.exists(argument)):
            if words in request.values and not isinstance(request.values[words], list):
                more.append(argument)
            else:
                _read_setting(request, words, argument)
        elif not equals or name.startswith(("-", "~")):
            follows = name.startswith("--") and not equals and waiting and "=" not in waiting[0]
            request.refuse(_not_a_setting(request, name, waiting.pop(0) if follows else text))
        else:
            request.refuse(_unknown(request, key), key)
    if words and more:
        begun = {key: request.values.get(key, []) for key in ("prompt", "text")}  # words of an unquoted text
        starts = {key: [value] if isinstance(value, str) else value for key, value in begun.items()}
        keys = [key for key in ("file", "versus", "prompt", "text") if key in known]
        typed = " or ".join(f"{key}={shlex.quote(' '.join([*starts.get(key, []), *more]))}" for key in keys)
        remedy = f"Type {typed}" if typed else 'Blanks need quotes: "two words"'
        request.refuse(f"{shown(' '.join(more))} is a second {words}. {remedy}.", words)
    for group, choice in list(request.choices.items()):
        _check_choice(request, group, choice)


def train_arguments(command: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a command that `train` takes. The command must have composed without a fault."""
    train, cls = CLASSES["train"], CLASSES[command]
    others = (settings(cls).keys() | find_groups(cls)) - settings(train).keys() - find_groups(train).keys()
    return [argument for argument in arguments if argument.partition("=")[0].lstrip("+") not in others]


def split_lists(arguments: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the arguments of `-m` that list nothing, and the values of each setting that lists some.

    Lists are `lr=1e-3,3e-3` and `seed=range(1,4)`.
    """
    shared: list[str] = []
    lists: dict[str, list[str]] = {}
    for argument in arguments:
        key, _, text = argument.lstrip("+").partition("=")
        plain = not key.startswith("-") and key not in WHOLE and text[:1] not in ("[", "{", "'", '"')
        texts = [value.strip() for value in text.split(",")] if plain else []
        if numbers := re.fullmatch(r"range\((-?\d+), *(-?\d+)\)", text):
            texts = [str(number) for number in range(int(numbers[1]), int(numbers[2]))]
        if numbers or (len(texts) > 1 and all(texts)):
            lists[key] = texts
        elif argument not in MULTIRUN:
            shared.append(argument)
    return shared, lists


def _read_option(request: Request, name: str, text: str) -> None:
    folder = Path(os.path.expanduser(text))
    if name in ("--cfg", "-c"):
        request.show = True
    elif not text or not folder.is_dir():
        request.refuse(f"--config-dir wants a folder with group folders in it, got {text!r}.")
    else:
        request.folder = folder.resolve()


def _read_setting(request: Request, key: str, text: str) -> None:
    setting = settings(request.cls)[key]
    if key == "data.source" and request.values.get(key, text) != text:  # the shell makes two of {a,b}
        both = redact(f"{request.values[key]},{text}")
        request.notes.append(f"data.source is given twice, and the last one counts. Both: data.source={both}.")
    if not setting.literal:
        request.values[key] = value_from_text(setting.kind, text)
        is_wrong = checked_value(setting.kind, request.values[key])[1]
        if request.command == "train" and is_wrong and split_lists([f"{key}={text}"])[1]:
            request.notes.append(f"To train once for each of {key}={text}, add -m.")
    else:
        request.values[key] = [*request.values.get(key, []), text] if setting.kind == list[str] else text


def _check_choice(request: Request, group: str, choice: str) -> None:
    """Refuse a choice without a file, and one whose file in the user's folder has the name of a file of configs/."""
    choices = request.groups()[group]
    if request.folder and choice in find_groups(request.cls)[group]:
        if (request.folder / group / f"{choice}.yaml").exists():
            request.refuse(f"{request.folder} has a file {group}/{choice}.yaml, as minigpt has. Rename it.", group)
    elif choice not in choices:
        del request.choices[group]
        meant = nearest(choice, choices)
        hint = f" Did you mean {group}={meant[0]}?" if meant else ""
        hint = f" Type data.source={redact(choice)}." if group == "data" and os.path.exists(choice) else hint
        request.refuse(f"No {group} {shown(choice)}.{hint} There are: {', '.join(choices)}.", group)


def _not_a_setting(request: Request, name: str, value: str) -> str:
    """Return the sentence for an argument that isn't key=value: `--max_steps 100`, a stray word, a path."""
    bare, known, groups = name.lstrip("-~").replace("-", "_"), settings(request.cls), request.groups()
    value = redact(value) if value and value.isprintable() else "VALUE"
    wrong = f"{shown(f'{name} {value}'.removesuffix(' VALUE'))} is not how a setting is written: key=value, no dashes."
    meant = [f"{group}={name}" for group, choices in groups.items() if name in choices]
    right = [bare] if bare in known or bare in groups else [key for key in known if key.rpartition(".")[2] == bare]
    if len(right) == 1:
        return f"{wrong} Type {right[0]}={value}"
    if "data.source" in known and (os.sep in name or os.path.exists(name)) and not name.startswith("-"):
        if is_begun(name):
            own = Path(expand(name), "command.txt")
            typed = own.read_text(errors="replace").strip() if own.is_file() else "the one that began it"
            return f"{wrong} It is a run; its own command continues it: {typed}"
        data = "experiment=text" if "experiment" in groups else "data=text"
        return f"{wrong} Type {data} data.source={shlex.quote(redact(name))}"
    return f"{wrong} " + (f"Did you mean {' or '.join(meant)}?" if meant else _unknown(request, bare))


def _unknown(request: Request, key: str) -> str:
    """Return the sentence for a setting that the command does not have."""
    known = [*settings(request.cls), *request.groups()]
    if inside := ", ".join(name for name in known if name.startswith(key + ".")):
        return f"'{key}' is a group of settings. Set one of: {inside}."
    for name, setting in settings(request.cls).items():
        if key.rpartition(".")[2] in setting.aka.split():  # its name in another framework
            return f"No setting '{key}'. Here it is {name}: {setting.meaning}."
    owner = next((command for command, cls in CLASSES.items() if key in settings(cls)), None)
    if owner and not any(name.rpartition(".")[2] == key.rpartition(".")[2] for name in known):
        return f"No setting '{key}' of the command {request.command}: it belongs to {owner}."
    return no_setting(key, known)
