"""How large libraries are loaded."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import libraries inside a `with` block in three quarters of the time.

    Torch and Lightning make 600,000 objects that stay. Python would look through them for garbage again and again
    while they come, and once more when the process ends, which takes a second of its own.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
