"""What a step takes, as it is counted from config and layout, is what it takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
WHOLE = [
    case({"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256}, "fp32", "fused", how="resident", micro_batch=8)
]


@pytest.mark.parametrize(("cases", "tolerance"), [([*ONE, *SEVERAL], 0.1), (WHOLE, 0.2)], ids=["allocated", "resident"])
def test_a_step_takes_what_is_counted(cases, tolerance):
    """Of allocated memory within 10 %, of resident memory within 20 %."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "machine" / "counted.py"), json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for each, (counted, budget) in zip(cases, found, strict=True):
        assert budget == pytest.approx(counted, rel=tolerance), each
