"""`-m`: Hydra's lists of values (`lr=1e-3,3e-3`, `seed=range(1,4)`) as one command line for each combination."""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from minigpt.config.compose import LITERAL
from minigpt.config.convert import shown
from minigpt.faults import UserFault

FLAGS = ("-m", "--multirun")
MAX_JOBS = 1000

Job = list[str]  # a command line


def expand(arguments: list[str]) -> tuple[list[Job], dict[str, list[Any]]]:
    """Return the command lines of a grid, the last list of values changing fastest, as Hydra's own sweeper has it.

    What follows LITERAL keys is the user's text: a comma in it divides nothing.

    Returns:
        The jobs, and setting -> its values for those that have several.

    Raises:
        UserFault: a list that is no plain grid, or too many jobs.
    """
    parser = OverridesParser.create()
    parts: list[list[str]] = []
    axes: dict[str, list[Any]] = {}
    for argument in arguments:
        if argument in FLAGS:
            continue
        name, equals, _ = argument.partition("=")
        key = name.lstrip("+")
        values = list(_values(parser, argument)) if equals and key not in LITERAL and not name.startswith("-") else []
        if values:
            axes[key] = values
        parts.append([f"{name}={_text(value)}" for value in values] or [argument])
    count = math.prod(map(len, parts))
    if count > MAX_JOBS:
        raise UserFault(
            f"-m: {count:,} combinations are more than the {MAX_JOBS:,} that are trained one after the other. "
            "Use fewer values, or minigpt sweep, which searches"
        )
    return [list(job) for job in itertools.product(*parts)], axes


def _values(parser: OverridesParser, argument: str) -> Iterator[Any]:
    """Yield the values that an argument lists; none if it is one value."""
    try:
        override = parser.parse_override(argument)
        if not override.is_sweep_override():
            return
        if not override.is_discrete_sweep() or "glob(" in argument:
            raise UserFault(
                f"{shown(argument)}: -m trains plain grids. List the values, like key=a,b or key=range(1,4); "
                "minigpt sweep searches ranges"
            )
        yield from override.sweep_iterator()
    except HydraException:
        return  # what is wrong with it is said when it is composed


def _text(value: Any) -> str:
    if isinstance(value, QuotedString):
        return value.text
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)
