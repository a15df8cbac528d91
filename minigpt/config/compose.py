"""From the command line to a checked, typed config. The only place in the package that imports Hydra.

Hydra composes the YAML files that the group choices name. Single settings never pass through its grammar: their
text is read by the type schema.py gives them, so commas, quotes and braces mean nothing special. No resolver is
ever evaluated. Every fault of the files and the command line is reported at once, before torch is imported
and before anything is written.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import hydra
import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import minigpt
from minigpt.config.check import find_faults, find_notes
from minigpt.config.convert import (
    Config,
    Fault,
    fitted,
    flatten,
    nearest,
    no_setting,
    read,
    sections,
    settings,
    shown,
    to_dict,
    value_from_text,
)
from minigpt.config.help import help_page
from minigpt.config.plain_yaml import plain_yaml
from minigpt.config.schema import PrepareConfig, SampleConfig, SweepConfig, TrainConfig
from minigpt.faults import UserFault

CLASSES: dict[str, type] = {
    "train": TrainConfig,
    "prepare": PrepareConfig,
    "sample": SampleConfig,
    "sweep": SweepConfig,
}
FILES = {
    "train": "scripts/train.py",
    "prepare": "scripts/prepare_data.py",
    "sample": "scripts/sample.py",
    "sweep": "scripts/sweep.py",
}

# What follows these is the user's own text and reaches us unchanged: null, 123 and ${x} are text here.
LITERAL = {key for cls in CLASSES.values() for key, setting in settings(cls).items() if setting.literal}

# Names that other frameworks use.
OTHER_NAMES = {
    "batch_size": "batch_tokens (tokens per step: sequences x model.block_size)",
    "gradient_accumulation_steps": "batch_tokens (accumulation follows from it; trainer.micro_batch sets its size)",
    "max_iters": "trainer.max_steps",
    "lr_decay_iters": "trainer.max_steps",
    "epochs": "trainer.max_steps or trainer.max_tokens",
    "max_epochs": "trainer.max_steps or trainer.max_tokens",
    "learning_rate": "optimizer.lr",
    "min_lr": "schedule.final_lr_fraction",
    "warmup_iters": "schedule.warmup_steps",
    "eval_interval": "validate.every_steps",
    "log_interval": "logger.every_steps",
    "save_interval": "checkpoint.every_steps",
    "out_dir": "run.dir",
    "output_dir": "run.dir",
    "init_from": "init.from",
    "dataset": "data or data.source",
    "dtype": "trainer.precision",
    "wandb_log": "logger (logger=wandb)",
    "start": "prompt",
    "ckpt": "checkpoint",
    "ckpt_path": "checkpoint",
}

ONE_VALUE = "Several are trained one after the other with -m: python scripts/train.py -m key=a,b"


@dataclass
class Request:
    """What a command line asks for."""

    script: str
    cls: type  # of the config
    choices: dict[str, str] = field(default_factory=dict)  # group -> choice
    values: dict[str, Any] = field(default_factory=dict)  # setting -> value
    faults: list[Fault] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)  # groups whose file is unknown; "experiment": it could say anything
    config_dir: str | None = None
    show: bool = False  # --cfg job
    help: bool = False


@overload
def compose(script: str, arguments: list[str], cls: type[Config]) -> Config: ...
@overload
def compose(script: Literal["train"], arguments: list[str]) -> TrainConfig: ...
@overload
def compose(script: Literal["prepare"], arguments: list[str]) -> PrepareConfig: ...
@overload
def compose(script: Literal["sample"], arguments: list[str]) -> SampleConfig: ...
@overload
def compose(script: Literal["sweep"], arguments: list[str]) -> SweepConfig: ...
def compose(script: str, arguments: list[str], cls: Any = None) -> Any:
    """The config that a command line describes.

    Args:
        script: "train", "prepare", "sample" or "sweep".
        arguments: the command line behind the script's name.
        cls: another config class than the script's own, such as one with more settings.

    Returns:
        A TrainConfig, PrepareConfig, SampleConfig or SweepConfig, or whatever `cls` is.

    Raises:
        UserFault: with every fault of the command line, the files and the rules of check.py.
        SystemExit: code 0, after --help or --cfg job has printed.
    """
    cls = cls or CLASSES[script]
    request = _read_arguments(Request(script, cls), arguments)
    groups = find_groups(cls, request.config_dir, request.faults)
    if request.help:
        print(help_page(script, cls, groups))
        raise SystemExit(0)
    _refuse_unknown_choices(request, groups)
    strange = [_strangeness(file) for file in _own_files(groups, request.config_dir)]
    request.faults += [Fault((), sentence) for sentence in strange if sentence]
    if any(strange):
        request.unread.add("experiment")
    mapping = {} if any(strange) else _compose_files(request)
    config: Any
    for key, value in request.values.items():
        _set(mapping, key, value)
    config, faults = read(cls, mapping)
    faults = request.faults + [fault for fault in faults if not _touches(fault, request.faults)]
    faults += [fault for fault in find_faults(config) if not _touches(fault, faults) and _certain(fault, request)]
    if faults:
        raise UserFault(*dict.fromkeys(fault.sentence for fault in faults))
    if request.show:
        print(to_yaml(config), end="")
        raise SystemExit(0)
    for note in find_notes(config):
        print(f"Note: {note}", file=sys.stderr)
    return config


def to_yaml(config: Any) -> str:
    """The config as YAML in the outside spelling."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


