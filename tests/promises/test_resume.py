"""A training killed at any instant continues, by the same command, to the same bytes; `verify-resume` proves it."""

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest
import torch

from minigpt import cli
from minigpt.config.compose import compose
from minigpt.faults import STOPPED, UserFault
from minigpt.machine import choices
from minigpt.rundir.rows import TIMINGS, read_rows
from minigpt.training.run import train
from minigpt.training.step import LanguageModel
from minigpt.verify import compare_runs

SETTINGS = shlex.split(
    "data=text tokenizer=bpe tokenizer.vocab_size=300 tokenizer.dropout=0.1 "
    "model=gpt-nano model.n_layer=2 model.n_embd=24 model.n_head=3 model.block_size=16 model.dropout=0.1 "
    "batch_tokens=192 trainer.micro_batch=4 trainer.max_steps=24 trainer.device=cpu trainer.threads=1 "
    "schedule.warmup_steps=4 optimizer.average_fraction=0.5 "
    "validate.every_steps=8 checkpoint.every_steps=5 samples.every_steps=9 samples.max_new_tokens=8 "
    "logger.every_steps=3"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(300)))
    return folder


def arguments(place: Path, run: str, *extra: str) -> list[str]:
    where = [f"data.source={place / 'text.txt'}", f"data.dir={place / 'data'}", f"run.dir={place / run}"]
    return [*SETTINGS, *where, *extra]


def train_here(place: Path, run: str, *extra: str, callbacks=()) -> int:
    return train(compose("train", arguments(place, run, *extra)), callbacks=callbacks)


@pytest.fixture(scope="module")
def straight(place) -> Path:
    """A run that nobody interrupts."""
    assert train_here(place, "straight") == 0
    return place / "straight"


def rows(run: Path) -> list[dict]:
    kept = read_rows(run / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in kept]


class Kill(BaseException):
    """Stands for SIGKILL: nothing of the run may react to it."""


def kill_in(monkeypatch, micro_batch: int) -> None:
    """Raise in the middle of a step, after this micro-batch; after a step's last one, before the step ends."""
    real_step, real_end, seen = LanguageModel.training_step, LanguageModel.end_step, []

    def training_step(self, batch, batch_idx):
        seen.append(batch_idx)
        loss = real_step(self, batch, batch_idx)
        if batch_idx == micro_batch and (batch_idx + 1) % 3:
            raise Kill
        return loss

    def end_step(self, result, **options):
        if seen[-1] == micro_batch:
            raise Kill
        real_end(self, result, **options)

    monkeypatch.setattr(LanguageModel, "training_step", training_step)
    monkeypatch.setattr(LanguageModel, "end_step", end_step)


def test_killed_in_the_middle_of_any_step_it_ends_with_the_same_bytes(place, straight, monkeypatch):
    for micro_batch in (2, 20, 11, 30):  # 3 micro-batches a step; counted from where each try begins
        with monkeypatch.context() as patch:
            kill_in(patch, micro_batch)
            with pytest.raises(Kill):
                train_here(place, "killed")
    assert train_here(place, "killed") == 0
    assert compare_runs(straight, place / "killed")[1] == []
    steps = [row["step"] for row in rows(straight)]
    assert steps == [1, 3, 6, 8, 9, 12, 15, 16, 18, 21, 24]
    assert [row["step"] for row in rows(straight) if "val/loss" in row] == [8, 16, 24]


@pytest.mark.skipif(sys.platform != "linux", reason="forks with torch loaded")
def test_killed_by_sigkill(place, straight):
    process = multiprocessing.get_context("fork").Process(target=train_here, args=(place, "shot"))
    process.start()
    while process.is_alive() and len(read_rows(place / "shot" / "metrics.jsonl")) < 4:
        time.sleep(0.005)
    process.kill()
    process.join()
    assert train_here(place, "shot") == 0
    assert compare_runs(straight, place / "shot")[1] == []


class Signal(L.Callback):
    def __init__(self, number: int):
        self.number = number

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 13:  # the second of three micro-batches of the fifth step from where the process began
            os.kill(os.getpid(), self.number)


def test_stopped_by_one_signal_of_each_kind_it_ends_with_the_same_bytes(place, straight, request):
    was = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and minigpt leaves it so
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, was))
    for count, number in enumerate([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1], start=1):
        assert train_here(place, "signals", callbacks=[Signal(number)]) == STOPPED
        assert max((place / "signals" / "checkpoints").glob("step-*")).name == f"step-{5 * count:09d}"
    assert train_here(place, "signals") == 0
    assert compare_runs(straight, place / "signals")[1] == []


def test_from_every_checkpoint_it_ends_with_the_same_bytes(run, tmp_path):
    settings = ["trainer.max_steps=8", "checkpoint.every_steps=1", "checkpoint.keep_last=9", "model.dropout=0.1"]
    whole = run(*settings).rename(tmp_path / "whole")
    for step in (1, 6):
        shutil.copytree(whole, run.path)
        for later in range(step + 1, 9):
            shutil.rmtree(run.path / "checkpoints" / f"step-{later:09d}")
        run(*settings)
        assert compare_runs(whole, run.path)[1] == [], f"from step {step}"
        shutil.rmtree(run.path)


