"""What a run does besides being exact: its limits, compiling, and what it leaves behind."""

import fcntl
import itertools
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from minigpt.config.compose import compose
from minigpt.faults import NonFiniteTraining, UserFault
from minigpt.machine.hardware import find_device
from minigpt.ranks.group import Processes
from minigpt.training import output
from minigpt.training.run import measured, tried, with_epochs
from minigpt.training.speed import noise
from minigpt.training.state import Clock


def test_a_run_directory_holds_what_the_plan_of_the_house_says(run):
    """Besides what test_report.py looks at."""
    path = run("samples.every_steps=3")
    names = {item.name for item in path.iterdir()}
    assert names >= {
        "config.yaml", "command.txt", "environment.json", "choices.json", "metrics.jsonl", "events.jsonl",
        "samples.jsonl", "checkpoints",
    }  # fmt: skip
    (checkpoint,) = (path / "checkpoints").glob("step-000000006")
    assert {item.name for item in checkpoint.iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json", "MANIFEST.json",
    }  # fmt: skip
    assert set(run.rows()[-1]) >= {
        "step", "tokens", "train/loss", "train/grad_norm", "lr", "tokens_per_second", "val/loss", "val/bits_per_byte",
    }  # fmt: skip
    assert run.rows()[-1]["tokens"] == 6 * 64


def test_passes_of_whole_steps_are_so_many_steps_and_a_finished_run_names_them(run, capsys):
    config = compose("train", ["trainer.epochs=1"])
    for steps in range(1, 400):
        text = SimpleNamespace(passes=lambda n_tokens, _, steps=steps: n_tokens / (steps * config.batch_tokens))
        assert with_epochs(config, SimpleNamespace(train=text)).trainer.max_steps == steps
    for _ in range(2):
        run("trainer.epochs=0.1")
    assert "a larger trainer.epochs" in capsys.readouterr().out


def test_patience_ends_a_run_that_does_not_get_better(run, capsys):
    settings = ["trainer.max_steps=60", "trainer.patience=2", "optimizer.lr=1e-12", "schedule=constant"]
    run(*settings)
    rows = run.rows()
    assert 6 <= rows[-1]["step"] < 60
    assert "patience" in capsys.readouterr().out
    run(*settings)  # finished for good
    assert run.rows() == rows


def test_a_validation_that_is_not_finite_is_no_best_and_no_json_nan(run, monkeypatch):
    real = output.evaluate

    def evaluate(model, split, **options):
        score = real(model, split, **options)
        evaluate.calls += 1
        return replace(score, nats=float("nan")) if evaluate.calls == 1 else score

    evaluate.calls = 0
    monkeypatch.setattr(output, "evaluate", evaluate)
    run()
    first, second = [row for row in run.rows() if "val/loss" in row][:2]
    assert first["val/loss"] is None
    assert second["val/loss"] > 0
    assert "NaN" not in (run.path / "metrics.jsonl").read_text()
    states = [json.loads(path.read_text()) for path in run.path.glob("checkpoints/*/state.json")]
    assert all(state["best_loss"] > 0 for state in states)


@pytest.mark.parametrize("max_steps", ["null", "1000000"])
def test_max_minutes_ends_a_run_and_its_schedule(run, monkeypatch, max_steps):
    readings = itertools.count()
    monkeypatch.setattr(Clock, "seconds", property(lambda clock: 0.002 * next(readings)))  # whatever the machine does
    settings = ["trainer.max_minutes=0.01", "schedule=linear", "schedule.final_lr_fraction=0.0"]
    run(f"trainer.max_steps={max_steps}", *settings)
    last = run.rows()[-1]
    assert last["seconds"] >= 0.6
    assert last["lr"] < 1e-4
    assert "val/loss" in last


def test_a_run_on_the_cpu_leaves_a_gpu_alone(run, monkeypatch):
    """Finding 19: pinned memory, or a question about the GPU, would open a CUDA context of some hundred megabytes."""

    def opened(*_, **__):
        raise AssertionError("CUDA is set up")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_lazy_init", opened)
    monkeypatch.setattr(torch.Tensor, "pin_memory", opened)
    run("trainer.device=cpu", "trainer.max_steps=3", "checkpoint.every_steps=1")
    assert json.loads((run.path / "environment.json").read_text())["gpus"] == []


def test_a_second_process_is_kept_out(run):
    run.path.mkdir()
    with open(run.path / "run.lock", "a+") as held:  # the lock is of an open file, whoever has opened it
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("process 77")
        held.flush()
        with pytest.raises(UserFault, match="in use by process 77"):
            run()
    run()


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(run, capsys):
    shutil.rmtree(run() / "checkpoints")
    assert "begins again" not in capsys.readouterr().out
    run()
    assert "holds no checkpoint: the run begins again, at step 1, without its rows" in capsys.readouterr().out


def test_what_lies_in_a_folder_without_a_config_is_left_alone(run):
    run.path.mkdir()
    (run.path / "metrics.jsonl").write_text('{"step": 5, "reward": 1}\n')
    with pytest.raises(UserFault, match=r"holds metrics\.jsonl, but no config\.yaml\. Choose another run\.dir"):
        run()
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 5, "reward": 1}\n'


def test_checkpoints_that_are_a_link_are_refused(run, tmp_path):
    run("trainer.max_steps=2")
    (run.path / "checkpoints").rename(tmp_path / "other")
    (run.path / "checkpoints").symlink_to(tmp_path / "other")
    with pytest.raises(UserFault, match="checkpoints is a link"):
        run("trainer.max_steps=4")


def test_a_trial_that_diverges_is_one_sentence():
    words = ["experiment=text", "data=stdlib", "model.n_embd=32", "batch_tokens=512", "optimizer.lr=1e20"]
    config = compose("train", words)
    with pytest.raises(NonFiniteTraining, match=r"lower optimizer\.lr \(now 1e\+20\)"):
        measured(config, 500, 20.0, find_device(config), Processes())


def test_a_stop_in_a_trial_promises_no_checkpoint(monkeypatch):
    quiet, processes = [], Processes()
    monkeypatch.setattr("minigpt.training.run.fit", lambda *_: quiet.append(processes.signals.quiet))
    config = compose("train", ["experiment=text", "data=stdlib", "model.n_embd=32", "batch_tokens=512"])
    tried(config, noise(500, config.model.block_size + 1), find_device(config), processes, [])
    assert (quiet, processes.signals.quiet) == ([True], False)
