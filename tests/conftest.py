"""For every test: one torch thread, no time limit per hypothesis example, and a tiny run to start at will.

Nothing here loads torch: the process that hands the tests out to others (`-n 2`) needs none.
"""

import contextlib
import functools
import gc
import importlib.metadata
import io
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub, nor does a process that one starts

import pytest
from hypothesis import HealthCheck, settings

from minigpt.config.compose import compose

gc.disable()  # until all tests are loaded, as minigpt/cli.py does it
# Lightning reads the metadata of all packages for each Trainer, and a run asks git for its commit: here once.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
settings.register_profile(
    "minigpt", deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("minigpt")

LETTERS = "aZ09 .,'\n\r\t{}$\\\x00\x7féß—\u0301\u2028中。한กি🙂"  # hypothesis' table of all takes 1.5 s to make
TINY = shlex.split(
    "data=text tokenizer=byte model=gpt-nano model.n_layer=1 model.n_embd=16 model.n_head=2 "
    "model.block_size=8 batch_tokens=64 trainer.max_steps=6 trainer.device=cpu trainer.threads=1 "
    "trainer.precision=fp32 schedule.warmup_steps=1 validate.every_steps=2 checkpoint.every_steps=100 "
    "samples.every_steps=0 logger.every_steps=2"
)


def printed(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the lines that it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = work()
    return result, out.getvalue().splitlines()


def running(session: int) -> list[str]:
    """The processes of a session that are not zombies."""
    ps = subprocess.run(["ps", "-o", "stat=,pid=,comm=", "-g", str(session)], capture_output=True, text=True)
    return [line for line in ps.stdout.splitlines() if line[0] != "Z"]


class TinyRun:
    """Trains in a folder; the same folder again continues the run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "run"
        (folder / "text.txt").write_text("how much wood would a woodchuck chuck if " * 30)

    def __call__(self, *extra: str, code: int = 0, callbacks: Sequence[Any] = ()) -> Path:
        from minigpt.training.run import train

        assert train(compose("train", self.arguments(*extra)), callbacks) == code
        return self.path

    def continued(self, *extra: str) -> Path:
        """Trains, and again from the second step on in a copy, which must end with the same bytes."""
        from minigpt.verify import compare_runs

        extra = (*extra, "checkpoint.every_steps=2", "checkpoint.keep_last=9")
        straight = self(*extra).rename(self.path.with_name("straight"))
        shutil.copytree(straight, self.path)
        for later in sorted(self.path.glob("checkpoints/step-*"))[1:]:
            shutil.rmtree(later)
        self(*extra)
        assert compare_runs(straight, self.path)[1] == []
        return self.path

    def arguments(self, *extra: str) -> list[str]:
        """Of scripts/train.py."""
        where = [f"data.source={self.folder / 'text.txt'}", f"data.dir={self.folder / 'data'}", f"run.dir={self.path}"]
        return [*TINY, *where, *extra]

    def rows(self) -> list[dict]:
        return _json_lines(self.path / "metrics.jsonl")

    def events(self) -> list[dict]:
        return _json_lines(self.path / "events.jsonl")


def _json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_flush():
    """A disk takes longer to flush a file than a tiny run to train; what is flushed when, test_power_loss.py says."""
    from minigpt.rundir import run_directory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(run_directory, "commit", functools.cache(run_directory.commit))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_report():
    """Drawing a report takes longer than a tiny run: a test that looks at one is marked `report`."""
    from minigpt.training import finish

    real = finish.write_report, finish.keep_token_losses
    finish.write_report, finish.keep_token_losses = lambda path: None, lambda job: None
    return real


@pytest.fixture(autouse=True)
def _report(request, monkeypatch, _no_report):
    if request.node.get_closest_marker("report"):
        monkeypatch.setattr("minigpt.training.finish.write_report", _no_report[0])
        monkeypatch.setattr("minigpt.training.finish.keep_token_losses", _no_report[1])


@pytest.fixture
def no_group_left():
    """For tests that form a group of processes within this one."""
    import torch.distributed as dist

    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def finished(tmp_path) -> Path:
    """A run directory as training leaves it."""
    from tests.units.report.run_folder import write_run

    return write_run(tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(tmp_path) -> TinyRun:
    return TinyRun(tmp_path)


@pytest.fixture(scope="session")
def new_run() -> type[TinyRun]:
    """For runs that several tests share: new_run(folder)."""
    return TinyRun
