"""A run that is cut off and continued ends with the same bytes as one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest
import torch

from minigpt.config.compose import compose
from minigpt.faults import STOPPED, UserFault
from minigpt.machine import choices
from minigpt.rundir.rows import TIMINGS
from minigpt.training.run import train
from minigpt.training.step import LanguageModel, StepEnd
from minigpt.verify import compare_runs

SETTINGS = [
    "data=text",
    "tokenizer=byte",
    "model=gpt-nano",
    "model.n_layer=2",
    "model.n_embd=24",
    "model.n_head=3",
    "model.block_size=16",
    "model.dropout=0.1",
    "batch_tokens=192",
    "trainer.micro_batch=4",
    "trainer.max_steps=24",
    "trainer.device=cpu",
    "trainer.threads=1",
    "schedule.warmup_steps=4",
    "validate.every_steps=8",
    "checkpoint.every_steps=5",
    "samples.every_steps=9",
    "samples.max_new_tokens=8",
    "logger.every_steps=3",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(300)))
    return folder


def config(place: Path, run: str, *extra: str):
    where = [f"data.source={place / 'text.txt'}", f"data.dir={place / 'data'}", f"run.dir={place / run}"]
    return compose("train", [*SETTINGS, *where, *extra])


@pytest.fixture(scope="module")
def straight(place) -> Path:
    """An uninterrupted run."""
    assert train(config(place, "straight")) == 0
    return place / "straight"


class Cut(BaseException):
    """Stands for a kill: nothing of the run may react to it."""


def cut_at(monkeypatch, micro_batch: int) -> None:
    """Raise in the middle of a step, after a micro-batch of this process; after a step's last one, before its end."""
    real_step, real_end, seen = LanguageModel.training_step, StepEnd.__call__, []

    def training_step(self, batch, batch_idx):
        seen.append(batch_idx)
        loss = real_step(self, batch, batch_idx)
        if batch_idx == micro_batch and (batch_idx + 1) % 3:
            raise Cut
        return loss

    def end(self, *arguments, **options):
        if seen[-1] == micro_batch:
            raise Cut
        real_end(self, *arguments, **options)

    monkeypatch.setattr(LanguageModel, "training_step", training_step)
    monkeypatch.setattr(StepEnd, "__call__", end)


def last_checkpoint(run: Path) -> dict[str, bytes]:
    folder = max((run / "checkpoints").glob("step-?????????"))
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"name": folder.name.encode()}


def rows(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines]


def assert_same(one: Path, other: Path) -> None:
    assert last_checkpoint(one) == last_checkpoint(other)
    assert rows(one) == rows(other)
    assert (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()


def test_cut_in_the_middle_of_any_step_the_run_ends_with_the_same_bytes(place, straight, monkeypatch):
    name = "cut"
    for micro_batch in (2, 20, 11, 30):  # 3 micro-batches a step; counted from where each try begins
        with monkeypatch.context() as patch:
            cut_at(patch, micro_batch)
            with pytest.raises(Cut):
                train(config(place, name))
    assert train(config(place, name)) == 0
    assert_same(straight, place / name)


def test_every_logged_step_has_one_row_in_order(straight):
    steps = [row["step"] for row in rows(straight)]
    assert steps == [1, 3, 6, 8, 9, 12, 15, 16, 18, 21, 24]
    assert [row["step"] for row in rows(straight) if "val/loss" in row] == [8, 16, 24]


class Signal(L.Callback):
    def __init__(self, number: int):
        self.number = number

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 13:  # the second of three micro-batches of the fifth step from where the process began
            os.kill(os.getpid(), self.number)


def test_a_signal_in_the_middle_of_a_step_stops_at_its_end_and_the_run_goes_on_exactly(place, straight):
    """One signal of each kind after the other."""
    name = "signals"
    for count, number in enumerate([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1], start=1):
        assert train(config(place, name), callbacks=[Signal(number)]) == STOPPED
        assert last_checkpoint(place / name)["name"] == f"step-{5 * count:09d}".encode()
    assert train(config(place, name)) == 0
    assert_same(straight, place / name)


def test_a_finished_run_says_so_and_changes_no_file(place, straight, capsys):
    before = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file() and path.name != "run.lock"}
    assert train(config(place, "straight")) == 0
    after = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file() and path.name != "run.lock"}
    assert before == after
    assert "finished" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["seed=7", "model.n_layer=3", "batch_tokens=384", "tokenizer=char"])
def test_a_changed_model_seed_batch_or_tokenizer_is_refused_with_a_diff(place, straight, change):
    key = change.split("=")[0]
    with pytest.raises(UserFault, match=rf"{key.split('.')[-1]}.*->"):
        train(config(place, "straight", change))


def test_changed_text_is_refused(place, straight):
    other = place / "other.txt"
    other.write_text("another text altogether, " * 400)
    with pytest.raises(UserFault, match="data has changed"):
        train(config(place, "straight", f"data.source={other}", "trainer.max_steps=30"))


def test_a_longer_run_goes_on_from_the_last_step(place, straight, tmp_path, capsys):
    assert train(config(place, "longer", "schedule=constant", "trainer.max_steps=6")) == 0
    assert train(config(place, "longer", "schedule=constant", "trainer.max_steps=14")) == 0
    assert "trainer.max_steps: 6 -> 14" in capsys.readouterr().out
    steps = [row["step"] for row in rows(place / "longer")]
    assert steps[-3:] == [9, 12, 14]
    assert steps == sorted(set(steps))


