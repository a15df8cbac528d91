"""Text to token shards: python scripts/prepare_data.py data=text data.source=FILE_OR_DIR tokenizer=bpe"""

import shlex
import sys

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> None:
    """Compose first: a wrong setting is named before the text is looked for."""
    from minigpt.config.compose import compose

    config = compose("prepare", arguments)

    from minigpt.data.prepare import describe, mend

    prepared = mend(config.data, config.tokenizer)
    print("\n".join(describe(prepared)))
    print(f"\nTrain on it:\n  python scripts/train.py {shlex.join(arguments)}".rstrip())


if __name__ == "__main__":
    run_script(main)
