"""How torch is set up: deterministic from the start, and what memory errors look like."""

import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.attention.linear import chunked_linear_attention, running_sum
from minigpt.config.schema import ModelConfig
from minigpt.machine.choices import Choices
from minigpt.machine.torch_setup import eager, is_out_of_memory, set_up_torch
from minigpt.model.gpt import Block

CHOICES = Choices("cuda", 1, "fp32", True, "fused", micro_batch=2, accumulate=1, validation_batch=4, threads=1)


@pytest.fixture
def torch_restored(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_float32_matmul_precision("highest")


def test_each_training_is_set_up_as_it_is_configured(torch_restored):
    set_up_torch(CHOICES, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    set_up_torch(CHOICES, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    set_up_torch(CHOICES, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


class Names(TorchDispatchMode):
    """Notes which operations are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.add(function.name())
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("deterministic", [False, True])
def test_linear_attention_on_a_gpu_sums_in_one_order_when_it_must(deterministic, torch_restored):
    """torch has no deterministic cumsum of floats there; tensors that claim to be on one show what would be called."""
    q, k, v = (torch.randn(2, 3, 130, 8).as_subclass(OnGpu) for _ in range(3))
    torch.use_deterministic_algorithms(deterministic)
    with Names() as called:
        chunked_linear_attention(q, k, v)
    assert ("aten::cumsum" in called.names) != deterministic
    x = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(running_sum(x.as_subclass(OnGpu), -2).as_subclass(torch.Tensor), x.cumsum(-2))


def test_samples_and_validations_of_a_compiled_model_compile_nothing():
    parts = []

    def backend(graph, inputs):
        parts.append(graph)
        return graph.forward

    config = ModelConfig(n_layer=1, n_head=2, n_embd=4, block_size=8)
    block = Block(config, "explicit")
    block.compile(dynamic=False, backend=backend)
    block(torch.zeros(2, 8, 4))
    with eager():
        for length in (1, 4, 5):
            block(torch.zeros(length, length, 4))
    assert len(parts) == 1
    block(torch.zeros(2, 8, 4))
    assert len(parts) == 1  # what was compiled is used again
    torch._dynamo.reset()


def test_an_error_for_lack_of_memory_is_known_by_its_cause():
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = RuntimeError("CUDA error: out of memory")
    assert is_out_of_memory(wrapped)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("another"))
