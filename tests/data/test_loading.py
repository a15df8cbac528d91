"""Micro-batches come in order, whatever becomes of the processes that make them."""

import contextlib
import multiprocessing
import os
import signal
from itertools import islice

import pytest
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from minigpt.data import loading
from minigpt.data.loading import Loading
from minigpt.faults import UserFault


class Squares(Dataset):
    """index -> its square. At `fatal` the process that makes it is killed; at `wrong` it raises."""

    def __init__(self, fatal: int = -1, wrong: int = -1):
        self.fatal, self.wrong = fatal, wrong

    def __getitem__(self, index: int) -> int:
        if index == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.wrong:
            raise ValueError("no such square")
        return index * index


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Look after the workers often, not every 5 s, when nothing comes."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.05,))
    monkeypatch.setattr(loading, "DYING_SECONDS", 0.2)


def end(pid: int, number: int) -> None:
    """Kill a child and wait until it is dead; whoever waits for it later can."""
    os.kill(pid, number)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_from_the_start_that_is_asked_for(workers):
    loader = Loading(Squares(), start=3, workers=workers, on_loss=pytest.fail)
    with contextlib.closing(iter(loader)) as batches:
        assert list(islice(batches, 6)) == [9, 16, 25, 36, 49, 64]


@pytest.mark.parametrize("victims", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_worker_disturbs_nothing_and_no_batch_is_lost_or_doubled(victims, number):
    others = set(multiprocessing.active_children())
    told: list[str] = []
    with contextlib.closing(iter(Loading(Squares(), start=0, workers=2, on_loss=told.append))) as batches:
        got = list(islice(batches, 5))
        workers = sorted({worker.pid for worker in set(multiprocessing.active_children()) - others})
        assert len(workers) == 2
        for pid in workers[:victims]:
            end(pid, number)
        for _ in range(1000):  # torch's own handler would raise in here
            pass
        got += islice(batches, 20)
    assert got == [index * index for index in range(25)]
    assert len(told) == 1
    how = "killed by signal 9" if number == signal.SIGKILL else "exit code 0"  # torch's way to obey its parent
    assert how in told[0]


def test_a_worker_that_dies_over_and_over_ends_with_a_sentence(monkeypatch):
    monkeypatch.setattr(loading, "MAX_LOSSES", 2)
    told: list[str] = []
    got: list[int] = []
    batches = iter(Loading(Squares(fatal=7), start=2, workers=2, on_loss=told.append))
    with pytest.raises(UserFault, match=r"3 times within 1000.*data.workers=0"):
        got.extend(batches)
    # The worker that dies may take ready batches with it, so it depends on the machine how many came out.
    assert got == [4, 9, 16, 25, 36][: len(got)]
    assert len(told) == 2


def test_losses_that_lie_far_apart_are_forgiven(monkeypatch):
    monkeypatch.setattr(loading, "WITHIN", 3)
    monkeypatch.setattr(loading, "MAX_LOSSES", 1)
    told: list[str] = []
    with contextlib.closing(iter(Loading(Squares(), start=0, workers=1, on_loss=told.append))) as batches:
        others = set(multiprocessing.active_children())
        got = [next(batches)]
        for _ in range(3):
            (worker,) = set(multiprocessing.active_children()) - others
            end(worker.pid, signal.SIGKILL)
            got += islice(batches, 4)
    assert got == [index * index for index in range(13)]
    assert len(told) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_of_ours_is_not_taken_for_a_lost_worker(workers):
    with pytest.raises(ValueError, match="no such square"):
        list(Loading(Squares(wrong=4), start=0, workers=workers, on_loss=pytest.fail))
