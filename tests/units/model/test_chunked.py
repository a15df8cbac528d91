"""The loss in chunks: equal to the plain one in value and gradient, and never all logits at once."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.config.schema import ModelConfig
from minigpt.model import loss as chunked
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss, weighted_loss_sum

B, T, V = 3, 7, 101  # 21 rows; the table has 128, of which 27 are padding


def some(*, tied=True, dtype=torch.float64):
    torch.manual_seed(0)
    gpt = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=T, tied=tied), V, kernel="explicit").to(dtype)
    weights = torch.rand(B, T, dtype=dtype) * (torch.rand(B, T) > 0.4)
    return gpt, torch.randint(V, (B, T)), torch.randint(V, (B, T)), weights


def loss_and_gradients(loss, gpt):
    return loss.detach(), *torch.autograd.grad(loss, list(gpt.parameters()))


@pytest.mark.parametrize("chunk", [1, 4, 21, 500])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_it_is_the_plain_loss_in_value_and_gradient(chunk, tied, weighted):
    gpt, tokens, targets, weights = some(tied=tied)

    def loss(chunk):
        if weighted:
            return weighted_loss_sum(gpt, tokens, targets, weights, chunk=chunk) / 3  # as a step divides it
        return next_token_loss(gpt, tokens, targets, chunk=chunk)

    for result, wanted in zip(loss_and_gradients(loss(chunk), gpt), loss_and_gradients(loss(0), gpt), strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_in_half_precision_it_is_as_near_to_fp64_as_the_plain_one(precision):
    gpt, tokens, targets, weights = some()
    exact = loss_and_gradients(weighted_loss_sum(gpt, tokens, targets, weights), gpt)
    gpt, tokens, targets, weights = some(dtype=torch.float32)
    gpt.load_state_dict({name: value.float() for name, value in some()[0].state_dict().items()})

    def error(chunk):
        with autocast("cpu", precision):
            loss = weighted_loss_sum(gpt, tokens, targets, weights, chunk=chunk)
        assert loss.dtype == torch.float32
        result = loss_and_gradients(loss, gpt)
        return [float((one - other).norm() / other.norm()) for one, other in zip(result, exact, strict=True)]

    for mine, plain in zip(error(4), error(0), strict=True):
        assert mine < 2 * plain + 1e-6


class Largest(TorchDispatchMode):
    """Notes the rows of the longest tensor whose rows are as long as the vocabulary, other than the table's."""

    rows = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, torch.Tensor) and each.dim() and each.shape[-1] in (V, 128):
                self.rows = max(self.rows, each.numel() // each.shape[-1])
        return made


@pytest.mark.parametrize(("chunk", "rows"), [(4, 4), (0, B * T)])
def test_the_logits_are_never_all_there(chunk, rows, monkeypatch):
    gpt, tokens, targets, _ = some()
    real, seen = chunked.torch.log_softmax, []
    largest = Largest()

    def log_softmax(scores, **options):  # inside the operator, where a mode does not look
        seen.append(len(scores))
        return real(scores, **options)

    monkeypatch.setattr(chunked.torch, "log_softmax", log_softmax)
    with largest:
        next_token_loss(gpt, tokens, targets, chunk=chunk).backward()
    assert max(largest.rows, *seen, 0) == rows
    assert seen == ([4, 4, 4, 4, 4, 1] if chunk else [])
