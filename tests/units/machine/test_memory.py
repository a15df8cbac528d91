"""The memory of a step by formula is what a real step takes: 10 % of allocated, 20 % of resident memory.

Of layouts in which one part outweighs all others, so that each part of the formula is held.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from minigpt.config.compose import compose
from minigpt.machine.hardware import find_device
from minigpt.model.counting import sizes_of
from minigpt.ranks.group import Processes
from minigpt.rundir.run_directory import RunDirectory
from minigpt.training.run import assemble, choose_alike
from minigpt.training.speed import noise
from minigpt.training.state import RunState, TrainingJob
from tests.units.machine.measured import allocated, measure

ROOT = Path(__file__).parents[3]
SMALL = {"n_layer": 2, "n_head": 4, "n_embd": 128, "block_size": 128}
QWEN = SMALL | {"attention": "rotary", "activation": "swiglu", "norm": "rmsnorm", "bias": False, "qk_norm": "rmsnorm"}
LLAMA = SMALL | {"attention": "rotary", "activation": "swiglu", "norm": "rmsnorm", "qk_norm": "none", "n_kv_head": 2}
DEEP = {"n_layer": 3, "n_head": 4, "n_embd": 192, "block_size": 64}
FSDP, HSDP = {"strategy": "fsdp", "devices": 8}, {"strategy": "hsdp", "devices": 8, "shards": 4}
BF16, LARGE, FEW = {"precision": "bf16"}, 8000, 512

CASES = {
    "weights": (SMALL, LARGE, {"micro_batch": 1}, {}),
    "logits": (SMALL, LARGE, {"micro_batch": 8}, {}),
    "explicit attention": (SMALL | {"block_size": 256}, FEW, {"micro_batch": 8, "attention_kernel": "explicit"}, {}),
    "activations": (SMALL, FEW, {"micro_batch": 8}, {}),
    "bf16": (SMALL, LARGE, {"micro_batch": 4, "accumulate": 2, **BF16}, {}),
    "chunks": (SMALL, LARGE, {"micro_batch": 4, "loss_chunk": 64}, {}),
    "checkpoints": (SMALL | {"checkpoint_activations": True}, LARGE, {"micro_batch": 8, "loss_chunk": 64, **BF16}, {}),
    "checkpointed blocks": (SMALL | {"checkpoint_activations": True}, FEW, {"micro_batch": 8}, {}),
    "muon": (SMALL, FEW, {"micro_batch": 1}, {"optimizer": "muon"}),
    "qwen": (QWEN, FEW, {"micro_batch": 4}, {}),
    "llama": (LLAMA, FEW, {"micro_batch": 8}, {}),
    "linear": (SMALL | {"attention": "linear"}, FEW, {"micro_batch": 8}, {}),
    "dropout": (SMALL | {"dropout": 0.2}, FEW, {"micro_batch": 8, "attention_kernel": "explicit"}, {}),
    "fsdp": (DEEP, LARGE, {"micro_batch": 4, "devices": 8}, {"trainer": FSDP}),
    "fsdp bf16": (DEEP, LARGE, {"micro_batch": 4, "devices": 8, **BF16}, {"trainer": FSDP}),
    "fsdp kept": (DEEP, FEW, {"micro_batch": 1, "accumulate": 3, "devices": 8, "reshard": False}, {"trainer": FSDP}),
    "fsdp accumulating": (DEEP, FEW, {"micro_batch": 1, "accumulate": 3, "devices": 8}, {"trainer": FSDP}),
    "hsdp": (DEEP, LARGE, {"micro_batch": 8, "devices": 8, "loss_chunk": 64}, {"trainer": HSDP}),
}
# Parts that other cases have, too.
RARE = {"checkpoints", "explicit attention", "bf16", "llama", "linear", "dropout", "fsdp kept", "fsdp bf16", "hsdp"}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in RARE else name for name in CASES]
)
def test_a_step_allocates_what_the_formula_says(name, no_group_left):
    model, vocabulary, choices, more = CASES[name]
    taken, formula = measure({"model": model, "vocabulary": vocabulary, "choices": choices, **more})
    assert formula == pytest.approx(taken, rel=0.1)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_rank_but_the_first_never_holds_the_whole_model(no_group_left):
    """Of 8 ranks, whose collectives do nothing, the first has the weights and sends them."""
    dist.init_process_group("fake", rank=1, world_size=8, store=FakeStore())
    words = ["data=stdlib", "model=gpt-mini", "trainer=fsdp", "trainer.devices=8", "trainer.device=cpu"]
    config, nowhere = compose("train", [*words, "batch_tokens=65536"]), RunDirectory(Path(os.devnull), writes=False)
    job = TrainingJob(config, find_device(config), noise(257, 9999), Processes(1, 8), nowhere, [])
    built = allocated(lambda: assemble(job, choose_alike(job, None), None, RunState()))
    assert 0.12 < built / (4 * sizes_of(config.model, 257).all) < 0.5


@pytest.mark.soak
def test_a_process_takes_what_the_formula_says():
    """Resident memory of a process that has done nothing before."""
    model = {"n_layer": 6, "n_head": 4, "n_embd": 384, "block_size": 256}
    case = {"model": model, "vocabulary": FEW, "choices": {"micro_batch": 8}, "how": "resident"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("measured.py")), json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    taken, formula = json.loads(done.stdout.splitlines()[-1])
    assert formula == pytest.approx(taken, rel=0.2)
