"""Files that are replaced whole: a reader sees the old one or the new one."""

import os
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file beside `path`, then put it in its place. If it fails, nothing is left."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
