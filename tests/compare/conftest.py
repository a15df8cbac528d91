"""Small trained runs to compare, made once."""

from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.training import finish
from minigpt.training.run import train

SETTINGS = [
    "data=text",
    "tokenizer=byte",
    "model=gpt-nano",
    "model.n_layer=1",
    "model.n_embd=16",
    "model.n_head=2",
    "model.block_size=8",
    "batch_tokens=128",
    "trainer.max_steps=40",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "schedule.warmup_steps=1",
    "validate.every_steps=40",
    "samples.every_steps=0",
    "optimizer.lr=1e-2",
]

RUNS = {
    "a1": ["seed=1"],
    "a2": ["seed=2"],
    "b1": ["seed=1", "optimizer.lr=1e-4"],
    "b2": ["seed=2", "optimizer.lr=1e-4"],
    "again": ["seed=1", "logger.every_steps=7"],
    "long": ["seed=1", "model.block_size=16"],
    "char": ["seed=1", "tokenizer=char"],
    "other": ["seed=1", "data.source=other.txt"],
}


@pytest.fixture(scope="package")
def place(tmp_path_factory) -> Path:
    """A folder with text.txt, other.txt, data/ and the runs."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "text.txt").write_text("".join(f"the {n}th of {n * n % 17} wörds\n" for n in range(600)))
    (folder / "other.txt").write_text("how much wood would a woodchuck chuck\n" * 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_report", lambda path: None)
        for name, own in RUNS.items():
            source = "other.txt" if name == "other" else "text.txt"
            where = [f"data.source={folder / source}", f"data.dir={folder / 'data'}", f"run.dir={folder / name}"]
            assert train(compose("train", [*SETTINGS, *(each for each in own if "source" not in each), *where])) == 0
    return folder
