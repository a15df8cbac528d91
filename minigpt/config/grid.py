"""`-m`: lists of values (`lr=1e-3,3e-3`, `seed=range(1,4)`) as one command line for each combination."""

import itertools
import math

from minigpt.config.convert import settings
from minigpt.config.schema import TrainConfig
from minigpt.config.yaml_files import alternatives
from minigpt.faults import UserFault

FLAGS = ("-m", "--multirun")
MAX_JOBS = 1000
WHOLE = {"data.mix", *(key for key, setting in settings(TrainConfig).items() if setting.literal)}  # commas are text

Job = list[str]  # a command line


def expand(arguments: list[str]) -> list[tuple[Job, str]]:
    """Return the command lines of a grid, each with the arguments that vary; the last list changes fastest.

    Raises:
        UserFault: a list that is no plain grid, or too many jobs.
    """
    lists = [
        [argument] if argument.startswith("-") or name in WHOLE or not equals else alternatives(argument)
        for argument in arguments
        if argument not in FLAGS
        for name, equals, _ in [argument.lstrip("+").partition("=")]
    ]
    count = math.prod(map(len, lists))
    if count > MAX_JOBS:
        raise UserFault(f"-m: {count:,} combinations, at most {MAX_JOBS:,}. Use fewer values, or minigpt sweep")
    several = [len(values) > 1 for values in lists]
    return [(list(job), " ".join(itertools.compress(job, several))) for job in itertools.product(*lists)]
