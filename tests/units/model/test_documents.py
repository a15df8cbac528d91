"""Documents kept apart: packed into one window or alone, a document gives the same numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from minigpt.attention import layers
from minigpt.attention.masks import document_mask, find_documents
from minigpt.model.loss import weighted_loss_sum
from tests.units.model.spread import spread_gpt

V, END, T = 29, 0, 19
LENGTHS = ((1, 7, 4, 1, 1, 5), (6, 12, 1))  # of the documents in two windows, end-of-text included
MODELS = {
    "learned positions": {"attention": "softmax", "n_head": 5},
    "rotary": {"attention": "rotary", "n_head": 5},
    "grouped heads": {"attention": "rotary", "n_head": 6, "n_kv_head": 2, "head_dim": 4, "norm": "rmsnorm"},
    "linear": {"attention": "linear", "n_head": 5},
}
models = pytest.mark.parametrize("model", MODELS)
kernels = pytest.mark.parametrize("kernel", ["explicit", "fused"])


def make(model, kernel="fused", **more):
    sizes = {"vocab_size": V, "n_layer": 2, "n_embd": 30, "block_size": T, **MODELS[model]}
    return spread_gpt(**sizes, kernel=kernel, dtype=torch.float64, **more).train()


def packed(seed=1):
    """Two windows of documents, each ended by END; the last ones are cut."""
    tokens = torch.randint(1, V, (2, T), generator=torch.Generator().manual_seed(seed))
    for row, lengths in zip(tokens, LENGTHS, strict=True):
        row[torch.tensor(lengths[:-1]).cumsum(0) - 1] = END
    return tokens


def cut(rows):
    """The documents of windows (2, T, ...), each alone."""
    return [part for row, lengths in zip(rows, LENGTHS, strict=True) for part in row.split(lengths)]


def gradients(loss, gpt):
    return torch.autograd.grad(loss, list(gpt.parameters()))


def reference(q, k, v, starts, starts_k, longest, longest_k, *, window_size):
    """torch's varlen_attn in plain words: (tokens, H, D), causal attention within each of the documents."""
    assert starts.dtype == torch.int32
    assert starts is starts_k
    assert longest == longest_k
    assert window_size == (-1, 0)
    assert starts[-1] == len(q)
    outs = []
    for first, last in itertools.pairwise(starts.tolist()):
        assert 0 <= last - first <= longest
        own = (x[first:last].transpose(0, 1) for x in (q, k, v))
        outs.append(F.scaled_dot_product_attention(*own, is_causal=True).transpose(0, 1))
    return torch.cat(outs)


@pytest.fixture
def varlen(monkeypatch):
    """As on a GPU: attention goes document by document, by the reference in place of torch's kernel."""
    calls = []
    monkeypatch.setattr(layers, "varlen_fits", lambda x, D: True)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda *a, **o: calls.append(1) or reference(*a, **o))
    return calls


def test_documents_begin_with_the_window_and_behind_each_end_of_text():
    found = find_documents(packed(), END)
    wanted = [[place for length in lengths for place in range(length)] for lengths in LENGTHS]
    assert found.positions.tolist() == wanted
    starts = [0, 1, 8, 12, 13, 14, 19, 25, 37]
    assert found.starts.tolist() == [*starts, *[2 * T] * 8]
    assert find_documents(torch.ones(1, 3, dtype=torch.int64), END).starts.tolist() == [0, 3]


def test_the_mask_shows_each_token_its_own_document_and_nothing_else():
    mask = document_mask(find_documents(packed(), END).positions)
    assert mask.shape == (2, 1, T, T)
    for row, lengths in zip(mask[:, 0], LENGTHS, strict=True):
        assert torch.equal(row, torch.block_diag(*(torch.ones(length, length) for length in lengths)).bool())


@models
@kernels
def test_packed_documents_equal_documents_alone(model, kernel):
    gpt, tokens = make(model, kernel), packed()
    logits = gpt(tokens, documents=find_documents(tokens, END))
    for got, alone in zip(cut(logits), cut(tokens), strict=True):
        torch.testing.assert_close(got, gpt(alone[None])[0], rtol=0, atol=1e-12)


@models
@kernels
@pytest.mark.parametrize("checkpointed", [False, True])
def test_packed_gradients_are_the_sum_of_those_of_the_documents(model, kernel, checkpointed):
    gpt, tokens = make(model, kernel, checkpoint_activations=checkpointed), packed()
    targets = tokens.roll(-1, dims=1)
    weights = (tokens != END).double()
    packed_loss = weighted_loss_sum(gpt, tokens, targets, weights, find_documents(tokens, END))
    documents = zip(cut(tokens), cut(targets), cut(weights), strict=True)
    alone = sum(weighted_loss_sum(gpt, *(part[None] for part in document)) for document in documents)
    torch.testing.assert_close(packed_loss, alone, rtol=0, atol=1e-11)
    for got, wanted in zip(gradients(packed_loss, gpt), gradients(alone, gpt), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ["learned positions", "rotary", "grouped heads"])
def test_going_document_by_document_gives_the_same_values_and_gradients(model, varlen):
    """As torch's kernel for GPUs would: what it is handed, and what is made of its result."""
    gpt, tokens = make(model), packed()
    arguments = (gpt, tokens, tokens.roll(-1, dims=1), (tokens != END).double(), find_documents(tokens, END))
    fast = weighted_loss_sum(*arguments)
    assert len(varlen) == 2  # layers
    for block in gpt.blocks:
        block.attention.attend = layers.KERNELS["explicit"]
    plain = weighted_loss_sum(*arguments)
    assert len(varlen) == 2
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-11)
    for got, wanted in zip(gradients(fast, gpt), gradients(plain, gpt), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_compiled_code_is_made_for_few_numbers_of_documents():
    made = []

    def backend(graph, inputs):
        made.append(1)
        return graph.forward

    torch._dynamo.reset()
    gpt, compiled = make("rotary"), torch.compile(weighted_loss_sum, dynamic=False, backend=backend)
    for ends in range(1, 9):
        tokens = torch.ones(1, T, dtype=torch.int64)
        tokens[0, : 2 * ends : 2] = END
        arguments = (gpt, tokens, tokens, torch.ones(1, T), find_documents(tokens, END))
        torch.testing.assert_close(compiled(*arguments), weighted_loss_sum(*arguments))
    torch._dynamo.reset()
    assert len(made) <= 4
