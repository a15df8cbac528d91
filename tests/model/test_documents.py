"""Documents kept apart: packed into one window or alone, a document gives the same numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from minigpt.attention import functional, layers
from minigpt.attention.functional import varlen_attention, varlen_fits
from minigpt.attention.masks import causal_mask, document_mask, find_documents
from minigpt.attention.record import record_attention
from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.model.loss import weighted_loss_sum

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


def make(model, kernel="fused", dtype=torch.float64, **more):
    torch.manual_seed(0)
    gpt = GPT(ModelConfig(n_layer=2, n_embd=30, block_size=T, **MODELS[model], **more), V, kernel=kernel)
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter += 0.15 * torch.randn_like(parameter)
    return gpt.to(dtype)


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


@models
@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_changing_a_document_changes_no_bit_of_another(model, kernel, dtype):
    gpt, tokens = make(model, kernel, dtype), packed()
    documents = find_documents(tokens, END)
    before = gpt(tokens, documents=documents)
    other = tokens.clone()
    other[0, 1:7] = V - other[0, 1:7]  # the second document of the first window
    after = gpt(other, documents=documents)
    changed = (before != after).any(dim=-1)
    assert changed[0, 1:8].all()
    assert changed.sum() == 7
    assert (gpt(other) != gpt(tokens)).any(dim=-1)[0, 8:].all()  # what the masks prevent


def test_the_future_stays_hidden_within_a_document():
    gpt, tokens = make("rotary"), packed()
    with record_attention(gpt) as recorded:
        gpt(tokens, documents=find_documents(tokens, END))
    allowed = document_mask(find_documents(tokens, END).positions) & causal_mask(T)
    for weights in recorded.values():
        assert torch.equal(weights > 0, allowed.expand_as(weights))


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


def test_a_kernel_without_dropout_is_not_taken_where_weights_are_dropped(varlen):
    gpt, tokens = make("rotary", dropout=0.5).train(), packed()
    gpt(tokens, documents=find_documents(tokens, END))
    assert not varlen
    gpt.eval()(tokens, documents=find_documents(tokens, END))
    assert varlen


def test_torchs_kernel_takes_what_it_is_handed():
    """On tensors without storage: its arguments, and the shapes forward and backward."""
    q, k, v = (torch.empty(2, 3, T, 8, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(3))
    documents = find_documents(packed(), END)
    out = varlen_attention(q, k, v, type(documents)(*(part.to("meta") for part in documents)))
    assert out.shape == q.shape
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.shape == k.grad.shape == v.grad.shape == q.shape


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True
    device = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("dtype", "D", "major", "fits"),
    [
        (torch.bfloat16, 64, 8, True),
        (torch.float16, 64, 9, True),
        (torch.bfloat16, 64, 7, False),  # a T4
        (torch.float32, 64, 9, False),
        (torch.bfloat16, 60, 9, False),
        (torch.bfloat16, 264, 9, False),
    ],
)
def test_which_hardware_dtypes_and_heads_torchs_kernel_takes(monkeypatch, dtype, D, major, fits):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("Properties", (), {"major": major}))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    x = torch.empty(1, dtype=dtype)
    assert varlen_fits(x.as_subclass(OnGpu), D) == fits
    assert not varlen_fits(x, D)  # on a CPU
    monkeypatch.setattr(functional, "_kernel_dtype", lambda x: torch.bfloat16)  # by autocast
    assert varlen_fits(x.as_subclass(OnGpu), D) == (major >= 8 and D == 64)


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
