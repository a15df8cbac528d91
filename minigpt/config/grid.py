"""`-m`: lists of values (`lr=1e-3,3e-3`, `seed=range(1,4)`) as one command line for each combination."""

import itertools
import math
import re

from minigpt.config.convert import settings
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

FLAGS = ("-m", "--multirun")
MAX_JOBS = 1000
WHOLE = {"data.mix", *(key for key, setting in settings(TrainConfig).items() if setting.literal)}  # commas are text

Job = list[str]  # a command line


def expand(arguments: list[str]) -> list[tuple[Job, str]]:
    """Return the command lines of a grid, each with the arguments that vary; the last list changes fastest.

    Raises:
        UserFault: too many jobs.
    """
    lists = [_alternatives(argument) for argument in arguments if argument not in FLAGS]
    count = math.prod(map(len, lists))
    if count > MAX_JOBS:
        raise UserFault(f"-m: {count:,} combinations, at most {MAX_JOBS:,}. Use fewer values, or minigpt sweep")
    several = [len(values) > 1 for values in lists]
    return [(list(job), " ".join(itertools.compress(job, several))) for job in itertools.product(*lists)]


def _alternatives(argument: str) -> Job:
    """Return an argument once for each value that it lists, or alone if it lists none."""
    name, _, text = argument.partition("=")
    if numbers := re.fullmatch(r"range\((-?\d+), *(-?\d+)\)", text):
        return [f"{name}={number}" for number in range(int(numbers[1]), int(numbers[2]))]
    plain = not argument.startswith("-") and name.lstrip("+") not in WHOLE and text[:1] not in ("[", "{", "'", '"')
    values = [value.strip() for value in text.split(",")] if plain else [text]
    return [f"{name}={value}" for value in values] if len(values) > 1 and all(values) else [argument]
