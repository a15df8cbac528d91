"""Batches that are timed are those that a run trains on, near and far."""

from types import SimpleNamespace

import pytest
import torch

from minigpt.benchmark import loading
from minigpt.benchmark.steps import batches_of, settle


def test_the_batches_are_a_runs_own_from_its_beginning_and_from_far(config, monkeypatch):
    streams = []

    def measured(batches, size):
        streams.append((batches.start_step, next(iter(batches)), size))
        return 1.0

    monkeypatch.setattr(loading, "speed", measured)
    task = {"config": config({"trainer.micro_batch": 2}), "rounds": 1}  # two of them a step
    found = loading.measure(task)
    batches = batches_of(*settle(task))
    assert [start for start, *_ in streams] == [0, loading.FAR]
    for start, batch, size in streams:
        assert size == batch.tokens.numel() == 2 * 8
        assert torch.equal(batch.tokens, batches[2 * start].tokens)
        assert torch.equal(batch.targets, batches[2 * start].targets)
    assert not torch.equal(streams[0][1].tokens, streams[1][1].tokens)
    assert [name for name, _ in found["rows"]] == ["from step 0", "from step 1,000,000"]


def test_speed_counts_the_batches_after_the_first(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(loading, "time", clock)

    def stream():
        clock.now += 100.0  # a first batch may take its time
        while True:
            yield None
            clock.now += 0.125

    assert loading.speed(stream(), 40) == pytest.approx(40 / 0.125)


@pytest.mark.parametrize("need", [None, 250.0])
def test_loading_is_set_against_trainings_need_where_that_is_known(need, tiny, bench_of, monkeypatch):
    bench = bench_of(tiny)
    bench.tokens_per_second = need
    found = {"batch_tokens": 500, "rows": [["here", [1000.0, 3000.0, 2000.0]]]}
    monkeypatch.setattr(bench, "measure", lambda *_, **__: found)
    row = [cell.strip() for cell in loading.loading(bench).text.splitlines()[2].strip("|").split("|")]
    assert row == ["here", "2,000", "1,000", "3,000", "250.000", "8.0" if need else "?"]
