"""`python -m minigpt COMMAND`: the same as `minigpt COMMAND`. Run by its path it needs no installed minigpt."""

import sys
from pathlib import Path

if not __package__:  # `python path/to/minigpt`: the first entry of the path is this folder, not the one above it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from minigpt.cli import main

if __name__ == "__main__":
    main()