# --- the command line ---


def _read_arguments(request: Request, arguments: list[str]) -> Request:
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, text = argument.partition("=")
        if argument in ("--help", "-h"):
            request.help = True
        elif name in ("--config-dir", "-cd", "--cfg", "-c"):
            text = text if equals else rest.pop(0) if rest else ""
            _read_option(request, name, text)
        elif argument in ("-m", "--multirun"):
            request.faults.append(Fault((), f"{argument} is for trainings alone, not with --cfg. {ONE_VALUE}"))
        elif not equals or name.startswith("-"):
            follows = rest.pop(0) if rest and name.startswith("-") and not equals and "=" not in rest[0] else text
            request.faults.append(Fault((), _not_a_setting(request, name, follows)))
        else:
            _read_setting(request, name, text)
    return request


def _read_option(request: Request, name: str, text: str) -> None:
    if name in ("--cfg", "-c"):
        request.show = True
        if text != "job":
            request.faults.append(Fault((), f"--cfg prints the composed configuration. Type --cfg job, got {text!r}."))
    elif not Path(os.path.expanduser(text)).is_dir() or not text or "${" in text:
        request.faults.append(Fault((), f"--config-dir wants a folder with group folders in it, got {text!r}."))
    else:
        request.config_dir = str(Path(os.path.expanduser(text)).resolve())


def _not_a_setting(request: Request, name: str, value: str) -> str:
    """The sentence for an argument that isn't key=value: `--max_steps 100`, a stray word."""
    if name.startswith("~"):
        return f"{shown(name)}: settings can't be removed, only given another value: key=VALUE."
    bare = name.lstrip("-").replace("-", "_")
    groups = find_groups(request.cls)
    known = [*settings(request.cls), *groups]
    if not name.startswith("-"):
        for group, choices in groups.items():
            if name in choices:
                return f"{shown(name)} alone says nothing. Did you mean {group}={name}?"
    meant = nearest(bare, known) if bare else []
    wanted = " or ".join(f"{each}={value if value.isprintable() and value else 'VALUE'}" for each in meant)
    hint = f"Did you mean {wanted}?" if wanted else f"See python {FILES[request.script]} --help."
    typed = f"{name} {value}".rstrip()
    return f"{shown(typed)} is not how a setting is written: key=value, no dashes. {hint}"


def _read_setting(request: Request, name: str, text: str) -> None:
    known, groups = settings(request.cls), find_groups(request.cls)
    key = name.removeprefix("+").removeprefix("+")
    if key in groups:
        request.choices[key] = text
    elif key not in known:
        request.faults.append(Fault((key,), _unknown(request, key)))
    elif key == "prompt":
        request.values[key] = [*request.values.get(key, []), text]
    elif known[key].literal:
        request.values[key] = text
    elif "${" in text and known[key].kind != list[str]:
        request.faults.append(Fault((key,), f"{key}={shown(text)}: ${{...}} is not evaluated. Write the value itself."))
    else:
        kind = known[key].kind
        value = value_from_text(kind, text)
        wanted = fitted(kind, value)[1]
        if wanted and "," in text and not fitted(kind, value_from_text(kind, text.split(",")[0]))[1]:
            request.faults.append(Fault((key,), f"{key} takes one value, got {shown(text)}. {ONE_VALUE}"))
        else:
            request.values[key] = value


def _unknown(request: Request, key: str) -> str:
    cls = request.cls
    kinds = settings(cls)
    if key.startswith("~"):
        return _not_a_setting(request, key, "")
    if key == "hydra" or key.startswith("hydra."):
        return f"{shown(key)}: Hydra's own settings are not used. run.dir=DIR says where a run goes; see --help."
    if key in sections(cls):
        inside = ", ".join(each for each in kinds if each.startswith(key + "."))
        return f"'{key}' is a group of settings. Set one of: {inside}."
    known = [*kinds, *find_groups(cls)]
    if key in OTHER_NAMES and OTHER_NAMES[key].partition(" ")[0] in known:
        return f"No setting '{key}'. Here it is {OTHER_NAMES[key]}."
    meant = nearest(key, known)
    if not any(each.rpartition(".")[2] == key.rpartition(".")[2] for each in meant):
        for other, other_class in CLASSES.items():
            if key in settings(other_class):
                return f"No setting '{key}' in {FILES[request.script]}: it belongs to {FILES[other]}."
    return no_setting(key, known)


