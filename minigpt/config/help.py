"""The page that --help prints: made from schema.py and the files under configs/."""

import inspect
import json
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path

from minigpt.config.convert import in_words, settings
from minigpt.faults import MEANINGS
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
    """The whole page for one command.

    Args:
        command: its name.
        cls: its config class.
        groups: group -> choice -> YAML file.
    """
    literal = ", ".join(f"{key}=" for key, setting in settings(cls).items() if setting.literal)
    codes = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    lines = [(inspect.getdoc(cls) or "").replace(f"minigpt {command}", typed(command)), ""]
    lines += [*([OF_GROUPS] if groups else []), *([OF_ALL.format(literal=literal)] if literal else [])]
    lines += [*textwrap.wrap(f"Exit codes: {codes}", 118, subsequent_indent=" " * 12), ""]
    if "experiment" in groups:
        lines.append("Experiments, experiment=NAME:")
        lines += [f"  {choice:<28}{_summary(file)}" for choice, file in groups["experiment"].items()]
        lines.append("")
    section = None
    for key, setting in settings(cls).items():
        if section != key.rpartition(".")[0]:
            section = key.rpartition(".")[0]
            lines += [*([""] if section else []), _heading(cls, section, list(groups.get(section, {})))]
        default = setting.default if isinstance(setting.default, str) else json.dumps(setting.default)
        left = f"  {key}={default}"
        lines.append(f"{left:<38} ({in_words(setting.kind)}) {setting.meaning}".rstrip())
    return "\n".join(lines)


def _heading(cls: type, section: str, choices: list[str]) -> str:
    if not section:
        return "Settings, with their defaults (type) and meaning:"
    kind = typing.get_type_hints(cls)[section]
    chosen = f"\n  {section}={'|'.join(choices)}" if choices else ""
    return f"{section}: {kind.__doc__}{chosen}"


def _summary(file: Path) -> str:
    """The first comment line of a YAML file, Hydra's own aside."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("# ") and not line.startswith("# @"):
            return line[2:]
    return ""
