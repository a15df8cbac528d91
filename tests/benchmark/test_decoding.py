"""Writers: they write what is asked for, and speeds follow from what they wrote."""

import sys
from types import SimpleNamespace

import pytest
import torch

from minigpt.benchmark import decoding
from minigpt.benchmark.settings import read_plan
from minigpt.benchmark.steps import new_model, settle
from minigpt.checkpoint.load import load_checkpoint
from minigpt.checkpoint.store import verify
from minigpt.config.compose import compose

GENERATE = """
    def generate(self, ids, new, temperature):
        for _ in range(new):
            logits = self.forward(ids[:, -8:], ids[:, -8:])[0][:, -1] / temperature
            ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1)), 1)
        return ids
"""


@pytest.fixture
def new_weights(minute, tokens, tmp_path):
    """(checkpoint, the model whose weights it holds)."""
    config = compose("train", minute.arguments(tokens))
    prepared, choices = settle(config)
    gpt = new_model(config, choices, prepared.tokenizer.vocab_size)
    return decoding.write_new(tmp_path / "new", gpt, config, prepared), gpt


def test_new_weights_are_a_checkpoint_that_anybody_can_load(new_weights):
    checkpoint, gpt = new_weights
    verify(checkpoint)
    loaded = load_checkpoint(checkpoint)
    assert loaded.tokenizer.vocab_size == 65
    theirs = loaded.model.state_dict()
    assert all(torch.equal(theirs[name], weight) for name, weight in gpt.state_dict().items())


def test_our_writers_write_as_many_tokens_as_asked_for(new_weights):
    writers, _ = decoding.our_writers(new_weights[0], "cpu", seed=1)
    assert list(writers) == ["minigpt fp32", "minigpt bf16", "minigpt int8"]
    for name, writer in writers.items():
        assert writer([[1, 2], [3, 4], [5, 6]], 4) == 12, name


@pytest.mark.parametrize("wrap", [decoding.nanogpt_writer, decoding.huggingface_writer])
@pytest.mark.parametrize("missing", [0, 1])
def test_others_are_counted_by_what_they_gave_back(wrap, missing):
    asked = {}

    def generate(ids, *places, **options):
        asked.update(options)
        new = options.get("max_new_tokens") or places[0]
        return torch.cat((ids, torch.zeros(len(ids), new - missing, dtype=torch.long)), 1)

    written = wrap(SimpleNamespace(generate=generate), "cpu")([[1, 2], [3, 4]], 5)
    assert written == 2 * (5 - missing)
    assert asked["temperature"] == 0.8


@pytest.mark.parametrize(
    ("prefill", "expected"),
    [
        (3.0, 2 * 9 / (9 * 0.5)),  # the step's own speed
        (60.0, 2 * 10 / (60 + 9 * 0.5)),  # the first token is nearly all: nothing is subtracted
    ],
)
def test_speed_is_that_of_the_steps_after_the_first_token(monkeypatch, prefill, expected):
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(decoding, "time", clock)

    def writer(prompts, new):
        clock.now += prefill + 0.5 * (new - 1)
        return len(prompts) * new

    speed, first = decoding.speed(writer, [[1], [2]], 10)
    assert (speed, first) == (pytest.approx(expected), prefill)


def test_all_stays_within_the_context():
    assert decoding.lengths(1024, 64) == (16, 64)
    assert decoding.lengths(64, 500) == (16, 48)
    assert decoding.lengths(8, 500) == (2, 6)


def test_nanogpt_is_spared_what_would_take_it_minutes():
    found = {}
    for preset in ("c0", "c1", "124m"):
        plan = read_plan([f"preset={preset}"])
        sizes = decoding.lengths(plan.config.model.block_size, plan.new_tokens)
        found[preset] = [batch for batch in (1, 8, 32) if not decoding.too_long(plan.config, "cpu", batch, sizes)]
    assert found == {"c0": [1, 8, 32], "c1": [1], "124m": [1]}


@pytest.mark.parametrize("able", [True, False])
def test_a_round_measures_everybody_and_names_who_could_not(able, minute, tokens, tmp_path, checkout, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    monkeypatch.setattr(decoding, "BATCHES", (1, 2))
    monkeypatch.setattr(decoding, "MIN_SECONDS", 0.001)
    if able:
        text = (checkout / "model.py").read_text()
        (checkout / "model.py").write_text(text + GENERATE)
    task = {"checkpoints": str(tmp_path / "new"), "new": 4, "checkout": str(checkout), "huggingface": False}
    found = decoding.measure({"arguments": minute.arguments(tokens), **task})
    monkeypatch.delitem(sys.modules, "model", raising=False)
    names = ["minigpt fp32", "minigpt bf16", "minigpt int8", *(["nanoGPT fp32"] if able else [])]
    assert [row[:2] for row in found["rows"]] == [[name, batch] for batch in (1, 2) for name in names]
    assert all(speed > 0 and first > 0 for _, _, speed, first in found["rows"])
    assert (found["prompt"], found["new"]) == (2, 4)
    if able:
        assert found["left_out"] == []
    else:
        (reason,) = found["left_out"]
        assert reason.startswith("nanoGPT fp32 from batch 1 on: AttributeError: ")
        assert "generate" in reason
