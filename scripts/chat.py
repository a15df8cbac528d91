"""Talk with a trained GPT: the same as `minigpt chat`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout's minigpt, installed or not
    from minigpt.cli import run

    run("chat")
