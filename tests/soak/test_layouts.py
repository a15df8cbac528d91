"""Four processes in every layout against one, and checkpoints that go from layout to layout (`make soak-cluster`)."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from tests.ranks.test_group import PLAIN, Trial, last_bytes, rows, sibling, story

from minigpt.checkpoint.contents import MODEL, OPTIMIZER
from minigpt.checkpoint.folder import list_checkpoints, step_of
from minigpt.checkpoint.load import read_tensors

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
# 24 windows of 8 tokens a step; 257 rows, widths of 18 and 54 that four parts don't share evenly.
MODEL_OF_ODD_SIZES = ["model.n_layer=2", "model.n_embd=18", "batch_tokens=192"]
STEPS = ["trainer.max_steps=30", "checkpoint.every_steps=10", "samples.every_steps=11", "samples.max_new_tokens=4"]
LAYOUTS = {
    "ddp": ["trainer=ddp"],
    "fsdp": ["trainer=fsdp"],
    "fsdp, freed after use": ["trainer=fsdp", "trainer.reshard=on"],
    "hsdp": ["trainer=hsdp", "trainer.shards=2"],
}
MUON = ["optimizer=muon", "optimizer.split_qkv=true", "model.checkpoint_activations=true"]
OPTIMIZERS = {"adamw": [], "muon": MUON}


@pytest.fixture(scope="module")
def alone(new_run, tmp_path_factory):
    """Runs of one process, by optimizer and precision."""
    made = {}

    def get(optimizer, precision):
        if (optimizer, precision) not in made:
            run = new_run(tmp_path_factory.mktemp("alone"))
            run(*MODEL_OF_ODD_SIZES, *STEPS, *OPTIMIZERS[optimizer], *watched(precision))
            made[optimizer, precision] = run
        return made[optimizer, precision]

    return get


def watched(precision):
    return [f"trainer.precision={precision}", "logger.every_steps=1"]


def largest_difference(one, other):
    assert [row["step"] for row in one] == [row["step"] for row in other]
    pairs = [(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in a if "loss" in key]
    return max(abs(mine - theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("micro_batch", [6, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_r7_four_processes_compute_what_one_does(alone, tmp_path, layout, optimizer, micro_batch):
    one = alone(optimizer, "fp64")
    run = type(one)(one.folder)
    run.path = tmp_path / "run"
    settings = [*MODEL_OF_ODD_SIZES, *STEPS, *OPTIMIZERS[optimizer], *LAYOUTS[layout]]
    trial = Trial(run, PLAIN, *settings, "trainer.devices=4", f"trainer.micro_batch={micro_batch}")
    assert trial.wait(300) == 0, trial.said()
    difference = largest_difference(rows(one), rows(run))
    print(f"\n{layout}, {optimizer}, micro-batch {micro_batch}: {difference:.1e}")
    assert difference < 1e-10
    assert (run.path / "samples.jsonl").read_text() == (one.path / "samples.jsonl").read_text()


@pytest.mark.parametrize(("optimizer", "limit"), [("adamw", 1e-5), ("muon", 1e-3)])
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_r7_in_fp32_the_losses_are_as_near_as_rounding_allows(alone, tmp_path, layout, optimizer, limit):
    one = alone(optimizer, "fp32")
    run = type(one)(one.folder)
    run.path = tmp_path / "run"
    settings = [*MODEL_OF_ODD_SIZES, *STEPS, *OPTIMIZERS[optimizer], *LAYOUTS[layout], *watched("fp32")]
    trial = Trial(run, PLAIN, *settings, "trainer.devices=2")
    assert trial.wait(300) == 0, trial.said()
    difference = largest_difference(rows(one), rows(run))
    print(f"\nfp32, {layout}, {optimizer}: {difference:.1e}")
    assert difference < limit


def test_weights_that_travel_in_bf16_train_as_well(alone, tmp_path):
    one = alone("adamw", "bf16")
    run = type(one)(one.folder)
    run.path = tmp_path / "run"
    settings = [*MODEL_OF_ODD_SIZES, *STEPS, *watched("bf16"), "trainer=fsdp", "trainer.gather=bf16"]
    trial = Trial(run, PLAIN, *settings)
    assert trial.wait(300) == 0, trial.said()
    difference = largest_difference(rows(one), rows(run))
    print(f"\nbf16 gathered: {difference:.1e}")
    assert difference < 1e-2


AUTO = """
from lightning.pytorch.strategies import ModelParallelStrategy
import minigpt.training.lightning_engine as engine
from torch.distributed.fsdp import fully_shard
import minigpt.training.run as run_module
engine.ModelParallelStrategy = lambda *_, **options: ModelParallelStrategy(**options)
def shard(gpt, layout, config, choices):
    pass
