"""How torch is set up, and what is compiled: deterministic from the start, cut for DDP, cached in a folder of ours."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.attention.linear import chunked_linear_attention, running_sum
from minigpt.config.schema import ModelConfig
from minigpt.machine import compiling
from minigpt.machine.choices import Choices
from minigpt.machine.compiling import compiler_cache, cut_for_ddp, set_up_torch
from minigpt.model.gpt import GPT
from minigpt.model.loss import next_token_loss

CHOICES = Choices("cuda", 1, "fp32", True, "fused", micro_batch=2, accumulate=1, validation_batch=4, threads=1)


@pytest.fixture
def torch_restored(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_float32_matmul_precision("highest")


def test_determinism_is_set_before_anything_is_compiled_or_tried(run, monkeypatch, torch_restored):
    seen = []

    def look(*_, **__):
        seen.append((torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")))

    real = next_token_loss
    monkeypatch.setattr("minigpt.machine.memory.next_token_loss", lambda *batch: look() or real(*batch))
    monkeypatch.setattr(GPT, "to", lambda self, *_: look() or self)
    run("trainer.deterministic=true", "trainer.max_steps=1")
    assert len(seen) >= 2
    assert set(seen) == {(True, ":4096:8")}


def test_a_run_that_does_not_ask_for_it_is_left_alone(torch_restored):
    set_up_torch(CHOICES, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


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
def test_linear_attention_on_a_gpu_sums_in_one_order_when_asked_to(deterministic, torch_restored):
    """torch has no deterministic cumsum of floats there; tensors that claim to be on one show what would be called."""
    q, k, v = (torch.randn(2, 3, 130, 8).as_subclass(OnGpu) for _ in range(3))
    torch.use_deterministic_algorithms(deterministic)
    with Names() as called:
        chunked_linear_attention(q, k, v)
    assert ("aten::cumsum" in called.names) != deterministic


def test_a_running_sum_by_a_product_is_the_same_sum(monkeypatch, torch_restored):
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    wanted = [x.cumsum(dim) for dim in (-2, -3)]

    torch.use_deterministic_algorithms(True)
    for dim, sums in zip((-2, -3), wanted, strict=True):
        torch.testing.assert_close(running_sum(x.as_subclass(OnGpu), dim).as_subclass(torch.Tensor), sums)


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_is_compiled_is_cut_where_ddps_buckets_end(group_of_one, monkeypatch, checkpointed):
    """One compiled part per bucket, so that a bucket's gradients travel while the next are computed."""
    config = ModelConfig(n_layer=4, n_head=2, n_embd=16, block_size=8, checkpoint_activations=checkpointed)
    gpt = GPT(config, 31).train()
    real = compiling.DistributedDataParallel
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1000)
    monkeypatch.setattr(compiling, "DistributedDataParallel", lambda module: real(module, bucket_cap_mb=0.01))
    parts = []

    def backend(graph, inputs):
        parts.append(graph)
        return graph.forward

    compiled = torch.compile(next_token_loss, dynamic=False, backend=backend)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    with cut_for_ddp(gpt):
        loss = compiled(gpt, tokens, tokens)
    loss.backward()
    assert len(parts) == 1 if checkpointed else len(parts) > 1
    made = len(parts)
    with real(gpt)._inside_ddp_forward():  # as training calls it: what was compiled is used
        compiled(gpt, tokens, tokens).backward()
    assert len(parts) == made
    torch.testing.assert_close(loss, next_token_loss(gpt, tokens, tokens))


def test_the_compilers_cache_is_a_folder_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usual = compiler_cache()
    assert usual.parent == tmp_path
    assert usual.stat().st_mode & 0o777 == 0o700
    assert compiler_cache() == usual
    usual.chmod(0o777)
    assert compiler_cache() not in (usual, compiler_cache())
    usual.rmdir()
    (tmp_path / "elsewhere").mkdir()
    usual.symlink_to(tmp_path / "elsewhere")
    assert compiler_cache() != usual


def test_a_user_without_a_name_has_a_cache_too(tmp_path, monkeypatch):
    """A container that runs as a number: `docker run -u 1234`."""

    def nameless():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert compiler_cache() == tmp_path / f"torchinductor_{os.getuid()}"


def test_a_training_is_not_held_to_what_one_before_it_asked_for(torch_restored):
    set_up_torch(CHOICES, deterministic=True)
    set_up_torch(CHOICES, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
