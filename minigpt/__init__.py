"""minigpt: train small GPTs you can read, fast, without ever losing a step."""

import os

__version__ = "0.1.0"

# OpenMP's threads wait for each other by spinning. On a machine that does something else as well they burn the very
# cores they wait for, and training slows down tenfold; with a shorter wait it does not, and an idle machine is as
# fast as before. Read when torch is loaded, so it is set before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
