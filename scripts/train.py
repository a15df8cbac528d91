"""Train a GPT: the same as `minigpt train`; --help all lists every setting."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout's minigpt, installed or not
    from minigpt.cli import run

    run("train")
