"""Small trained runs to score with, made once."""

from pathlib import Path

import pytest

import minigpt

OWN = {"bpe": ["tokenizer=bpe", "tokenizer.vocab_size=280"], "char": ["tokenizer=char"]}


@pytest.fixture(scope="package")
def runs(tmp_path_factory, new_run) -> dict[str, Path]:
    """Runs of one text by name: byte, bpe and char."""
    learn = ["optimizer.lr=1e-2", "trainer.max_steps=30"]
    return {name: new_run(tmp_path_factory.mktemp(name))(*OWN.get(name, ()), *learn) for name in ("byte", *OWN)}


@pytest.fixture(scope="package")
def byte(runs) -> minigpt.TrainedGPT:
    return minigpt.load(runs["byte"])


@pytest.fixture
def text(tmp_path) -> Path:
    """A file to score."""
    path = tmp_path / "test.txt"
    path.write_text("a woodchuck would chuck wood " * 30 + "if a wood")
    return path
