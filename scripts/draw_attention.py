"""Draw what each head attends to: the same as `minigpt draw-attention`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout's minigpt, installed or not
    from minigpt.cli import run

    run("draw-attention")
