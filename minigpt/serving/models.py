"""The models that are served, loaded as `minigpt sample` loads them."""

from collections.abc import Sequence
from pathlib import Path

from minigpt.config.commands import ServeConfig
from minigpt.config.schema import SampleConfig
from minigpt.sampling.command import choose_decoder, load
from minigpt.serving.engine import Served


def load_models(config: ServeConfig) -> list[Served]:
    """Load every checkpoint; equal names get a number.

    Raises:
        UserFault: no such checkpoint or device.
    """
    models: list[Served] = []
    for path in config.checkpoint:
        options = SampleConfig(
            checkpoint=path,
            which=config.which,
            device=config.device,
            precision=config.precision,
            compile=config.compile,
        )
        loaded = load(options)
        name = unlike(name_of(loaded.path), [served.name for served in models])
        models.append(Served(name, loaded, choose_decoder(options, loaded.model), config.rows))
    return models


def name_of(path: Path) -> str:
    """Return what a checkpoint is called: its run, else its folder or file."""
    path = path.resolve()
    return path.parents[1].name if path.parent.name == "checkpoints" else path.name


def unlike(name: str, taken: Sequence[str]) -> str:
    """Return the name, or with a number the first that is not taken."""
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 2))
    return name if name not in taken else next(each for each in numbered if each not in taken)
