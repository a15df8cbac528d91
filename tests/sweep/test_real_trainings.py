"""With scripts/train.py itself: a request to stop, a whole sweep, wandb, and what a wandb agent types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest

from minigpt import cli
from minigpt.checkpoint.folder import list_checkpoints, verify
from minigpt.config.compose import compose
from minigpt.faults import STOPPED
from minigpt.rundir.loggers import wandb_id
from minigpt.rundir.rows import read_rows
from minigpt.sweep.process import TrainingProcess
from minigpt.training.run import train

from .conftest import wait_until

pytestmark = pytest.mark.timeout(400)  # a crowded machine is no failure

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = [
    "data=text", "tokenizer=byte", "model=gpt-nano", "model.n_layer=1", "model.n_embd=16", "model.n_head=2",
    "model.block_size=8", "batch_tokens=64", "trainer.device=cpu", "trainer.precision=fp32", "samples.every_steps=0",
    "schedule.warmup_steps=1", "validate.every_steps=2", "logger.every_steps=1", "checkpoint.every_steps=100",
]  # fmt: skip

AGENTS_START = [sys.executable, str(SCRIPTS / "train.py")]
AGENTS_WORDS = ["optimizer.lr=0.003", "model.bias=False", "schedule.name=wsd", "trainer.max_steps=100000"]


@pytest.fixture
def where(tmp_path) -> list[str]:
    (tmp_path / "text.txt").write_text("how much wood would a woodchuck chuck if " * 30)
    return [f"data.source={tmp_path / 'text.txt'}", f"data.dir={tmp_path / 'data'}"]


def test_a_file_named_stop_ends_a_run_after_its_step_with_a_checkpoint(tmp_path, where):
    run = tmp_path / "run"

    class Ask(L.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if pl_module.state.step == 2:
                (run / "STOP").touch()

    arguments = [*TINY, *where, f"run.dir={run}", "trainer.max_steps=6"]
    assert train(compose("train", arguments), callbacks=[Ask()]) == STOPPED
    assert [verify(path)["step"] for path in list_checkpoints(run / "checkpoints")][-1] == 3
    assert not (run / "STOP").exists()
    assert train(compose("train", arguments)) == 0
    assert read_rows(run / "metrics.jsonl")[-1]["step"] == 6


def test_two_processes_obey_it_at_the_same_step(tmp_path, where):
    run = tmp_path / "run"
    arguments = [*TINY, *where, f"run.dir={run}", "trainer=ddp", "trainer.devices=2", "trainer.max_steps=100000"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "train.py"), *arguments, "trainer.threads=1", "validate.every_steps=0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(lambda: len(read_rows(run / "metrics.jsonl")) > 2, process)
    (run / "STOP").touch()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == STOPPED, said
    assert verify(list_checkpoints(run / "checkpoints")[-1])["step"] == read_rows(run / "metrics.jsonl")[-1]["step"]


def test_a_training_as_an_agent_starts_it_stops_with_a_checkpoint_when_its_parent_is_gone(tmp_path, where):
    run = tmp_path / "run"
    settings = [*TINY, "model.n_kv_head=2", *where, f"run.dir={run}", "validate.every_steps=0"]
    training = TrainingProcess([*AGENTS_START, *settings, *AGENTS_WORDS], tmp_path / "output.txt")
    wait_until(lambda: len(read_rows(run / "metrics.jsonl")) > 2 or training.poll() is not None)
    training.process.stdin.close()  # as the system does it when we are killed
    wait_until(lambda: training.poll() is not None)
    assert training.poll() == STOPPED, training.last_lines()
    assert verify(list_checkpoints(run / "checkpoints")[-1])["step"] == read_rows(run / "metrics.jsonl")[-1]["step"]
    config = (run / "config.yaml").read_text()
    assert "lr: 0.003\n" in config
    assert "bias: false\n" in config


def test_a_sweep_of_real_trainings(tmp_path, where, monkeypatch, capsys):
    """Two workers, wandb offline in the sweep's group, one trial that is refused, and the best one's config."""
    sweep = tmp_path / "sweep"
    space = """search.space={"optimizer.lr": {"choices": [1e-3, 1e-2]}}"""
    command = [
        sys.executable, str(SCRIPTS / "sweep.py"), space, "search.sampler=grid", "workers=2", f"sweep.dir={sweep}",
        *TINY, *where, "trainer.max_steps=4", "logger=wandb",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((sweep / "summary.json").read_text())
    for trial in summary["trials"]:
        rows = read_rows(Path(trial["run.dir"]) / "metrics.jsonl")
        assert trial["value"] == min(row["val/loss"] for row in rows if "val/loss" in row)
        config = (Path(trial["run.dir"]) / "config.yaml").read_text()
        assert "group: sweep\n" in config
        assert f"lr: {trial['params']['optimizer.lr']}\n" in config
        assert "mode: offline\n" in config
        assert list(Path(trial["run.dir"]).glob("wandb/offline-run-*"))
    monkeypatch.chdir(tmp_path)
    assert cli.sweep(command[2:]) == 0
    assert "2 trials of optimizer.lr, 2 done" in capsys.readouterr().out


def agents_command(parameters: dict, template: list[str]) -> list[str]:
    """What a wandb sweep agent starts, made by wandb's own code."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    arguments = utils.create_sweep_command_args({"args": {key: {"value": value} for key, value in parameters.items()}})
    command = []
    for word in utils.create_sweep_command(list(template)):
        name = word[2:-1] if isinstance(word, str) and word.startswith("${") else None
        command += arguments[name] if name in arguments else [{"interpreter": sys.executable}.get(name, word)]
    return command


def test_what_a_wandb_agent_types_starts_a_training():
    """With the command that docs/SWEEPS.md gives for the sweep's YAML; such a training is started above."""
    text = (Path(__file__).parents[2] / "docs" / "SWEEPS.md").read_text()
    block = text[text.index("command:\n") :].partition("```")[0]
    template = [line.strip()[2:].strip('"') for line in block.splitlines()[1:] if line.strip().startswith("- ")]
    assert template[:1] == ["${interpreter}"]
    assert template[-1] == "${args_no_hyphens}"
    template = [str(SCRIPTS / "train.py") if word == "scripts/train.py" else word for word in template]
    template = [word for word in template if not word.startswith("logger")]  # no server here
    parameters = {"optimizer.lr": 0.003, "model.bias": False, "schedule.name": "wsd", "trainer.max_steps": 100000}
    command = agents_command(parameters, template)
    assert [command[:2], command[-4:]] == [AGENTS_START, AGENTS_WORDS]
    assert compose("train", [*command[2:-4], *AGENTS_WORDS]).schedule.name == "wsd"


def test_a_run_of_an_agent_has_the_id_that_the_agent_waits_for(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "agents-own-7")
    assert wandb_id(tmp_path) != "agents-own-7"  # somebody's shell, no agent
    (tmp_path / "wandb_id.txt").unlink()
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    assert wandb_id(tmp_path) == "agents-own-7"
    monkeypatch.delenv("WANDB_RUN_ID")
    assert wandb_id(tmp_path) == "agents-own-7"
    assert os.listdir(tmp_path) == ["wandb_id.txt"]
