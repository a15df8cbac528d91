"""What the page is told: the same numbers as everywhere else."""

import base64

import numpy as np
import pytest
import torch

from minigpt.attention.record import record_attention
from minigpt.data.tokenizer import pieces
from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions, filter_logits
from minigpt.serving.views import distribution, kinds, lens, look, next_tokens, score


def test_pieces_joined_are_the_text(loaded):
    tokens = loaded.tokenizer.encode("naïve 日 x")
    assert "".join(pieces(loaded.tokenizer, tokens)) == "naïve 日 x"
    assert pieces(loaded.tokenizer, tokens[:4]) == ["n", "a", "", "ï"]
    assert pieces(loaded.tokenizer, tokens[:3]) == ["n", "a", "�"]
    assert pieces(loaded.tokenizer, []) == []


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_the_distribution_gives_every_temperature(loaded, temperature):
    logits = torch.randn(257, dtype=torch.float64) * 3
    answer = distribution(loaded.tokenizer, logits, 10)
    wanted = filter_logits(logits[None], None, SamplingOptions(temperature=temperature))[0].softmax(-1)
    top = np.array([entry["logprob"] for entry in answer["top"]])
    rest = np.array(answer["rest"])
    assert rest[:, 1].sum() == 247
    total = np.exp(top / temperature).sum() + (rest[:, 1] * np.exp(rest[:, 0] / temperature)).sum()
    for entry, logprob in zip(answer["top"], top, strict=True):
        assert float(np.exp(logprob / temperature) / total) == pytest.approx(float(wanted[entry["id"]]), abs=0.01)


def test_the_next_tokens_are_those_after_the_window(loaded):
    tokens = list(range(60))
    answer = next_tokens(loaded, tokens)
    logits = loaded.model(torch.tensor([tokens[-15:]]))[0, -1]  # window_start(60, 24) is 45
    assert answer["top"][0]["id"] == int(logits.argmax())
    for wrong in ([], [257], [-1]):
        with pytest.raises(UserFault, match="whole number from 0 to 256"):
            next_tokens(loaded, wrong)


def test_scores_are_those_of_evaluate(loaded):
    text = "how much wood would a woodchuck chuck? naïve"
    answer = score(loaded, text)
    tokens = loaded.tokenizer.encode(text)
    logits = loaded.model(torch.tensor([tokens[:24]]))[0]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:25]), reduction="none")
    assert [entry["nats"] for entry in answer["tokens"][1:25]] == pytest.approx(losses.tolist(), abs=1e-4)
    assert answer["tokens"][0]["nats"] is None
    assert answer["nats_per_token"] == pytest.approx(np.mean([row["nats"] for row in answer["tokens"][1:]]), abs=1e-4)
    with pytest.raises(UserFault, match="at least 2"):
        score(loaded, "a")
    with pytest.raises(UserFault, match="wanted at most 4,096"):
        score(loaded, "a" * 4097)


def test_attention_is_what_the_model_records(loaded):
    text = "how much"
    answer = look("tiny", loaded, text)
    with record_attention(loaded.model) as recorded:
        loaded.model(torch.tensor([loaded.tokenizer.encode(text)]))
    raw = np.frombuffer(base64.b64decode(answer["attention"]["weights"]), "<u2").reshape(2, 2, 8, 8) / 65535
    wanted = torch.stack([entry[0] for entry in recorded.values()]).detach().numpy()
    assert np.abs(raw - wanted).max() < 1e-5
    assert (answer["attention"]["layers"], answer["attention"]["heads"], answer["cut"]) == (2, 2, 0)
    assert answer["tokens"][3]["nats"] == pytest.approx(score(loaded, text)["tokens"][3]["nats"], abs=1e-3)
    assert look("tiny", loaded, "x" * 40)["cut"] == 16
    loaded.tokenizer.start = [256]  # as an imported Llama's, before each text
    answers = [answer["tokens"] for answer in (look("tiny", loaded, text), score(loaded, text))]
    assert [[round(token["nats"], 3) for token in tokens[1:]] for tokens in answers] == 2 * [
        [round(token["nats"], 3) for token in answers[1][1:]]
    ]
    assert len(answers[0]) == 9


def test_the_kinds_of_heads_are_of_the_text_and_of_repeated_tokens(loaded):
    text = "how much wood"
    with record_attention(loaded.model) as recorded:
        loaded.model(torch.tensor([loaded.tokenizer.encode(text)]))
    weights = torch.stack([entry[0] for entry in recorded.values()])
    answer = kinds(loaded, text)
    for layer, head in ((0, 1), (1, 0)):
        one, scores = answer[layer][head], weights[layer, head]
        assert one["previous"] == pytest.approx(np.mean([float(scores[i, i - 1]) for i in range(2, 13)]), abs=1e-3)
        assert one["first"] == pytest.approx(np.mean([float(scores[i, 0]) for i in range(2, 13)]), abs=1e-3)
        assert 0 < one["induction"] < 1
        assert one["kind"] in ("", max(("previous", "first", "induction"), key=one.get))
    assert kinds(loaded, "a")[0][0].keys() == {"induction", "kind"}  # too short for the others
    assert [[head["induction"] for head in layer] for layer in kinds(loaded, "other")] == [
        [head["induction"] for head in layer] for layer in answer
    ]


def test_the_last_layers_lens_is_the_model_and_the_first_ones_its_embedding(loaded):
    text = "how much"
    tokens, view = loaded.tokenizer.encode(text), look("tiny", loaded, text)
    answer = lens(loaded, text)
    assert [len(layer) for layer in answer] == [7, 7, 7]  # the embedding and two layers
    for said, token in zip(answer[-1], view["tokens"][1:], strict=True):
        assert said["nats"] == pytest.approx(token["nats"], abs=1e-3)
        assert said["top"] == token["top"][0]["text"]
        better = [entry for entry in token["top"] if entry["logprob"] > -token["nats"] + 1e-3]
        assert said["rank"] == len(better) + 1 or len(better) == 12
    model = loaded.model
    embedded = model.token_embedding(torch.tensor(tokens)) + model.position_embedding(torch.arange(len(tokens)))
    logprobs = model.logits(model.final_norm(embedded)).log_softmax(-1).detach()
    assert answer[0][2]["nats"] == pytest.approx(-float(logprobs[2, tokens[3]]), abs=1e-3)
    assert lens(loaded, "a") == [[], [], []]
