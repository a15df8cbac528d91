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


@pytest.mark.parametrize(("context", "length", "pieces"), [(64, 128, 512), (512, 512, 128)])
def test_the_pieces_that_judge_a_pilot_fill_its_context(context, length, pieces):
    tokens = np.arange(300_000, dtype=np.uint32) % 251
    part = speed.part_of(TokenSplit("val", build_tokenizer("byte"), [tokens], len(tokens), ""), context)
    windows = part.tokens(0, len(part)).reshape(pieces, length).astype(int)
    assert (np.diff(windows, axis=1) % 251 == 1).all()  # each is a passage of the text
