"""NaN: skip the step, then go back, then exit 5; Ctrl-C, SLURM's signals: stop after the step, exit 75."""

import os
import signal
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
from safetensors.torch import load_file

from minigpt import faults
from minigpt.checkpoint.folder import list_checkpoints, verify
from minigpt.config.compose import compose
from minigpt.data.order import batch_of_step
from minigpt.faults import NonFiniteTraining
from minigpt.training import finish, output, saving
from minigpt.training import run as run_module
from minigpt.training.run import train
from minigpt.training.step import LanguageModel
from minigpt.verify import compare_runs

GUARD = ["trainer.max_steps=12", "checkpoint.every_steps=3", "guard.max_skips=2"]


def poison(monkeypatch, bad_batches, factor=float("nan")):
    """Training on these batches gives a loss times `factor`, as corrupt data would; returns the batches seen."""
    real, seen = LanguageModel.training_step, []

    def training_step(self, batch, batch_idx):
        step = self.state.step + len(self.pending)
        number = batch_of_step(step, self.trainer.train_dataloader.skipped_batches)
        seen.append(number)
        loss = real(self, batch, batch_idx)
        if number in bad_batches:
            loss = loss * factor
            self.micro_batches[-1] = (loss.detach(), None, 0.0)
        return loss

    monkeypatch.setattr(LanguageModel, "training_step", training_step)
    return seen


def all_weights(run):
    return [load_file(path) for path in sorted(run.path.glob("checkpoints/*/model.safetensors"))]


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_bad_steps_are_skipped_and_leave_the_weights_as_they_were(run, monkeypatch, factor):
    poison(monkeypatch, {2, 3}, factor)
    run(*GUARD, "trainer.max_steps=5", "checkpoint.every_steps=1", "checkpoint.keep_last=9")
    skips = [(event["step"], event["batch"]) for event in run.events() if event["event"] == "skipped"]
    assert skips == [(3, 2), (4, 3)]
    _, before, first, second, after = all_weights(run)
    for name, tensor in before.items():
        assert torch.equal(tensor, first[name])
        assert torch.equal(tensor, second[name])
        assert after[name].isfinite().all()


def test_too_many_in_a_row_go_back_and_leave_their_batches_out_for_good(run, monkeypatch, tmp_path):
    seen = poison(monkeypatch, {4, 5, 6})
    run(*GUARD)
    assert run.path.joinpath("skipped_batches.json").read_text().split() == ["[", "[", "4,", "6", "]", "]"]
    assert [event["event"] for event in run.events()] == [
        "began", "skipped", "skipped", "skipped", "rolled_back", "continued", "saved", "finished",
    ]  # fmt: skip
    assert seen == list(range(15))  # steps 1 to 4, the bad ones, then eight more from the checkpoint of step 4
    assert [row["step"] for row in run.rows()] == [1, 2, 4, 6, 8, 10, 12]
    straight, run.path = run.path, tmp_path / "knows"
    run.path.mkdir()
    (run.path / "skipped_batches.json").write_text("[[4, 6]]\n")
    run(*GUARD)
    assert compare_runs(straight, run.path)[1] == []  # as a run that knew of them from the start


def test_bad_for_ever_is_exit_5_with_the_last_good_checkpoint(run, monkeypatch):
    poison(monkeypatch, set(range(4, 1000)))
    with pytest.raises(NonFiniteTraining, match=r"guard\.max_rollbacks=3.*init\.from.*optimizer\.lr \(now [\d.]+\)$"):
        run(*GUARD, "trainer.precision=fp32")  # which is no remedy here
    assert [event["event"] for event in run.events()].count("rolled_back") == 3
    assert all(tensor.isfinite().all() for weights in all_weights(run) for tensor in weights.values())
    assert all_weights(run)


def test_without_a_checkpoint_to_go_back_to_it_begins_again_and_leaves_the_batches_out(run, monkeypatch):
    seen = poison(monkeypatch, {4, 5, 6})
    rare = [*GUARD, "checkpoint.every_steps=50", "validate.every_steps=0"]
    run(*rare)
    assert seen == [*range(7), 0, 1, 2, 3, *range(7, 15)]


def test_a_run_whose_every_step_was_skipped_has_not_succeeded(run, monkeypatch):
    poison(monkeypatch, set(range(6)))
    for _ in range(2):  # the same command again says so, too
        with pytest.raises(NonFiniteTraining, match="nothing was learned"):
            run()


def test_a_loss_spike_is_skipped_when_asked_for(run, monkeypatch):
    poison(monkeypatch, {18}, factor=50.0)
    run("trainer.max_steps=20", "guard.spike_zscore=8", "guard.spike_window=16", "checkpoint.every_steps=20")
    (skip,) = [event for event in run.events() if event["event"] == "skipped"]
    assert skip["step"] == 19
    assert "spike" in skip["reason"]