def test_what_a_run_shows_and_saves_changes_no_weight(run, tmp_path):
    settings = ["trainer.max_steps=7", "model.dropout=0.1"]
    plain = run(*settings).rename(tmp_path / "plain")
    for other in (
        ["validate.every_steps=5", "checkpoint.every_steps=1"],
        ["validate.every_steps=0", "samples.every_steps=1", "samples.max_new_tokens=3", "logger.every_steps=1"],
    ):
        run(*settings, *other)
        for name in ("model.safetensors", "optimizer.safetensors"):
            newest = [max(path.glob("checkpoints/step-*")) / name for path in (plain, run.path)]
            assert newest[0].read_bytes() == newest[1].read_bytes(), (name, other)
        shutil.rmtree(run.path)


def test_automatic_choices_are_those_of_the_run_and_not_of_the_machine_it_continues_on(run, monkeypatch, tmp_path):
    """Half of the memory, other kernels, a compiler: a run that has begun does not care."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # more than one here would slow down all tests
    settings = ["trainer.max_steps=6", "checkpoint.every_steps=3", "trainer.threads=0", "trainer.precision=auto"]
    whole = run(*settings).rename(tmp_path / "whole")
    shutil.copytree(whole, run.path)
    shutil.rmtree(run.path / "checkpoints" / "step-000000006")
    real = choices.choose

    def choose(config, hardware, vocab_size):
        less = replace(real(config, hardware, vocab_size), attention_kernel="fused", micro_batch=2, accumulate=4)
        return replace(less, threads=1, compile=True)

    monkeypatch.setattr(choices, "choose", choose)
    run(*settings)
    assert compare_runs(whole, run.path)[1] == []


def test_the_text_may_change_once_a_run_has_begun(place, straight):
    """It keeps its own tokens, which lie in data/."""
    shutil.copytree(place, place / "moving", ignore=shutil.ignore_patterns("straight", "killed", "shot", "signals"))
    moving = place / "moving"
    assert train_here(moving, "run", "trainer.max_steps=24", callbacks=[Signal(signal.SIGTERM)]) == STOPPED
    with open(moving / "text.txt", "a") as text:
        text.write("a line that the run has not seen\n")
    assert train_here(moving, "run") == 0
    one, other = (path / "checkpoints/step-000000024/model.safetensors" for path in (straight, moving / "run"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("change", ["seed=7", "model.n_layer=3", "batch_tokens=384", "tokenizer=gpt2"])
def test_a_changed_model_seed_batch_or_tokenizer_is_refused_with_both_values(place, straight, change):
    content = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file() and path.name != "run.lock"}
    with pytest.raises(UserFault, match=rf"(?s){change.split('=')[0].split('.')[-1]}.*->.*The run's own command: "):
        train_here(place, "straight", change)
    assert content == {path: path.read_bytes() for path in content}


def test_a_longer_run_continues_and_says_what_has_changed(place, straight, capsys):
    shutil.copytree(straight, place / "longer")
    assert train_here(place, "longer", "trainer.max_steps=30", "optimizer.lr=2e-3") == 0
    screen, events = capsys.readouterr().out, read_rows(place / "longer" / "events.jsonl")
    changed = {event["setting"]: (event["was"], event["now"]) for event in events if event["event"] == "changed"}
    assert changed.items() >= {"trainer.max_steps": (24, 30), "optimizer.lr": (1e-3, 2e-3)}.items()
    assert "trainer.max_steps: 24 -> 30" in screen
    assert [row["step"] for row in rows(place / "longer")][-3:] == [24, 27, 30]


def test_a_finished_run_says_so_and_changes_no_file(place, straight, capsys):
    files = [path for path in straight.rglob("*") if path.is_file() and path.name != "run.lock"]
    content = [path.read_bytes() for path in files]
    assert train_here(place, "straight", "optimizer.lr=2e-3") == 0
    assert [path.read_bytes() for path in files] == content
    screen = capsys.readouterr().out
    assert "This run is finished" in screen
    assert "Changed setting: optimizer.lr: 0.001 -> 0.002, for further steps" in screen


@pytest.mark.soak
def test_verify_resume_kills_a_training_and_proves_it(run, capsys):
    words = [word for word in run.arguments("trainer.max_steps=1500") if not word.startswith("run.dir")]
    assert cli.verify_resume([*words, "kills=1"]) == 0
    assert "EXACT: killed 1 time," in capsys.readouterr().out


def test_init_from_starts_with_the_weights_of_another_run(place, straight):
    words = (f"init.from={straight}", "trainer.max_steps=1", "optimizer.lr=1e-12", "seed=5")
    assert train_here(place, "tuned", *words) == 0
    best = min(row["val/loss"] for row in rows(straight) if "val/loss" in row)
    assert rows(place / "tuned")[-1]["val/loss"] == pytest.approx(best, rel=1e-4)
    assert json.loads((place / "tuned" / "data.json").read_text())["fingerprint"]
