"""A training in two stages: `init.experiment` is trained first, and the run starts from its weights.

Each stage is a run of its own, so the same command goes on where it was stopped, in either stage.
"""

from collections.abc import Callable

from minigpt.config.commands import EvaluateConfig
from minigpt.config.compose import first_stage
from minigpt.config.run_names import default_run_dir, run_dir_of
from minigpt.config.schema import TrainConfig
from minigpt.data.chat.tasks import HARDER, task_file
from minigpt.data.sources.find import typed_path
from minigpt.evaluation.evaluate import evaluate
from minigpt.faults import FINISHED
from minigpt.invocation import launched


def train_in_stages(config: TrainConfig, train: Callable[[TrainConfig], int]) -> int:
    """Train the first stage, if the config names one, then the config itself.

    The config's `init.from` is set when the first stage is done. `train` trains one stage.
    """
    place = launched(config.trainer)
    prints = place is None or place.rank == 0
    if (before := first_stage(config)) is not None:
        if (code := train(before)) != FINISHED:
            return code
        config.init.source = before.run.dir or default_run_dir(before)
        print(f"\nTrained first: {config.init.source}. Now {config.experiment}.\n")
    run = run_dir_of(config)
    if prints and config.objective.name == "grpo" and not run.exists():
        ask(config, str(config.init.source))
    code = train(config)
    if prints and code == FINISHED and config.data.name == "tasks":
        ask(config, str(run))
    return code


def ask(config: TrainConfig, model: str) -> None:
    """Print how many test questions a model answers right: of all tasks, and with grpo also of its harder task."""
    task, folder = config.objective.task, typed_path(config.data.dir)
    files = [task_file(folder, "test")]
    if config.objective.name == "grpo" and task in HARDER:
        files.append(task_file(folder, "test", task))
    evaluate(EvaluateConfig(checkpoint=model, questions=[*map(str, files)]))
