"""Weights of tokens: the loss of an optimizer step is the weighted mean over all its tokens, wherever they lie."""

from dataclasses import replace

import pytest
import torch

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.batch import Batch
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.model.loss import weighted_loss_sum
from minigpt.training import step

V, T = 13, 5
CHOICES = Choices("cpu", 1, "fp64", False, "explicit", micro_batch=4, accumulate=6, validation_batch=4, threads=1)
CONFIG = TrainConfig(model=ModelConfig(n_layer=1, n_head=2, n_embd=6, block_size=T))
CONFIG.optimizer.grad_clip = 0.0


def new_gpt():
    torch.manual_seed(3)
    return GPT(CONFIG.model, V).double()


def batch_of(windows):
    """Tokens of which some count more and some not at all, micro-batches of much different weight."""
    generator = torch.Generator().manual_seed(5)
    tokens, targets = (torch.randint(0, V, (windows, T), generator=generator) for _ in range(2))
    counts = torch.tensor([0.0, 0.25, 1.0, 3.0])[torch.randint(0, 4, (windows, T), generator=generator)]
    counts[: windows // 2] *= 7
    return Batch(tokens, targets, counts)


def parts(batch, size):
    columns = zip(*(column.split(size) for column in (batch.tokens, batch.targets, batch.weights)), strict=True)
    return [Batch(*part) for part in columns]


@pytest.fixture
def new_module(module_of):
    return lambda choices, world_size=1: module_of(new_gpt(), CONFIG, choices, world_size)


def backward(module, batches):
    """A step's forward and backward passes, as the Trainer makes them."""
    for batch in batches:
        loss, weight = module.loss_of(batch)
        module.micro_batches.append((loss.detach(), weight, 0.0))
        (loss / len(batches)).backward()


def result_of(module):
    module.configure_gradient_clipping(module.optimizer)
    loss = module.result_of(module.pending[-1]).loss
    return loss, [parameter.grad for parameter in module.gpt.parameters()]


def one_large_batch(batch):
    gpt = new_gpt()
    loss = weighted_loss_sum(gpt, batch.tokens, batch.targets, batch.weights.double()) / batch.weights.double().sum()
    loss.backward()
    return loss.item(), [parameter.grad for parameter in gpt.parameters()]


def assert_equal(result, wanted):
    assert result[0] == pytest.approx(wanted[0], rel=1e-12)
    for gradient, other in zip(result[1], wanted[1], strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("micro_batch", [24, 4, 1])
def test_micro_batches_of_unequal_weight_make_the_step_of_one_large_batch(new_module, micro_batch):
    batch = batch_of(24)
    module = new_module(replace(CHOICES, micro_batch=micro_batch, accumulate=24 // micro_batch))
    backward(module, parts(batch, micro_batch))
    assert_equal(result_of(module), one_large_batch(batch))


def test_ranks_of_unequal_weight_make_the_step_of_one_large_batch(new_module, monkeypatch):
    """The first two halves of a batch are two ranks'; DDP's means and the all-reduce are taken by hand."""
    batch = batch_of(24)
    ranks = [new_module(replace(CHOICES, devices=2, accumulate=3), world_size=2) for _ in range(2)]
    for module, half in zip(ranks, (slice(0, 12), slice(12, 24)), strict=True):
        rows = Batch(batch.tokens[half], batch.targets[half], batch.weights[half])
        backward(module, parts(rows, 4))
    for one, other in zip(*(module.gpt.parameters() for module in ranks), strict=True):
        one.grad = (one.grad + other.grad) / 2
    sent = []
    monkeypatch.setattr(step.dist, "all_reduce", lambda numbers: sent.append(numbers.clone()))
    ranks[1].measure(torch.tensor(1.0))
    monkeypatch.setattr(step.dist, "all_reduce", lambda numbers: numbers.add_(sent[0]))
    assert_equal(result_of(ranks[0]), one_large_batch(batch))
