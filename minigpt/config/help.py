"""The page that --help prints: made from schema.py and the files under configs/."""

import textwrap
import typing
from pathlib import Path
from typing import Any

from minigpt.config.convert import settings
from minigpt.faults import MEANINGS

EXAMPLES = {
    "train": [
        "python scripts/train.py",
        "python scripts/train.py experiment=shakespeare_char_cpu",
        "python scripts/train.py model=gpt-mini trainer.max_steps=500 optimizer.lr=6e-4 run.dir=runs/mine",
        "python scripts/train.py data=text data.source=my_texts/ tokenizer=bpe",
    ],
    "prepare": [
        "python scripts/prepare_data.py",
        "python scripts/prepare_data.py data=text data.source=my_texts/ tokenizer=bpe tokenizer.vocab_size=4096",
    ],
    "sample": [
        'python scripts/sample.py checkpoint=runs/NAME prompt="def f(x):"',
        "python scripts/sample.py checkpoint=runs/NAME prompt=Once prompt=Twice temperature=0 max_new_tokens=50",
        """python scripts/sample.py checkpoint=runs/NAME prompt_file=start.txt stop='["\\n\\n"]'""",
    ],
    "sweep": [
        "python scripts/sweep.py search=lr experiment=demo trials=12 workers=2",
        "python scripts/sweep.py search=shakespeare_char_cpu experiment=shakespeare_char_cpu seeds=3",
        """python scripts/sweep.py search.space='{"model.n_layer": {"choices": [2, 4, 6]}}' search.sampler=grid""",
    ],
}

RULES_OF_WRITING = """\
Write group=choice to take a file of configs/, key=value for a single setting. The last one wins.
{literal}:
  their text is taken as it is, only the shell needs quotes; a leading ~ of a path means your home folder
--config-dir DIR     also look for group files in DIR, e.g. DIR/experiment/mine.yaml
-m                   of scripts/train.py: train each combination of lists like optimizer.lr=1e-3,3e-3 seed=1,2
--cfg job            print the composed configuration as YAML and stop"""


def help_page(script: str, cls: type, groups: dict[str, dict[str, Path]]) -> str:
    """The whole page for one script.

    Args:
        script: "train", "prepare", "sample" or "sweep".
        cls: its config class.
        groups: group -> choice -> YAML file.
    """
    literal = [key for key, setting in settings(cls).items() if setting.literal]
    lines = ["Examples:", *(f"  {each}" for each in EXAMPLES[script]), ""]
    lines += [RULES_OF_WRITING.format(literal=", ".join(f"{key}=" for key in literal))]
    codes = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    lines += [*textwrap.wrap(f"Exit codes: {codes}", 118, subsequent_indent=" " * 12), ""]
    if "experiment" in groups:
        lines.append("Experiments, experiment=NAME:")
        lines += [f"  {choice:<24}{_summary(file)}" for choice, file in groups["experiment"].items()]
        lines.append("")
    section = None
    for key, setting in settings(cls).items():
        if section != key.rpartition(".")[0]:
            section = key.rpartition(".")[0]
            lines += [*([""] if section else []), _heading(cls, section, list(groups.get(section, {})))]
        left = f"  {key}={_default(setting.default)}"
        lines.append(f"{left:<38} ({kind_in_words(setting.kind)}) {setting.meaning}".rstrip())
    return "\n".join(lines)


def _heading(cls: type, section: str, choices: list[str]) -> str:
    if not section:
        return "Settings, with their defaults (type) and meaning:"
    kind = typing.get_type_hints(cls)[section]
    chosen = f"\n  {section}={'|'.join(choices)}" if choices else ""
    return f"{section}: {kind.__doc__}{chosen}"


def _default(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _summary(file: Path) -> str:
    """The first comment line of a YAML file, Hydra's own aside."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("# ") and not line.startswith("# @"):
            return line[2:]
    return ""


def kind_in_words(kind: Any) -> str:
    """A type as users read it: "whole number", "fp32|bf16", "text or null"."""
    names = {int: "whole number", float: "number", bool: "true|false", str: "text", type(None): "null"}
    if kind in names:
        return names[kind]
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    if kind == list[str]:
        return "list of texts"
    if typing.get_origin(kind) is dict:
        return "JSON object"
    return " or ".join(kind_in_words(part) for part in typing.get_args(kind))
