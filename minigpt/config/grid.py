"""`-m`: Hydra's lists of values (`lr=1e-3,3e-3`, `seed=range(1,4)`) as one command line for each combination."""

import itertools
import math

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from minigpt.config.compose import LITERAL
from minigpt.config.convert import as_typed, settings, shown
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

FLAGS = ("-m", "--multirun")
MAX_JOBS = 1000
WHOLE = {"data.mix", *(LITERAL & settings(TrainConfig).keys())}  # settings whose commas divide nothing

Job = list[str]  # a command line


def expand(arguments: list[str]) -> list[tuple[Job, str]]:
    """Return the command lines of a grid, each with the arguments that vary; the last list changes fastest.

    Raises:
        UserFault: a list that is no plain grid, or too many jobs.
    """
    parts = [_alternatives(argument) for argument in arguments if argument not in FLAGS]
    count = math.prod(map(len, parts))
    if count > MAX_JOBS:
        raise UserFault(f"-m: {count:,} combinations, at most {MAX_JOBS:,}. Use fewer values, or minigpt sweep")
    several = [len(part) > 1 for part in parts]
    return [(list(job), " ".join(itertools.compress(job, several))) for job in itertools.product(*parts)]


def _alternatives(argument: str) -> list[str]:
    """Return an argument once for each value that it lists, or alone if it lists none."""
    name, equals, _ = argument.partition("=")
    if not equals or name.startswith("-") or name.lstrip("+") in WHOLE:
        return [argument]
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException:
        return [argument]  # composing it will say what is wrong
    if not override.is_sweep_override():
        return [argument]
    if not override.is_discrete_sweep() or "glob(" in argument:
        raise UserFault(f"{shown(argument)}: -m trains plain grids, key=a,b. minigpt sweep searches ranges")
    values = [getattr(value, "text", value) for value in override.sweep_iterator()]  # quoted strings have a text
    return [f"{name}={as_typed(value)}" for value in values]