class SpoilWeight(L.Callback):
    """From step 5 on a weight, or an average of the optimizer, is infinite, as a flipped bit may leave it."""

    def __init__(self, average: bool):
        self.average, self.done = average, False

    def on_train_batch_end(self, trainer, module, *_):
        if module.state.step == 5 and not self.done:
            self.done, weight = True, module.gpt.token_embedding.weight
            (module.optimizer.state[weight]["exp_avg_sq"] if self.average else weight.data)[0, 0] = float("inf")


@pytest.mark.parametrize("average", [False, True])
def test_what_is_not_finite_is_never_saved(run, capsys, average):
    settings = ["checkpoint.every_steps=4", "trainer.max_steps=12", "validate.every_steps=0", "guard.max_skips=5"]
    callbacks = [SpoilWeight(average)]
    if average:  # the guard sees no gradient of it
        with pytest.raises(NonFiniteTraining, match=r"\d+\.exp_avg_sq of optimizer\.safetensors is not finite"):
            run(*settings, callbacks=callbacks)
        assert [path.name for path in list_checkpoints(run.path / "checkpoints")] == ["step-000000004"]
        run(*settings)
    else:
        run(*settings, callbacks=callbacks)
        assert "rolled_back" in [event["event"] for event in run.events()]
    assert "WARNING: " in capsys.readouterr().out
    assert run.rows()[-1]["step"] == 12
    assert all(tensor.isfinite().all() for weights in all_weights(run) for tensor in weights.values())


STOP = ["checkpoint.every_steps=3", "validate.every_steps=2", "trainer.micro_batch=4", "logger.every_steps=1"]


def signal_before(monkeypatch, place, name: str, number: int, *, call: int = 1) -> None:
    """Send this process a signal when `place.name` is called for the n-th time."""
    real, calls = getattr(place, name), []

    def wrapper(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return real(*arguments, **options)

    monkeypatch.setattr(place, name, wrapper)


@pytest.fixture(scope="module")
def straight(new_run, tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("straight"))
    run(*STOP)
    return run.path.rename(run.path.with_name("straight")), run


PHASES = {
    "data preparation": (run_module.start, "find_tokens", 1),
    "Lightning's set-up": (LanguageModel, "configure_optimizers", 1),
    "the first micro-batch": (LanguageModel, "training_step", 1),
    "a validation": (output, "score_split", 2),
    "a save": (saving, "write_checkpoint", 1),
    "the last validation": (output, "score_split", 3),
    "the report": (finish, "write_report", 1),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_leaves_a_run_that_ends_with_the_same_bytes(straight, monkeypatch, tmp_path, phase):
    whole, run = straight
    run.path = tmp_path / "run"
    place, name, call = PHASES[phase]
    with monkeypatch.context() as patch:
        signal_before(patch, place, name, signal.SIGTERM, call=call)
        run(*STOP, code=0 if phase in ("the last validation", "the report") else faults.STOPPED)
    for checkpoint in list_checkpoints(run.path / "checkpoints"):
        verify(checkpoint)
    run(*STOP)
    assert compare_runs(whole, run.path)[1] == []


def exit_code(monkeypatch, run, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["train.py", *run.arguments(*arguments)])
    with pytest.raises(SystemExit) as ended:
        faults.run_script(lambda given: train(compose("train", given)))
    return ended.value.code


def break_all(monkeypatch) -> list[str]:
    poison(monkeypatch, range(99))
    return ["guard.max_skips=1", "guard.max_rollbacks=0"]


CODES = {
    0: lambda run, patch: [],
    1: lambda run, patch: patch.setattr(run_module, "build_trainer", lambda *_, **__: 1 / 0),
    2: lambda run, patch: ["model.n_head=5"],
    4: lambda run, patch: [f"run.dir={run.folder / 'text.txt' / 'run'}"],
    5: lambda run, patch: break_all(patch),
    75: lambda run, patch: signal_before(patch, LanguageModel, "training_step", signal.SIGUSR1),
    130: lambda run, patch: signal_before(patch, run_module.start, "find_tokens", signal.SIGINT),
}


@pytest.mark.parametrize("code", CODES)
def test_exit_codes(run, monkeypatch, capsys, code):
    extra = CODES[code](run, monkeypatch) or []
    assert exit_code(monkeypatch, run, *extra) == code
    screen = capsys.readouterr()
    assert ("Traceback" in screen.err) == (code == 1)
    assert screen.err.startswith("Error: ") == (code in (2, 4, 5))
    assert ("Stopped" in screen.out + screen.err) == (code in (75, 130))
    assert (run.folder / "data").exists() == (code not in (2, 130))  # Ctrl-C before the first step: at once
    assert f"| {code} |" in (Path(__file__).parents[2] / "docs" / "RELIABILITY.md").read_text()
