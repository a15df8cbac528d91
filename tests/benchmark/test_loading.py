"""Batches that are timed are those that a run trains on, near and far."""

from types import SimpleNamespace

import pytest
import torch

from minigpt.benchmark import loading
from minigpt.benchmark.steps import batches_of, settle
from minigpt.config.compose import compose


def test_the_batches_are_a_runs_own_from_its_beginning_and_from_far(minute, tokens, monkeypatch):
    streams = []

    def measured(stream, size):
        streams.append((stream.start_step * stream.accumulate, next(iter(stream)), size))
        return 1.0

    monkeypatch.setattr(loading, "speed", measured)
    arguments = minute.arguments(tokens, "trainer.micro_batch=2")  # two of them a step
    found = loading.measure({"arguments": arguments, "rounds": 1})
    config = compose("train", arguments)
    batches = batches_of(config, *settle(config))
    far = 2 * loading.FAR
    assert [start for start, *_ in streams] == [0, far]
    for start, batch, size in streams:
        assert size == batch.tokens.numel() == 2 * 8
        assert torch.equal(batch.tokens, batches[start].tokens)
        assert torch.equal(batch.targets, batches[start].targets)
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
