"""A finished run, and a copy of it that a stranger may have changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.training.run import train
from tests.security.stranger import ROOT, TINY, arguments, copy


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A finished run with its text and tokens."""
    place = tmp_path_factory.mktemp("made")
    (place / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(200)))
    assert train(compose("train", arguments(place))) == 0
    return place


@pytest.fixture
def foreign(made, tmp_path) -> Path:
    """A copy of it, which a stranger may have changed."""
    return copy(made, tmp_path)


@pytest.fixture(scope="session")
def watched(made, tmp_path_factory) -> str:
    """What the process printed that was watched while it trained, sampled and used a stranger's run."""
    place = tmp_path_factory.mktemp("watched")
    own, strangers = (copy(made, place / name) for name in ("own", "strangers"))
    script = Path(__file__).with_name("watched_process.py")
    done = subprocess.run(
        [sys.executable, str(script), str(own), str(strangers), *TINY],
        capture_output=True, text=True, cwd=place, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
