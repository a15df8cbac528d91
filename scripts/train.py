"""Train a GPT: `python scripts/train.py [experiment=NAME] [group=choice] [key=value ...]`; --help lists everything.

With -m, lists of values (`-m optimizer.lr=1e-3,3e-3 seed=1,2`) are trained one combination after the other.
"""

import sys

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Compose first: a wrong setting is named before torch is imported. Hear signals even before that."""
    from minigpt.multirun import run_grid, wants_grid

    if wants_grid(arguments):
        return run_grid(arguments, [sys.executable, __file__])

    from minigpt.config.compose import compose
    from minigpt.process.signals import Signals

    with Signals():
        config = compose("train", arguments)

        from minigpt.data.prepare import require_vocabulary

        require_vocabulary(config.data, config.tokenizer)

        from minigpt.training.run import train

        return train(config)


if __name__ == "__main__":
    run_script(main)
