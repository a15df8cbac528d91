"""A budget's measurement of the machine."""

from types import SimpleNamespace

import numpy as np
import pytest

from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer
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


@pytest.mark.parametrize(("context", "n_tokens", "windows"), [(64, 0, 1008), (512, 0, 127), (128, 100_000, 775)])
def test_each_window_that_judges_a_pilot_is_a_passage_of_the_text(context, n_tokens, windows):
    tokens = np.arange(300_000, dtype=np.uint32) % 251
    split = TokenSplit("val", build_tokenizer("byte"), [tokens], len(tokens), "")
    part = speed.part_of(split, context, n_tokens)
    scored = [batch for batch, _, _ in part.scored_windows(context, 64)]
    assert all(
        (np.diff(batch, axis=1) % 251 == 1).all() for batch in scored
    )  # no token is predicted from another's text
    assert part.predicted(context) == (windows * context, windows * context)
    assert sum(map(len, scored)) == windows
    assert speed.part_of(split, context, 300_000) is split
