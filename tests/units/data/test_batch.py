"""Batches: the windows of the data order, dealt to ranks and micro-batches, with or without weights."""

import numpy as np
import pytest
import torch

from minigpt.attention.masks import find_documents
from minigpt.data.batch import Batch, MicroBatches
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer


class Squares(TokenSplit):
    """A split made on the spot: token n is n * n; its weight n, if it has weights."""

    def __init__(self, *, weighted: bool = False):
        super().__init__("train", build_tokenizer("byte"), [np.arange(101) ** 2], 101, "")
        self.weighted = weighted

    def weights(self, starts, length):
        return (starts[:, None] + np.arange(length)).astype(np.float32) if self.weighted else None


def batches(split=None, **more) -> MicroBatches:
    keys = {"seed": 3, "block_size": 5, "micro_batch": 2, "accumulate": 3} | more
    return MicroBatches(split or Squares(), **keys)


def test_targets_are_the_tokens_one_place_later():
    batch = batches()[4]
    starts = Squares().window_starts(1, seed=3, block_size=5, sequences=6)[2:4]
    assert batch.tokens.tolist() == [[(start + place) ** 2 for place in range(5)] for start in starts]
    assert batch.targets.tolist() == [[(start + place + 1) ** 2 for place in range(5)] for start in starts]
    assert batch.weights is None


def test_weights_are_those_of_the_targets():
    batch = batches(Squares(weighted=True))[7]
    assert torch.equal(batch.weights**2, batch.targets.float())


@pytest.mark.parametrize("weighted", [False, True])
def test_what_follows_an_end_of_text_is_no_target_where_documents_are_kept_apart(weighted):
    plain, apart = batches(Squares(weighted=weighted))[4], batches(Squares(weighted=weighted), document_end=100)[4]
    assert torch.equal(apart.tokens, plain.tokens)
    assert torch.equal(apart.targets, plain.targets)
    assert (apart.tokens == 100).sum() == 1
    counts = plain.weights if weighted else torch.ones(2, 5)
    assert torch.equal(apart.weights, torch.where(apart.tokens == 100, 0.0, counts))
    assert torch.equal(apart.documents.positions, find_documents(apart.tokens, 100).positions)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_moves_whole(weighted):
    batch = batches(Squares(weighted=weighted), document_end=1 if weighted else None)[0].to("meta")
    parts = [batch.tokens, batch.targets] + ([batch.weights, *batch.documents] if weighted else [])
    assert isinstance(batch, Batch)
    assert all(part.device.type == "meta" for part in parts)
    assert (batch.weights is None) != weighted
