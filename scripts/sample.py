"""Write text with a trained GPT: `python scripts/sample.py checkpoint=RUN prompt="..."`; --help lists everything."""

import sys

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Compose first: a wrong setting is named before torch is imported."""
    from minigpt.config.compose import compose

    config = compose("sample", arguments)

    from minigpt.sampling.command import sample

    return sample(config)


if __name__ == "__main__":
    run_script(main)
