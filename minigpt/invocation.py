"""How the commands of minigpt are started: as a process by minigpt itself, and by the user at the terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SCRIPTS = {"prepare": "prepare_data"}  # the commands whose file in scripts/ has another name


def command_line(command: str) -> list[str]:
    """Return the words that start a command as a process: from a checkout or an installed wheel, in any folder."""
    return [sys.executable, str(PACKAGE), command]


def typed(command: str) -> str:
    """Return a command as a user types it: `minigpt sample`, or `python scripts/sample.py` if a script was started.

    If the environment is not active, it begins with the path of the program: `.venv/bin/minigpt sample`.
    """
    folder, started = Path(sys.executable).parent, Path(sys.argv[0])
    if started.parent.resolve() == PACKAGE.parent / "scripts":
        script = started.with_name(f"{SCRIPTS.get(command, command).replace('-', '_')}.py")
        return f"{_program(folder / 'python')} {shlex.quote(_shortened(script))}"
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
    found = shutil.which(path.name)
    if found and Path(found).parent == path.parent:
        return path.name
    shortened = _shortened(path)
    return shlex.quote(shortened if "/" in shortened else f"./{shortened}")


def _shortened(path: Path) -> str:
    path = Path(os.path.abspath(path))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
