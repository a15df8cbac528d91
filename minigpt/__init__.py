"""minigpt: train small GPTs you can read, fast, without ever losing a step.

    gpt = minigpt.load("runs/NAME")
    print(gpt.generate("To be, or not to be"))
    minigpt.train(minigpt.compose(["experiment=demo"]))

The three functions are in `minigpt.api`. torch is imported when they need it, Lightning when a training begins.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigpt.api import Run, TrainedGPT, compose, load, train

__all__ = ["Run", "TrainedGPT", "compose", "load", "train"]
__version__ = "0.1.0"

# OpenMP's threads wait for each other by spinning. On a machine that does something else as well they burn the very
# cores they wait for, and training slows down tenfold; with a shorter wait it does not, and an idle machine is as
# fast as before. Read when torch is loaded, so it is set before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> Any:
    """Return what `minigpt.api` offers under this name; it is imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'minigpt' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module("minigpt.api"), name)


def __dir__() -> list[str]:
    """Return what there is to use, which a notebook proposes before it is imported."""
    return sorted([*globals(), *__all__])
