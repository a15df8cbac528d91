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
from minigpt.data.tasks import HARDER, task_file
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
    run = os.path.expanduser(config.run.dir or default_run_dir(config))
    if config.objective.name == "grpo" and not os.path.exists(run):
        ask(config, str(config.init.source))
    code = train(config)
    if code == FINISHED and config.data.name == "tasks":
        ask(config, str(Path(run)))
    return code


def ask(config: TrainConfig, model: str) -> None:
    """Print how many questions of the test a model answers, task by task: all tasks', and the harder one's of grpo."""
    place = launched(config.trainer.strategy, config.trainer.nodes, config.trainer.devices)
    if place is not None and place.rank:
        return
    task, folder = config.objective.task, typed_path(config.data.dir)
    files = [task_file(folder, "test")]
    if config.objective.name == "grpo" and task in HARDER:
        files.append(task_file(folder, "test", task))
    evaluate(EvaluateConfig(checkpoint=model, questions=[*map(str, files)]))


def _shared(arguments: list[str]) -> list[str]:
    """The arguments that say where something lies, or which machine computes how."""
    known = settings(TrainConfig)
    keys = {key for key, setting in known.items() if setting.role == "machine"} | {
        "seed",
        "data.dir",
        "trainer.precision",
    }
    return [each for each in arguments if each.partition("=")[0].lstrip("+") in keys or each.startswith("trainer=")]
