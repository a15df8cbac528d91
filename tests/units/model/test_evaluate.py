"""Whole-split evaluation: every token but the first predicted once, weighted by tokens, in honest bytes."""

import numpy as np
import pytest
import torch
from torch import nn

from minigpt.config.schema import ModelConfig
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.model.evaluate import evaluate, nats_and_right, token_losses
from minigpt.model.gpt import GPT

BYTE = build_tokenizer("byte")


def split_of(tokens, n_bytes: int = 0) -> TokenSplit:
    return TokenSplit("val", BYTE, [np.asarray(tokens)], n_bytes, "")


class Bigram(nn.Module):
    """Logits that depend on the last token only, so a grid can't change the answer."""

    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size, dtype=torch.float64))

    def forward(self, tokens):
        return self.table[tokens]


@pytest.mark.parametrize("stride", [1, 3, 6, 7])
def test_with_a_stride_every_token_is_predicted_once_with_so_much_before_it(stride):
    for length in (2, 5, 7, 8, 9, 12, 30, 33):
        predicted = []
        for windows, new, _ in split_of(range(length)).scored_windows(7, 2, stride):
            assert windows.shape[1] <= 8
            for window in windows.tolist():
                assert window == list(range(window[0], window[-1] + 1))
                assert window[-new] - window[0] >= min(window[-new], 7 - stride + 1)  # before the first predicted
                predicted += window[-new:]
        assert predicted == list(range(1, length)), length


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_score_equals_a_plain_sum_for_any_number_of_processes(world_size):
    torch.manual_seed(3)
    tokens = torch.randint(11, (83,))
    split, model = split_of(tokens, 190), Bigram(11)
    wanted = -model.table.log_softmax(-1)[tokens[:-1], tokens[1:]].sum().item()
    model.train()
    options = {"block_size": 9, "document_end": None, "batch": 2, "device": "cpu", "precision": "fp32"}
    scores = [evaluate(model, split, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    assert model.training
    assert sum(score.nats for score in scores) == pytest.approx(wanted, rel=1e-6)
    assert {(score.tokens, score.bytes) for score in scores} == {(82, 189)}  # all but the first token, a byte


@pytest.mark.parametrize("stride", [None, 5])
def test_logits_of_a_large_context_are_made_in_pieces(monkeypatch, stride):
    torch.manual_seed(3)
    model = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=16), 37)
    split, sizes = split_of(torch.randint(37, (83,))), []

    def measure(logits, targets):
        sizes.append(len(logits))
        return nats_and_right(logits, targets)

    def measured():
        sizes.clear()
        options = {"block_size": 16, "batch": 1, "device": "cpu", "precision": "fp32", "stride": stride}
        return torch.cat(list(token_losses(model, split, measure=measure, **options)))

    whole = measured()
    assert max(sizes) == 16
    monkeypatch.setattr("minigpt.model.evaluate.MAX_LOGITS", 37 * 3)
    torch.testing.assert_close(measured(), whole)
    assert max(sizes) == 3