# --- files ---


def config_folder() -> Path:
    """configs/: inside the installed package, or beside it in a checkout."""
    package = Path(minigpt.__file__).resolve().parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def find_groups(
    cls: type, config_dir: str | None = None, faults: list[Fault] | None = None
) -> dict[str, dict[str, Path]]:
    """Group -> choice -> file, of our configs and the user's folder."""
    names = [*sections(cls), *(["experiment"] if "experiment" in settings(cls) else [])]
    found: dict[str, dict[str, Path]] = {}
    for folder in [config_folder(), *([Path(config_dir)] if config_dir else [])]:
        for group in names:
            for file in sorted((folder / group).rglob("*.yaml"), key=lambda file: file.with_suffix("")):
                choice = file.relative_to(folder / group).with_suffix("").as_posix()
                taken = found.setdefault(group, {}).setdefault(choice, file)
                if taken != file and faults is not None:
                    sentence = f"{file} has the name of minigpt's own {group}={choice}. Rename it."
                    faults.append(Fault((group,), sentence))
    return found


def _refuse_unknown_choices(request: Request, groups: Mapping[str, Mapping[str, Path]]) -> None:
    for group, choice in list(request.choices.items()):
        if choice in groups[group]:
            continue
        del request.choices[group]
        request.unread.add(group)
        meant = [each for each in nearest(choice, groups[group]) if each]
        hint = f" Did you mean {group}={meant[0]}?" if meant else ""
        hint = f" {ONE_VALUE}" if "," in choice else hint
        known = ", ".join(groups[group])
        request.faults.append(Fault((), f"No {group} {shown(choice)}.{hint} There are: {known}."))


def _own_files(groups: Mapping[str, Mapping[str, Path]], config_dir: str | None) -> list[Path]:
    """The files of the user's own folder, which may be a stranger's."""
    files = [file for choices in groups.values() for file in choices.values()]
    return [file for file in files if config_dir and file.is_relative_to(config_dir)]


def _strangeness(file: Path) -> str:
    """Why a file is not given to Hydra, whose reading of it would take for ever or evaluate something; "" if it is."""
    try:
        content = plain_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return ""  # Hydra says what is wrong with it, if it is chosen at all
    except ValueError as error:
        return f"{file} can't be used: {error}."
    if isinstance(content, dict) and "${" in str(content.get("defaults")):
        return f"{file} has ${{...}} in its defaults, but ${{...}} is not evaluated. Write the value itself."
    return ""


def _compose_files(request: Request) -> dict[str, Any]:
    """What the chosen files hold together, unresolved."""
    overrides = [f"{group}={_quoted(choice)}" for group, choice in request.choices.items()]
    if request.config_dir:
        overrides.append(f"hydra.searchpath=[{_quoted('file://' + request.config_dir)}]")
    try:
        with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
            composed = OmegaConf.to_container(hydra.compose(request.script, overrides=overrides), resolve=False)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        text = " ".join(str(error).split())
        request.unread.add("experiment")
        request.faults.append(Fault((), f"The config files don't compose: {text[:600]}"))
        return {}
    assert isinstance(composed, dict)
    mapping: dict[str, Any] = {str(key): value for key, value in composed.items()}
    if "experiment" in request.choices:
        mapping.setdefault("experiment", request.choices["experiment"])
    for key, value in flatten(mapping).items():
        if isinstance(value, str) and "${" in value:
            sentence = f"A config file says {key}: {value}, but ${{...}} is not evaluated. Write the value itself."
            request.faults.append(Fault((key,), sentence))
    return mapping


def _quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back unchanged."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _set(mapping: dict[str, Any], key: str, value: Any) -> None:
    *way, last = key.split(".")
    for name in way:
        mapping = mapping.setdefault(name, {})
        if not isinstance(mapping, dict):
            return
    mapping[last] = value


def _touches(fault: Fault, others: list[Fault]) -> bool:
    """Whether a fault speaks of a setting that another fault already names."""
    named = {key for other in others for key in other.keys}
    return not named.isdisjoint(fault.keys)


def _certain(fault: Fault, request: Request) -> bool:
    """Whether a fault stands whatever the files that could not be read would have said."""
    given = [key in request.values for key in fault.keys]
    open_keys = [key for key in fault.keys if key.partition(".")[0] in request.unread or "experiment" in request.unread]
    return all(given) or not open_keys
