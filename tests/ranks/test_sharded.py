"""Weights in parts on two processes: the numbers of one, as few collectives, and checkpoints that any number reads."""

import json
import os
import shutil
import subprocess
import sys

import torch

from minigpt.checkpoint.folder import list_checkpoints, step_of
from minigpt.checkpoint.load import load_checkpoint
from minigpt.ranks.hosts import MEETING
from tests.ranks.test_group import PLAIN, SCRIPT, SETTINGS, Trial, assert_close, rows, sibling, story

SHARDED = ["trainer=fsdp", "model.n_layer=2", "model.n_embd=18", "samples.every_steps=7", "samples.max_new_tokens=4"]
LONG = ["trainer.max_steps=30", "checkpoint.every_steps=8", "checkpoint.keep_every_steps=8", "validate.every_steps=4"]
COUNT = """
import json, os
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "c10d":
            module.counted.append([module.state.step + 1, function._schema.name.split("::")[1].strip("_")])
        return function(*arguments, **(options or {}))
if step == 9 and not hasattr(module, "counted"):
    module.counted, module.mode = [], Count()
    module.mode.__enter__()
if step == 12 and hasattr(module, "mode"):
    module.mode.__exit__(None, None, None)
    del module.mode
    with open(os.path.join(os.environ["TRIAL_FOLDER"], f"calls-{rank}"), "w") as file:
        json.dump(module.counted, file)
"""
CALLBACK_STOPS = """
if step == 19:
    import atexit, os
    atexit.register(open, os.path.join(os.environ["TRIAL_FOLDER"], f"left-{rank}"), "w")
if rank == 1 and step == 19:
    import lightning
    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if module.state.step == 19:  # heard in the collective of step 20
                trainer.should_stop = True
    module.trainer.callbacks.append(Stop())
"""


def test_two_processes_with_half_the_weights_each_compute_what_one_does_and_one_goes_on(run, capfd):
    """30 steps in fp64 with accumulation, uneven parts, validations and samples; continued on one.

    It stops where a callback of one rank asks for it; the other would wait for ever in its next collective.
    """
    whole = sibling(run, "whole")
    whole(*SETTINGS, *SHARDED[1:], *LONG, "trainer.micro_batch=8")
    trial = Trial(run, PLAIN, *SHARDED, *LONG, "trainer.micro_batch=2", fault=COUNT + CALLBACK_STOPS, REPORT="yes")
    assert trial.wait() == 0, trial.said()
    assert (run.path / "report.html").exists()
    assert all((trial.folder / f"left-{rank}").exists() for rank in (0, 1))  # rank 0 kills one that does not end
    assert story(run) == ["began", "finished"]
    last = list_checkpoints(run.path / "checkpoints")[-1]
    assert step_of(last) == 20
    names = {file.name for file in last.glob("*.safetensors")}
    assert names == {"model.safetensors", "optimizer.safetensors"}
    for rank in (0, 1):
        calls = json.loads((trial.folder / f"calls-{rank}").read_text())
        made = sorted(name for step, name in calls if step == 10)  # of two micro-batches: each group of weights once
        assert made == [*3 * ["allgather_base"], "allreduce", *3 * ["reduce_scatter_base"]]
    run(*SETTINGS, *SHARDED[1:], *LONG)
    assert "1 instead of 2: each step trains on the same tokens" in capfd.readouterr().out
    assert_close(rows(whole), rows(run))
    assert (run.path / "samples.jsonl").read_text() == (whole.path / "samples.jsonl").read_text()


FULL = """
import minigpt.machine.memory as memory
memory.SURE_SHARE = 0
if rank == 1:
    real, tried = memory.next_token_loss, []
    def loss(gpt, tokens, targets):
        tried.append(len(tokens))
        if len(tried) == 1:
            raise MemoryError("out of memory")
        return real(gpt, tokens, targets)
    memory.next_token_loss = loss
"""


# As srun starts them on unlike hosts, without trainer.nodes, trainer.devices and trainer.threads.
STEP = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}
STEP |= {"SLURMD_NODENAME": "127.0.0.1"}


def two_hosts(run, *settings: str, **environment: str) -> list[subprocess.Popen]:
    """Start two processes that are hosts of their own; they meet in the run directory."""
    both, settings = [], [*run.arguments(*SETTINGS), *settings]
    command = [sys.executable, SCRIPT, *(each for each in settings if not each.startswith("trainer.threads="))]
    for node in ("0", "1"):
        own = {"SLURM_PROCID": node, "SLURM_NODEID": node, "OMP_NUM_THREADS": str(1 + int(node))}
        own |= {"TRIAL_FOLDER": str(run.folder), **environment}
        with open(run.folder / f"log-{node}", "w") as log:
            both.append(subprocess.Popen(command, env=os.environ | STEP | own, stdout=log, stderr=subprocess.STDOUT))
    return both


def test_what_one_process_began_two_hosts_go_on_with_in_halves_by_muon(run):
    """Each makes its own matrices orthogonal, and none waits for one that runs out of memory before the first step.

    The soak has two hosts that begin, and that have whole weights.
    """
    muon = [*SHARDED[1:], *LONG[1:], "optimizer=muon", "optimizer.split_qkv=true", "model.checkpoint_activations=true"]
    whole = sibling(run, "whole")
    whole(*SETTINGS, *muon, LONG[0])
    shutil.copytree(whole.path, run.path)
    while step_of(list_checkpoints(run.path / "checkpoints")[-1]) > 24:
        shutil.rmtree(list_checkpoints(run.path / "checkpoints")[-1])
    both = two_hosts(run, *muon, "trainer=fsdp", LONG[0], START=FULL)
    assert [process.wait(100) for process in both] == [0, 0], (run.folder / "log-0").read_text()
    assert not list(run.path.glob(f"{MEETING}*"))
    assert_close(rows(whole), rows(run))
    choices = json.loads((run.path / "choices.json").read_text())
    assert (choices["devices"], choices["micro_batch"], choices["accumulate"]) == (2, 2, 2)  # as rank 1 had to choose
    theirs, ours = (load_checkpoint(each.path, "latest").model.state_dict() for each in (whole, run))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)