real = engine.build_trainer
run_module.shard = shard
import minigpt.training.step as step_module
def configure_model(self):
    if self.layout is not None:
        for block in self.gpt.blocks:
            fully_shard(block, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.gpt, mesh=self.device_mesh["data_parallel"])
        self.optimizer = run_module.build_optimizer(self.config.optimizer, self.gpt, precision="fp64")
step_module.LanguageModel.configure_model = configure_model
"""


def test_lightnings_own_choice_of_sizes_would_train_on_the_batch_of_one_rank(alone, tmp_path):
    """Why build_trainer gives ModelParallelStrategy its sizes: with "auto" the ranks' weights go apart, silently."""
    one = alone("adamw", "fp64")
    run = type(one)(one.folder)
    run.path = tmp_path / "run"
    settings = [*MODEL_OF_ODD_SIZES, "trainer.max_steps=10", "checkpoint.every_steps=100", "trainer=fsdp"]
    trial = Trial(run, PLAIN, *settings, START=AUTO)
    trial.wait(300)
    wrong = [row["train/loss"] for row in rows(run)]
    right = [row["train/loss"] for row in rows(one)][: len(wrong)]
    difference = max(abs(mine - theirs) for mine, theirs in zip(wrong, right, strict=True))
    print(f"\nwith auto sizes: {difference:.1e} off after {len(wrong)} steps")
    assert len(wrong) > 2
    assert difference > 1e-4


def hop(run, devices, steps):
    strategy = ["trainer=fsdp", f"trainer.devices={devices}"] if devices > 1 else ["trainer.devices=1"]
    settings = [*MODEL_OF_ODD_SIZES, "schedule=constant", f"trainer.max_steps={steps}", *strategy]
    if devices == 1:
        run(*settings, *watched("fp64"))
        return
    trial = Trial(run, PLAIN, *settings, "validate.every_steps=0")
    assert trial.wait(300) == 0, trial.said()
    trial.folder.rename(trial.folder.with_name(f"hop-{devices}-{steps}"))


COPY = """
import minigpt.training.step as step_module, os
real = step_module.LanguageModel.on_train_start
def begin(self):
    real(self)
    self.saving.durable_step = -1
    self.save(None, last=True)
    os._exit(0)
step_module.LanguageModel.on_train_start = begin
"""


def test_r8_tensors_stay_the_same_from_four_to_two_to_one_to_three(run):
    """Each reads what the one before wrote, and writes it again before its first step."""
    hop(run, 4, 6)
    first = list_checkpoints(run.path / "checkpoints")[-1]
    wanted = {name: read_tensors(first, name) for name in (MODEL, OPTIMIZER)}
    assert len(list(first.glob("model-*-of-4.safetensors"))) == 4
    for devices in (2, 1, 3):
        strategy = ["trainer=fsdp"] if devices > 1 else ["trainer=auto"]
        settings = [*MODEL_OF_ODD_SIZES, "schedule=constant", "trainer.max_steps=12", *strategy]
        trial = Trial(run, PLAIN, *settings, f"trainer.devices={devices}", START=COPY)
        trial.wait(300)
        trial.folder.rename(trial.folder.with_name(f"hop-{devices}"))
        last = list_checkpoints(run.path / "checkpoints")[-1]
        assert step_of(last) == 6
        assert len(list(last.glob(f"model-*-of-{devices}.safetensors"))) == (devices if devices > 1 else 0)
        for name, tensors in wanted.items():
            found = read_tensors(last, name)
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[key], tensors[key]) for key in tensors), (devices, name)
    hop(run, 3, 12)