@pytest.mark.report
def test_a_change_is_an_event_and_a_jump_of_the_learning_rate_is_said_before_it_happens(place, straight, capsys):
    shutil.copytree(straight, place / "stretched")
    assert train(config(place, "stretched", "trainer.max_steps=48", "optimizer.lr=2e-3")) == 0
    said = capsys.readouterr().out
    events = [json.loads(line) for line in (place / "stretched" / "events.jsonl").read_text().splitlines()]
    changed = {event["setting"]: (event["was"], event["now"]) for event in events if event["event"] == "changed"}
    assert changed.pop("run.dir") == (str(straight), str(place / "stretched"))
    assert changed == {"trainer.max_steps": (24, 48), "optimizer.lr": (1e-3, 2e-3)}
    assert "trainer.max_steps" in (place / "stretched" / "report.html").read_text()
    assert "from here on; the last row has 1.0" in said
    assert said.index("Learning rate") < said.index("/48")


def test_a_finished_run_that_is_asked_again_with_other_settings_reports_no_change(place, straight, capsys):
    assert train(config(place, "straight", "optimizer.lr=2e-3")) == 0
    assert "Changed setting" not in capsys.readouterr().out


@pytest.mark.parametrize("change", ["optimizer=muon", "model.n_layer=3"])
def test_a_refused_continuation_writes_nothing(place, straight, change):
    def content():
        return {path: path.read_bytes() for path in straight.rglob("*") if path.is_file() and path.name != "run.lock"}

    before = content()
    with pytest.raises(UserFault):
        train(config(place, "straight", change, "trainer.max_steps=30"))
    assert content() == before


def test_init_from_starts_with_the_weights_of_another_run(place, straight):
    lr = "optimizer.lr=1e-12"
    assert train(config(place, "tuned", f"init.from={straight}", "trainer.max_steps=1", lr, "seed=5")) == 0
    best = min(row["val/loss"] for row in rows(straight) if "val/loss" in row)
    assert rows(place / "tuned")[-1]["val/loss"] == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_init_from_keeps_its_tokenizer_on_another_text(run, monkeypatch, tmp_path, tokenizer):
    settings = [f"tokenizer={tokenizer}", "trainer.max_steps=2"] + ["tokenizer.vocab_size=280"] * (tokenizer == "bpe")
    origin = run(*settings).rename(tmp_path / "origin")
    (tmp_path / "text.txt").write_text("a duck could chuck a cow " * 60)
    for _ in range(2):  # the second time it is finished
        run(*settings, f"init.from={origin}")
    tuned, theirs = (last_checkpoint(path)["tokenizer.json"] for path in (run.path, origin))
    assert tuned == theirs
    assert run.events()[0]["event"] == "began"
    for sidecar in (run.folder / "data").glob("*/train.json"):
        sidecar.write_bytes(b"")
    with pytest.raises(UserFault, match="Remove its folder"):
        run(*settings, f"init.from={origin}", "trainer.max_steps=3")


def test_killed_with_sigkill_the_same_command_ends_with_the_same_bytes(place, straight):
    arguments = [
        *SETTINGS,
        f"data.source={place / 'text.txt'}",
        f"data.dir={place / 'data'}",
        f"run.dir={place / 'killed'}",
    ]
    command = [sys.executable, str(Path(__file__).parents[2] / "scripts" / "train.py"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    metrics = place / "killed" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= 4):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert train(config(place, "killed")) == 0
    assert_same(straight, place / "killed")


def test_k3_from_every_saved_step_the_run_ends_with_the_same_bytes(run, monkeypatch, tmp_path):
    settings = ["trainer.max_steps=8", "checkpoint.every_steps=1", "checkpoint.keep_last=9", "model.dropout=0.1"]
    whole = run(*settings).rename(tmp_path / "whole")
    for step in range(1, 8):
        shutil.copytree(whole, run.path)
        for later in range(step + 1, 9):
            shutil.rmtree(run.path / "checkpoints" / f"step-{later:09d}")
        run(*settings)
        assert compare_runs(whole, run.path)[1] == [], f"from step {step}"
        shutil.rmtree(run.path)


def test_k5_what_a_run_shows_and_saves_changes_no_weight(run, tmp_path):
    settings = ["trainer.max_steps=7", "model.dropout=0.1"]
    plain = last_checkpoint(run(*settings).rename(tmp_path / "plain"))
    for other in (
        ["validate.every_steps=5"],
        ["samples.every_steps=3", "samples.max_new_tokens=5"],
        ["validate.every_steps=0", "samples.every_steps=1", "samples.max_new_tokens=3", "logger.every_steps=1"],
        ["checkpoint.every_steps=1"],
    ):
        shown = last_checkpoint(run(*settings, *other))
        shutil.rmtree(run.path)
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert shown[name] == plain[name], (name, other)


def test_automatic_choices_are_those_of_the_run_and_not_of_the_machine_it_goes_on_on(run, monkeypatch, tmp_path):
    """Half of the memory, other kernels, a compiler: a run that has begun does not care."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = ["trainer.max_steps=6", "checkpoint.every_steps=3", "trainer.threads=0", "trainer.precision=auto"]
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # more than one here would slow down all tests
    whole = run(*settings).rename(tmp_path / "whole")
    shutil.copytree(whole, run.path)
    shutil.rmtree(run.path / "checkpoints" / "step-000000006")
    real = choices.choose

    def choose(*arguments):
        return replace(real(*arguments), threads=7, compile=True, micro_batch=2, accumulate=4)

    monkeypatch.setattr(choices, "choose", choose)
    run(*settings)
    assert json.loads((run.path / "choices.json").read_text()) == json.loads((whole / "choices.json").read_text())
    assert compare_runs(whole, run.path)[1] == []
