"""What a step takes, as it is counted from config and layout, is what it takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.machine.counted import measure

ROOT = Path(__file__).parents[2]
SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 128}
QWEN = {"attention": "rotary", "activation": "swiglu", "norm": "rmsnorm", "bias": False, "qk_norm": "rmsnorm"}
DEEP = {"n_layer": 6, "n_head": 4, "n_embd": 192, "block_size": 64}


def case(model, precision, kernel, vocabulary="large", optimizer="adamw", how="allocated", **plan):
    texts = {"precision": precision, "kernel": kernel, "vocabulary": vocabulary, "optimizer": optimizer, "how": how}
    return {"model": model, "plan": plan, **texts}


ONE = [
    case(SMALL, "fp32", "explicit", micro_batch=4),
    case(SMALL, "bf16", "fused", micro_batch=4, accumulate=2),
    case(SMALL, "fp32", "fused", micro_batch=4, loss_chunk=64),
    case(SMALL, "bf16", "fused", micro_batch=4, accumulate=2, loss_chunk=64),
    case(SMALL, "fp32", "fused", "small", micro_batch=16),
    case(SMALL, "bf16", "explicit", micro_batch=8, loss_chunk=64, checkpoint_activations=True),
    case(SMALL, "fp32", "fused", "small", "muon", micro_batch=1),
    case(SMALL | QWEN, "bf16", "fused", micro_batch=8),
]
SEVERAL = [
    case(DEEP, "fp32", "explicit", "small", strategy="fsdp", devices=8, shards=8),
    case(DEEP, "bf16", "fused", strategy="fsdp", devices=8, shards=8, micro_batch=4),
    case(DEEP, "bf16", "fused", strategy="fsdp", devices=8, shards=8, micro_batch=4, accumulate=3, reshard=False),
    case(
        DEEP,
        "fp32",
        "fused",
        strategy="hsdp",
        devices=8,
        shards=4,
        loss_chunk=64,
        micro_batch=8,
    ),
    case(
        DEEP,
        "fp32",
        "fused",
        strategy="hsdp",
        devices=8,
        shards=4,
        loss_chunk=64,
        checkpoint_activations=True,
    ),
]
WHOLE = case(
    {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256}, "fp32", "fused", how="resident", micro_batch=8
)


@pytest.fixture
def no_group_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("each", [*ONE, *SEVERAL])
def test_a_step_allocates_what_is_counted(each, no_group_left):
    """Within 10 %."""
    counted, budget = measure(each)
    assert budget == pytest.approx(counted, rel=0.1)


def test_a_step_takes_what_is_counted():
    """Of resident memory within 20 %, in a process that has done nothing before."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "machine" / "counted.py"), json.dumps(WHOLE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    counted, budget = json.loads(done.stdout.splitlines()[-1])
    assert budget == pytest.approx(counted, rel=0.2)
