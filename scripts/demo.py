"""What `make demo` runs: trains a small GPT and lets it write. Takes the same settings as scripts/train.py."""

import sys

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Compose first: a wrong setting is named before torch is imported."""
    from minigpt.config.compose import compose

    config = compose("train", ["experiment=demo", *arguments])

    from minigpt.demo import demo

    return demo(config)


if __name__ == "__main__":
    run_script(main)
