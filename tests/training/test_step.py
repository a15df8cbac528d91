"""What belongs to an optimizer step around its loss: clipping by the norm that is known on the host."""

from types import SimpleNamespace

import pytest
import torch

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.process.signals import Signals
from minigpt.training.measure import StepResult
from minigpt.training.state import RunState
from minigpt.training.step import LanguageModel
from minigpt.training.stopping import StopRequests

CHOICES = Choices("cpu", 1, "fp32", False, "explicit", micro_batch=12, accumulate=2, validation_batch=4, threads=1)


def gradients_after_clipping(size: float, limit: float) -> tuple[list[torch.Tensor], list[torch.Tensor], StepResult]:
    """Those of torch's own clipping, and ours."""
    gpt = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8), 31)
    generator = torch.Generator().manual_seed(5)
    for parameter in gpt.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=generator)
    config = TrainConfig()
    config.optimizer.grad_clip = limit
    module = LanguageModel(gpt, config, CHOICES, optimizer=torch.optim.SGD(gpt.parameters()), state=RunState())
    module._trainer = SimpleNamespace(world_size=1)
    module.step_end = SimpleNamespace(requests=StopRequests(Signals(), None, None))
    module.micro_losses = [torch.tensor(2.0), torch.tensor(4.0)]
    theirs = [torch.nn.Parameter(torch.zeros_like(parameter)) for parameter in gpt.parameters()]
    for parameter, copy in zip(gpt.parameters(), theirs, strict=True):
        copy.grad = parameter.grad.clone()
    if limit:
        torch.nn.utils.clip_grad_norm_(theirs, limit)
    module.configure_gradient_clipping(torch.optim.SGD(gpt.parameters()))
    result = module.result_of(module.unread[-1])
    return [copy.grad for copy in theirs], [parameter.grad for parameter in gpt.parameters()], result


def test_a_long_gradient_is_shortened_as_torch_does_it():
    theirs, ours, result = gradients_after_clipping(1.0, limit=0.7)
    for expected, got in zip(theirs, ours, strict=True):
        torch.testing.assert_close(got, expected)
    length = torch.cat([gradient.flatten() for gradient in ours]).norm().item()
    assert length == pytest.approx(0.7, rel=1e-5)
    assert result.grad_norm > 10
    assert result.loss == 3.0


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_a_short_gradient_or_one_without_a_limit_keeps_its_bits(limit):
    theirs, ours, _ = gradients_after_clipping(1e-3, limit)
    assert all(torch.equal(expected, got) for expected, got in zip(theirs, ours, strict=True))
