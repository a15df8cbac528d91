"""What the page is told: the same numbers as everywhere else."""

import base64

import numpy as np
import pytest
import torch

from minigpt.attention.record import record_attention
from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions, filter_logits
from minigpt.serving.views import distribution, look, next_tokens, pieces, score


def test_pieces_joined_are_the_text(loaded):
    tokens = loaded.tokenizer.encode("naïve 日 x")
    assert "".join(pieces(loaded.tokenizer, tokens)) == "naïve 日 x"
    assert pieces(loaded.tokenizer, tokens[:4]) == ["n", "a", "", "ï"]
    assert pieces(loaded.tokenizer, tokens[:3]) == ["n", "a", "�"]
    assert pieces(loaded.tokenizer, []) == []


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_the_distribution_gives_every_temperature(loaded, temperature):
    logits = torch.randn(257, dtype=torch.float64) * 3
    found = distribution(loaded.tokenizer, logits, 10)
    wanted = filter_logits(logits[None], None, SamplingOptions(temperature=temperature))[0].softmax(-1)
    top = np.array([each["logprob"] for each in found["top"]])
    rest = np.array(found["rest"])
    assert rest[:, 1].sum() == 247
    total = np.exp(top / temperature).sum() + (rest[:, 1] * np.exp(rest[:, 0] / temperature)).sum()
    for each, logprob in zip(found["top"], top, strict=True):
        assert float(np.exp(logprob / temperature) / total) == pytest.approx(float(wanted[each["id"]]), abs=0.01)


def test_the_next_tokens_are_those_after_the_window(loaded):
    tokens = list(range(60))
    found = next_tokens(loaded, tokens)
    logits = loaded.model(torch.tensor([tokens[-15:]]))[0, -1]  # window_start(60, 24) is 45
    assert found["top"][0]["id"] == int(logits.argmax())
    for wrong in ([], [257], [-1]):
        with pytest.raises(UserFault, match="whole number from 0 to 256"):
            next_tokens(loaded, wrong)


def test_scores_are_those_of_evaluate(loaded):
    text = "how much wood would a woodchuck chuck? naïve"
    found = score(loaded, text)
    tokens = loaded.tokenizer.encode(text)
    logits = loaded.model(torch.tensor([tokens[:24]]))[0]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:25]), reduction="none")
    assert [each["nats"] for each in found["tokens"][1:25]] == pytest.approx(losses.tolist(), abs=1e-4)
    assert found["tokens"][0]["nats"] is None
    assert found["nats_per_token"] == pytest.approx(np.mean([each["nats"] for each in found["tokens"][1:]]), abs=1e-4)
    with pytest.raises(UserFault, match="wanted from 2 to 4,096"):
        score(loaded, "a")
    with pytest.raises(UserFault, match="wanted from 2 to 4,096"):
        score(loaded, "a" * 4097)


def test_attention_is_what_the_model_records(loaded):
    text = "how much"
    found = look("tiny", loaded, text)
    with record_attention(loaded.model) as recorded:
        loaded.model(torch.tensor([loaded.tokenizer.encode(text)]))
    raw = np.frombuffer(base64.b64decode(found["attention"]["weights"]), "<u2").reshape(2, 2, 8, 8) / 65535
    wanted = torch.stack([each[0] for each in recorded.values()]).detach().numpy()
    assert np.abs(raw - wanted).max() < 1e-5
    assert (found["attention"]["layers"], found["attention"]["heads"], found["cut"]) == (2, 2, 0)
    assert found["tokens"][3]["nats"] == pytest.approx(score(loaded, text)["tokens"][3]["nats"], abs=1e-3)
    assert look("tiny", loaded, "x" * 40)["cut"] == 16
