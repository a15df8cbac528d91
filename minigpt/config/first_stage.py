"""What is trained first, where `init.experiment` says that a training starts from the weights of another."""

from collections.abc import Sequence

from minigpt.config.compose import compose, resolved
from minigpt.config.convert import as_typed, settings, shown, values
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
        UserFault: it does not compose, has another model, or starts from an experiment, too.
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
    _refuse_other_model(config, before)
    before.run.dir = config.run.dir and f"{config.run.dir}-{name}"
    return before


def _refuse_other_model(config: TrainConfig, before: TrainConfig) -> None:
    """Refuse what the weights of the first one can't begin.

    Raises:
        UserFault: naming each setting of model and tokenizer that differs.
    """
    now, theirs, name = values(config), values(before), config.init.experiment
    grows = config.model.attention == "rotary"  # positions are no weights then
    differing = [
        key
        for key, each in settings(TrainConfig).items()
        if each.role == "weights" and key.startswith(("model.", "tokenizer.")) and now[key] != theirs[key]
        if resolved(key, now[key], now) != resolved(key, theirs[key], theirs)
        if not (grows and key == "model.block_size")
    ]
    if differing:
        own, other = (", ".join(f"{key}={shown(each[key])}" for key in differing) for each in (now, theirs))
        remedy = f"Leave that out, or train {name} by itself with it and give init.from=ITS_RUN"
        raise UserFault(f"{own} does not fit experiment={name}, which is trained first with {other}. {remedy}")


def _config_dir(arguments: Sequence[str]) -> list[str]:
    """The words of a command line that name a folder of configs."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        if argument.partition("=")[0] in ("--config-dir", "-cd"):
            found += arguments[place : place + (1 if "=" in argument else 2)]
    return found
