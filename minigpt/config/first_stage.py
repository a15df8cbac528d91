"""What is trained first, where `init.experiment` says that a training starts from the weights of another."""

from collections.abc import Sequence

from minigpt.config.compose import compose
from minigpt.config.convert import as_typed, settings, values
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

TAKEN_OVER = ("seed", "data.dir", "trainer.precision")  # beside what only the machine decides


def first_stage(config: TrainConfig, arguments: Sequence[str] = ()) -> TrainConfig | None:
    """Return the config of what is trained first, or None.

    It has the other's seed, folder of tokens and settings of the machine, where they are not the defaults.

    Args:
        config: of the training that starts from it.
        arguments: of the command line, whose --config-dir holds for both.

    Raises:
        UserFault: it does not compose, or starts from an experiment, too.
    """
    name = config.init.experiment
    if name is None or config.init.source is not None:
        return None
    now = values(config)
    taken = [
        f"{key}={as_typed(now[key])}"
        for key, each in settings(TrainConfig).items()
        if (each.role == "machine" or key in TAKEN_OVER) and now[key] != each.default
    ]
    before: TrainConfig = compose("train", [*_config_dir(arguments), f"experiment={name}", *taken])
    if before.init.experiment is not None:
        remedy = f"Type minigpt train experiment={name}, then give init.from=ITS_RUN"
        raise UserFault(f"init.experiment={name} starts from init.experiment={before.init.experiment} itself. {remedy}")
    before.run.dir = config.run.dir and f"{config.run.dir}-{name}"
    return before


def _config_dir(arguments: Sequence[str]) -> list[str]:
    """The words of a command line that name a folder of configs."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        if argument.partition("=")[0] in ("--config-dir", "-cd"):
            found += arguments[place : place + (1 if "=" in argument else 2)]
    return found
