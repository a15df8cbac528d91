"""A budget's measurement of the machine."""

from types import SimpleNamespace

import pytest

from minigpt.training import speed
from minigpt.training.step import LanguageModel


@pytest.mark.parametrize("seconds_of_a_step", [0.05, 0.9, 3.0])
def test_a_pause_of_the_machine_does_not_count(monkeypatch, seconds_of_a_step):
    now, trainer, module = [0.0], SimpleNamespace(should_stop=False), object.__new__(LanguageModel)
    module.__dict__["state"] = SimpleNamespace(step=0)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])
    watch = speed.Stopwatch(2.0)
    while not trainer.should_stop:
        for _ in range(2):  # micro-batches
            watch.on_train_batch_end(trainer, module)
        module.__dict__["state"].step += 1
        now[0] += seconds_of_a_step + (0.7 if module.state.step == 9 else 0.0)
    assert watch.steps_per_second == pytest.approx(1 / seconds_of_a_step)
    assert module.state.step >= speed.WARM_UP_STEPS + 1
