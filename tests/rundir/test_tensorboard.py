"""logger=tensorboard with a stub for its writer: the rows it gets, its own faults, the package that is missing."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from minigpt.config.compose import compose
from minigpt.faults import UserFault
from minigpt.rundir.loggers import TensorBoard


class Writer:
    """Stands for torch.utils.tensorboard.SummaryWriter."""

    made: list = []  # noqa: RUF012

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.scalars, self.closed = folder, purge_step, [], False
        self.made.append(self)

    def add_scalar(self, key, value, step):
        if value == -1:
            raise OSError("no space left")
        self.scalars.append((key, value, step))

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    """The writers that are made."""
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name == "tensorboard" or found(name, *more))
    return Writer.made


def test_a_run_hands_over_the_numbers_of_its_rows_and_goes_on_where_it_stands(run, writers):
    path = run("logger=tensorboard", "trainer.max_steps=4")
    run("logger=tensorboard", "trainer.max_steps=6")
    assert [writer.folder for writer in writers] == [str(path / "tensorboard")] * 2
    assert [writer.purge_step for writer in writers] == [1, 5]
    assert all(writer.closed for writer in writers)
    rows = run.rows()
    wanted = [
        (key, value, row["step"])
        for row in rows
        for key, value in row.items()
        if key != "step" and value is not None
    ]  # fmt: skip
    assert [*writers[0].scalars, *writers[1].scalars] == wanted
    assert ("val/loss", rows[-1]["val/loss"], 6) in wanted


def test_a_fault_costs_one_sentence(tmp_path, writers):
    said = []
    board = TensorBoard(tmp_path, step=0, say=said.append)
    board.log(1, {"step": 1, "train/loss": 2.5, "val/loss": None})
    board.log(2, {"step": 2, "train/loss": -1})
    board.log(3, {"step": 3, "train/loss": -1})
    board.close()
    assert writers[0].scalars == [("train/loss", 2.5, 1)]
    assert said == ["TensorBoard gets no more rows, metrics.jsonl has them all (OSError: no space left)"]


def test_a_missing_package_is_named_before_anything_is_written(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(UserFault, match=r"needs the package 'tensorboard'. Type: .* -m pip install tensorboard"):
        compose("train", ["logger=tensorboard"])
    compose("train", [])


def test_the_real_writer_hands_the_rows_to_tensorboard(run):
    """With the extra installed (`make test-extras`)."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = run("logger=tensorboard", "trainer.max_steps=4")
    events = accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [row["step"] for row in run.rows()]


def test_a_writer_that_can_not_begin_costs_one_sentence(run, writers, monkeypatch, capsys):
    def refuse(folder, purge_step):
        raise FileExistsError(17, "File exists", folder)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=refuse))
    run("logger.name=tensorboard", "trainer.max_steps=2")
    assert capsys.readouterr().out.count("TensorBoard gets no more rows, metrics.jsonl has them all") == 1
    assert run.rows()[-1]["step"] == 2
