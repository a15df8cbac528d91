"""Runs whose documents are kept apart: training, validation, evaluation and comparison follow one rule."""

import json
import math

import pytest
import torch

import minigpt
from minigpt.config.compose import compose
from minigpt.data.preparing.prepare import prepare
from minigpt.evaluation.evaluate import evaluate
from minigpt.faults import UserFault

MASKED = "data.mask_documents=true"


@pytest.fixture
def notes(run):
    """Trains on short documents; arguments as of TinyRun."""
    texts = [f"note {n}: {'ab' * (n % 5)}" for n in range(140)]
    source = run.folder / "notes.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def start(name, *extra, train=run):
        run.path = run.folder / name
        return train(f"data.source={source}", "trainer.precision=fp64", *extra)

    start.run, start.source = run, source
    return start


def losses_by_hand(gpt, tokens, end):
    """(place, nats) of each token that is predicted: window by window, and each document's part of one alone."""
    T = gpt.model.config.block_size
    for start in range(0, len(tokens) - 1, T):
        window = tokens[start : start + T + 1]
        ends = [place + 1 for place, token in enumerate(window) if token == end]
        for first, last in zip([0, *ends], [*ends, len(window)], strict=True):
            part = window[first:last]
            if len(part) > 1:
                logits = gpt.model(torch.tensor([part[:-1]]))[0].double().log_softmax(-1)
                for place, token in enumerate(part[1:], 1):
                    yield start + first + place, -logits[place - 1, token].item()


def test_the_validation_loss_is_that_of_documents_alone(notes):
    path = notes("masked", MASKED, "trainer.max_steps=4")
    gpt = minigpt.load(path)
    prepared = prepare(gpt.config.data, gpt.config.tokenizer)
    tokens, end = prepared.val.tokens(0, len(prepared.val)).tolist(), prepared.tokenizer.eot
    with torch.no_grad():
        found = dict(losses_by_hand(gpt, tokens, end))
    assert found.keys() == {place for place in range(1, len(tokens)) if tokens[place - 1] != end}
    row = notes.run.rows()[-1]
    assert row["val/loss"] == pytest.approx(sum(found.values()) / len(found), rel=1e-6)
    n_bytes = sum(len(prepared.tokenizer.token_bytes(tokens[place])) for place in found)
    assert row["val/bits_per_byte"] == pytest.approx(sum(found.values()) / math.log(2) / n_bytes, rel=1e-6)

    # The same text as a file to score, and from Python.
    text = prepared.tokenizer.decode_bytes([token if token != end else 10 for token in tokens]).decode()
    held_out = notes.run.folder / "held_out.jsonl"
    held_out.write_text("".join(json.dumps({"text": document}) + "\n" for document in text.split("\n")))
    out, per_token = notes.run.folder / "out.json", notes.run.folder / "tokens.jsonl"
    words = [f"checkpoint={path}", f"file={held_out}", "device=cpu", f"json={out}", f"per_token={per_token}"]
    evaluate(compose("evaluate", words))
    figures = json.loads(out.read_text())
    assert figures["nats_per_token"] == pytest.approx(row["val/loss"], rel=1e-5)
    assert (figures["tokens"], figures["bytes"]) == (len(found), n_bytes)
    each = [json.loads(line)["nats"] for line in per_token.read_text().splitlines()]
    assert {place for place, nats in enumerate(each) if nats is not None} == found.keys()


def test_masks_change_what_is_learned_and_an_interrupted_run_ends_with_the_same_bytes(notes):
    whole, plain = notes("whole", MASKED, train=notes.run.continued), notes("plain")
    weights = [path / "checkpoints" / "step-000000006" / "model.safetensors" for path in (whole, plain)]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    with pytest.raises(UserFault, match="mask_documents: True -> False"):
        notes("whole", "trainer.max_steps=7")


@pytest.mark.parametrize("attention", ["rotary", "linear"])
def test_a_step_is_the_same_however_it_is_cut(notes, attention):
    rows = []
    for micro_batch in (0, 1, 4):
        options = [MASKED, f"model.attention={attention}", "trainer.max_steps=2", f"trainer.micro_batch={micro_batch}"]
        notes(f"in {micro_batch}", *options, "logger.every_steps=1")
        rows.append([(row["train/loss"], row["train/grad_norm"]) for row in notes.run.rows()])
    for first, *others in zip(*rows, strict=True):
        assert all(other == pytest.approx(first, rel=1e-12) for other in others)
