"""How the commands of minigpt are started: as a process by minigpt itself, and by the user at the terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def command_line(command: str) -> list[str]:
    """Return the words that start a command as a process: from a checkout or an installed wheel, in any folder."""
    return [sys.executable, str(PACKAGE), command]


def typed(command: str) -> str:
    """Return a command as a user types it: `minigpt sample`, or `.venv/bin/minigpt sample` in no active environment."""
    folder = Path(sys.executable).parent
    if (folder / "minigpt").is_file():
        return f"{_program(folder / 'minigpt')} {command}"
    return f"{_program(folder / 'python')} -m minigpt {command}"


def typed_words() -> list[str]:
    """Return the command line of this process as it was typed, for the record of a run."""
    started = Path(sys.argv[0])
    if started.name == "minigpt":
        return ["minigpt", *sys.argv[1:]]
    return ["python", *(("-m", "minigpt") if started == PACKAGE / "__main__.py" else sys.argv[:1]), *sys.argv[1:]]


def _program(path: Path) -> str:
    """Return the name of a program if the shell finds it by its name, else its path."""
    if shutil.which(path.name) == str(path):
        return path.name
    folder = Path.cwd()
    return shlex.quote(str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path))
