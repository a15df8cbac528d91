"""The page that --help prints: made from schema.py and the files under configs/."""

import inspect
import json
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigpt.config.convert import in_words, settings
from minigpt.config.schema import TrainConfig
from minigpt.faults import MEANINGS
from minigpt.invocation import typed

WIDTH = 118
OF_GROUPS = """\
Write group=choice to take a file of configs/, key=value for a single setting. The last one wins.
--config-dir DIR     also look for group files in DIR, e.g. DIR/experiment/mine.yaml
-m                   of train: train each combination of lists like optimizer.lr=1e-3,3e-3 seed=1,2"""
OF_ALL = """\
--cfg job            print the composed configuration as YAML and stop
The text of paths, prompts and the like is taken as it is: only the shell needs quotes, ~ means your home folder."""


def help_page(command: str, cls: type, groups: Mapping[str, Mapping[str, Path]], chosen: Mapping[str, Any]) -> str:
    """Return the page for one command. If it starts trainings, its own settings come first, then those of `train`.

    Args:
        command: its name.
        cls: its config class.
        groups: group -> choice -> YAML file.
        chosen: values in place of the defaults: those of the experiment and other files beside --help.
    """
    codes = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    known, train = settings(cls), settings(TrainConfig) if cls is not TrainConfig else {}
    codes = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    lines = [(inspect.getdoc(cls) or "").replace(f"minigpt {command}", typed(command)), ""]
    lines += [*([OF_GROUPS] if groups else []), OF_ALL, *_wrapped(f"Exit codes: {codes}", 12)]
    if "experiment" in groups:
        lines += ["", "Experiments, experiment=NAME:"]
        for choice, file in groups["experiment"].items():
            lines += _wrapped(f"  {choice:<28}{_summary(file)}", 30)
    heading = ""
    for key in sorted(known, key=lambda key: key in train):
        section = key.rpartition(".")[0]
        about = f"{section}: {typing.get_type_hints(cls)[section].__doc__}" if section else ""
        about = about or f"Settings{' of its trainings' if key in train else ''}: value (type) meaning"
        if heading != about:
            heading, choices = about, " | ".join(groups.get(section, {}))
            lines += ["", heading, *_wrapped(f"  {section}={choices}" if choices else "", 4)]
        value = chosen.get(key, known[key].default)
        start = f"  {key}={value if isinstance(value, str) else json.dumps(value)}"
        lines += _wrapped(f"{start:<38} ({in_words(known[key].kind)}) {known[key].meaning}".rstrip(), 40)
    return "\n".join(lines)


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _summary(file: Path) -> str:
    """Return the comment at the top of a YAML file, apart from Hydra's own lines, up to its first sentence."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    comment = " ".join(line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @"))
    return comment.partition(". ")[0].rstrip(".")
