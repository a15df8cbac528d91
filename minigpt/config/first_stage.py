"""The first stage of a training that starts from the weights of another experiment (`init.experiment`)."""

from collections.abc import Sequence

from minigpt.config.compose import compose, resolved
from minigpt.config.convert import as_typed, settings, shown, values
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

TAKEN_OVER = ("seed", "data.dir", "trainer.precision")  # besides the settings with the role `machine`


def first_stage(config: TrainConfig, arguments: Sequence[str] = ()) -> TrainConfig | None:
    """Return the config of the first stage, or None if there is none.

    It takes over seed, folder of tokens and settings of the machine from the second, where they are not the defaults.

    Args:
        config: of the second stage, which starts from the first.
        arguments: of the command line, whose --config-dir holds for both.

    Raises:
        UserFault: the first stage does not compose, has another model, or starts from an experiment itself.
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
    """Refuse a second stage that can't start from the weights of the first.

    Raises:
        UserFault: settings of model or tokenizer differ; it names each.
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
    """Return the words of a command line that name a folder of configs."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        if argument.partition("=")[0] in ("--config-dir", "-cd"):
            found += arguments[place : place + (1 if "=" in argument else 2)]
    return found
