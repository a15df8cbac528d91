"""The page that --help prints: made from schema.py and the files under configs/."""

import inspect
import json
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path

from minigpt.config.convert import in_words, settings
from minigpt.config.plain_yaml import MAX_CHARACTERS
from minigpt.config.schema import TrainConfig
from minigpt.faults import CONTROL_PICTURES, MEANINGS
from minigpt.files import read_plain
from minigpt.invocation import typed

OF_GROUPS = """\
Write group=choice to take a file of configs/, key=value for a single setting. The last one wins.
--config-dir DIR     also look for group files in DIR, e.g. DIR/experiment/mine.yaml
-m                   of train: train each combination of lists like optimizer.lr=1e-3,3e-3 seed=1,2"""
OF_ALL = """\
--cfg job            print the composed configuration as YAML and stop
{literal}:
  their text is taken as it is, only the shell needs quotes; a leading ~ of a path means your home folder"""


def help_page(command: str, cls: type, groups: Mapping[str, Mapping[str, Path]]) -> str:
    """Return the page for one command. If it starts trainings, its own settings come first, then those of `train`.

    Args:
        command: its name.
        cls: its config class.
        groups: group -> choice -> YAML file.
    """
    known = settings(cls)
    literal = ", ".join(f"{key}=" for key, setting in known.items() if setting.literal)
    codes = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    lines = [(inspect.getdoc(cls) or "").replace(f"minigpt {command}", typed(command)), ""]
    lines += [*([OF_GROUPS] if groups else []), *([OF_ALL.format(literal=literal)] if literal else [])]
    lines += textwrap.wrap(f"Exit codes: {codes}", 118, subsequent_indent=" " * 12)
    if "experiment" in groups:
        lines += ["", "Experiments, experiment=NAME:"]
        lines += [f"  {choice:<28}{_summary(file)}" for choice, file in groups["experiment"].items()]
    of_train = settings(TrainConfig) if issubclass(cls, TrainConfig) and cls is not TrainConfig else {}
    before: tuple[bool, str] | None = None
    for key in sorted(known, key=lambda key: key in of_train):
        section = key.rpartition(".")[0]
        if before != (key in of_train, section):
            before = key in of_train, section
            whose = " of its trainings" if key in of_train else ""
            about = f"{section}: {typing.get_type_hints(cls)[section].__doc__}" if section else ""
            lines += ["", about or f"Settings{whose}, with their defaults (type) and meaning:"]
            lines += [f"  {section}={'|'.join(groups[section])}"] if section in groups else []
        setting = known[key]
        default = setting.default if isinstance(setting.default, str) else json.dumps(setting.default)
        lines.append(f"{f'  {key}={default}':<38} ({in_words(setting.kind)}) {setting.meaning}".rstrip())
    return "\n".join(lines)


def _summary(file: Path) -> str:
    """Return the first comment line of a YAML file, apart from Hydra's own."""
    try:
        lines = read_plain(file, 4 * MAX_CHARACTERS).decode(errors="replace").translate(CONTROL_PICTURES).splitlines()
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return next((line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @")), "")
