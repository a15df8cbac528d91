"""A finished run, and a copy of it that a stranger may have changed."""

from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.training.run import train
from tests.security.stranger import arguments, copy


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