def test_parts_end_with_the_same_bytes_after_kills(alone, tmp_path):
    one = alone("adamw", "fp64")
    runs = [type(one)(one.folder) for _ in range(2)]
    runs[0].path, runs[1].path = tmp_path / "straight", tmp_path / "killed"
    settings = [*MODEL_OF_ODD_SIZES, *STEPS, "trainer=fsdp", "trainer.devices=2", "trainer.micro_batch=3"]
    assert Trial(runs[0], PLAIN, *settings).wait(300) == 0
    for victim, step in ((1, 13), (0, 17), (1, 24)):
        kill = f"import os\nif rank == {victim} and step == {step}: os.kill(os.getpid(), 9)"
        trial = Trial(runs[1], PLAIN, *settings, fault=kill)
        assert trial.wait(300) != 0
        trial.folder.rename(tmp_path / f"trial-{step}")
    trial = Trial(runs[1], PLAIN, *settings)
    assert trial.wait(300) == 0, trial.said()
    assert rows(runs[0]) == rows(runs[1])
    assert last_bytes(runs[0]) == last_bytes(runs[1])


ORDER = """
import json, os, torch
from minigpt.machine import sharding
import torch.distributed as dist
events = []
for name in ("reduce_scatter_single", "reduce_scatter_tensor", "all_reduce"):
    if hasattr(dist, name):
        def noted(*arguments, real=getattr(dist, name), name=name, **options):
            events.append(name)
            return real(*arguments, **options)
        setattr(dist, name, noted)
real = sharding.shard
def shard(gpt, *arguments):
    real(gpt, *arguments)
    for layer, block in enumerate(gpt.blocks):
        block.register_full_backward_hook(lambda module, *_, layer=layer: events.append(f"backward of {layer}"))
import minigpt.training.run as run_module
run_module.shard = shard
import atexit
"""
WRITE_ORDER = """
import json, os
if step == 3:
    with open(os.path.join(os.environ["TRIAL_FOLDER"], f"order-{rank}"), "w") as file:
        json.dump(__import__("minigpt.training.run").training.run.shard.__globals__["events"], file)
"""


def test_a_compiled_blocks_gradients_travel_while_those_of_the_block_before_are_computed(run):
    settings = [*MODEL_OF_ODD_SIZES, "trainer.max_steps=4", "trainer=fsdp", "trainer.compile=on"]
    trial = Trial(run, PLAIN, *settings, START=ORDER, fault=WRITE_ORDER)
    assert trial.wait(600) == 0, trial.said()
    events = json.loads((trial.folder / "order-0").read_text())
    kinds = ["reduce" if "reduce_scatter" in each else each for each in events]
    last = len(kinds) - 1 - kinds[::-1].index("backward of 1")
    assert kinds.index("reduce", last) < kinds.index("backward of 0", last), kinds[last:]


NAN = """
if rank == 1 and step in (5, 6) and once(f'{step}'):
    loss = loss * float('nan'); module.micro_batches[-1] = (loss.detach(), None, None)
"""


def test_a_bad_step_of_one_process_is_skipped_by_all_and_they_go_back_together(run):
    """W6 with weights in parts."""
    trial = Trial(run, PLAIN, "trainer=fsdp", "guard.max_skips=1", fault=NAN)
    assert trial.wait(300) == 0, trial.said()
    assert story(run) == ["began", "skipped", "skipped", "rolled_back", "continued", "finished"]


def test_fifty_runs_in_parts_end_without_an_abort(run):
    settings = [*MODEL_OF_ODD_SIZES, "trainer.max_steps=2", "trainer=fsdp", "samples.every_steps=1"]
    codes = []
    for number in range(50):
        twin = sibling(run, f"run-{number}")
        trial = Trial(twin, PLAIN, *settings)
        codes.append(trial.wait(300))
        shutil.rmtree(twin.path)
    assert codes == [0] * 50


LOAD = """
import sys, torch
from minigpt.checkpoint.load import load_checkpoint
def peak():  # not ru_maxrss, which counts what the process had that started this one
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
before = peak()
model = load_checkpoint(sys.argv[1], "latest").model
print(peak() - before, sum(each.nbytes for each in model.parameters()))
"""


def test_parts_are_read_without_holding_them_twice(run):
    large = ["model.n_layer=4", "model.n_embd=640", "model.n_head=4", "trainer.max_steps=1", "validate.every_steps=0"]
    trial = Trial(run, PLAIN, *large, "trainer=fsdp", "trainer.precision=fp32")
    assert trial.wait(300) == 0, trial.said()
    done = subprocess.run([sys.executable, "-c", LOAD, str(run.path)], capture_output=True, text=True, check=True)
    taken, size = map(int, done.stdout.split())
    print(f"\n{size / 1e6:.0f} MB of weights, {taken / 1e6:.0f} MB more in use at most")
    assert size > 70e6
    assert taken < 1.5 * size
