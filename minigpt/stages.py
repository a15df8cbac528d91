"""A training that begins with another: `init.experiment` is trained first, and the run starts from its weights.

Each is a run of its own, so the same command goes on where it was stopped, in either.
"""

import os
from collections.abc import Callable
from pathlib import Path

from minigpt.config.commands import EvaluateConfig
from minigpt.config.compose import compose
from minigpt.config.convert import settings
from minigpt.config.roles import default_run_dir
from minigpt.config.schema import TrainConfig
from minigpt.data.find import typed_path
from minigpt.data.tasks import task_file
from minigpt.evaluation.command import evaluate
from minigpt.faults import FINISHED
from minigpt.launcher import launched


def train_in_stages(config: TrainConfig, arguments: list[str], train: Callable[[TrainConfig], int]) -> int:
    """Train what the config starts from, if it says so, then what it is itself.

    Args:
        config: composed from the arguments.
        arguments: of the command line: where and by what machine it trains is true of the first one, too.
        train: trains one.

    Returns:
        What `train` returns.
    """
    if config.init.experiment is not None and config.init.source is None:
        before = compose("train", [f"experiment={config.init.experiment}", *_shared(arguments)])
        before.run.dir = config.run.dir and f"{config.run.dir}-{config.init.experiment}"
        code = train(before)
        if code != FINISHED:
            return code
        config.init.source = before.run.dir or default_run_dir(before)
        print(f"\nTrained first: {config.init.source}. Now {config.experiment}.\n")
    code = train(config)
    place = launched(config.trainer.strategy, config.trainer.nodes, config.trainer.devices)
    if code == FINISHED and config.data.name == "tasks" and (place is None or place.rank == 0):
        run = os.path.expanduser(config.run.dir or default_run_dir(config))
        questions = task_file(typed_path(config.data.dir), "test")
        evaluate(EvaluateConfig(checkpoint=str(Path(run)), questions=[str(questions)]))
    return code


def _shared(arguments: list[str]) -> list[str]:
    """The arguments that say where something lies, or which machine computes how."""
    known = settings(TrainConfig)
    keys = {key for key, setting in known.items() if setting.role == "machine"} | {
        "seed",
        "data.dir",
        "trainer.precision",
    }
    return [each for each in arguments if each.partition("=")[0].lstrip("+") in keys or each.startswith("trainer=")]
