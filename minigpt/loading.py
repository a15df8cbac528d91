"""How large libraries are loaded."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import libraries inside a `with` block in three quarters of the time.

    Torch and Lightning create 600,000 objects that stay. Python would search them for garbage again and again during
    the import, and once more when the process ends, which takes another second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
