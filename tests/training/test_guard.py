"""The guard: skip, go back, stop; and no checkpoint ever holds a weight that is not finite."""

import copy
import json
import math
import re
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.optim import AdamW

from minigpt.checkpoint import folder as store
from minigpt.checkpoint.folder import list_checkpoints, read_manifest
from minigpt.config.compose import compose
from minigpt.config.schema import GuardConfig
from minigpt.data.order import batch_of_step
from minigpt.faults import NonFiniteTraining
from minigpt.model.evaluate import Score
from minigpt.training.ending import StopRequest
from minigpt.training.guard import StepResult, fault_of
from minigpt.training.outputs import Outputs
from minigpt.training.run import train
from minigpt.training.step import LanguageModel, StepEnd
from minigpt.verify import compare_runs

SETTINGS = ["trainer.max_steps=12", "checkpoint.every_steps=3", "guard.max_skips=2"]


def poison(monkeypatch, bad_batches, factor=float("nan")):
    """Training on these batches gives a loss times `factor`, as corrupt data would; returns the batches seen."""
    real = LanguageModel.training_step
    seen = []

    def training_step(self, batch, batch_idx):
        dataset = self.trainer.train_dataloader
        number = batch_of_step(self.state.step, dataset.skipped_batches)
        seen.append(number)
        loss = real(self, batch, batch_idx)
        if number in bad_batches:
            loss = loss * factor
            self.micro_losses[-1] = loss.detach()
        return loss

    monkeypatch.setattr(LanguageModel, "training_step", training_step)
    return seen


def all_weights(run):
    return [load_file(path) for path in sorted(run.path.glob("checkpoints/*/model.safetensors"))]


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_one_bad_step_is_skipped_and_training_goes_on(run, monkeypatch, factor):
    poison(monkeypatch, {4}, factor)
    run(*SETTINGS)
    (skip,) = [event for event in run.events() if event["event"] == "skipped"]
    assert (skip["step"], skip["batch"]) == (5, 4)
    assert run.rows()[-1]["step"] == 12
    assert all(tensor.isfinite().all() for weights in all_weights(run) for tensor in weights.values())


def test_a_skipped_step_leaves_the_weights_as_they_were(run, monkeypatch):
    poison(monkeypatch, {2, 3})
    run(*SETTINGS, "trainer.max_steps=4", "checkpoint.every_steps=1", "checkpoint.keep_last=9")
    before, first, second = all_weights(run)[-3:]
    for name, tensor in before.items():
        assert (tensor == first[name]).all()
        assert (tensor == second[name]).all()


def test_too_many_bad_steps_in_a_row_go_back_and_pass_over_the_batches(run, monkeypatch):
    seen = poison(monkeypatch, {4, 5, 6})
    run(*SETTINGS)
    assert (run.path / "skipped_batches.json").read_text() == "[[4, 6]]\n"
    assert [event["event"] for event in run.events()] == [
        "began", "skipped", "skipped", "skipped", "rolled_back", "continued", "saved", "finished",
    ]  # fmt: skip
    assert seen == list(range(15))  # steps 1 to 4, the bad ones, then eight more from the checkpoint of step 4
    assert [row["step"] for row in run.rows()] == [1, 2, 4, 6, 8, 10, 12]
    assert all(tensor.isfinite().all() for weights in all_weights(run) for tensor in weights.values())


def test_a_run_that_went_back_still_continues_to_the_same_bytes(run, monkeypatch, tmp_path):
    poison(monkeypatch, {4, 5, 6})
    run(*SETTINGS)
    straight = all_weights(run)[-1]
    run.path = tmp_path / "again"
    with monkeypatch.context() as patch:
        real = LanguageModel.on_before_optimizer_step

        def cut(self, optimizer):
            if self.state.step == 10:
                raise KeyboardInterrupt
            return real(self, optimizer)

        patch.setattr(LanguageModel, "on_before_optimizer_step", cut)
        with pytest.raises(BaseException):  # noqa: B017 - however Lightning passes it on
            run(*SETTINGS)
    run(*SETTINGS)
    assert all((tensor == all_weights(run)[-1][name]).all() for name, tensor in straight.items())


def test_bad_for_ever_stops_with_the_last_good_checkpoint(run, monkeypatch):
    poison(monkeypatch, set(range(4, 1000)))
    with pytest.raises(NonFiniteTraining, match=r"guard\.max_rollbacks=3.*init\.from"):
        run(*SETTINGS)
    assert [event["event"] for event in run.events()].count("rolled_back") == 3
    assert all(tensor.isfinite().all() for weights in all_weights(run) for tensor in weights.values())
    assert all_weights(run)


def test_a_loss_spike_is_skipped_when_asked_for_and_its_window_is_saved(run, monkeypatch):
    poison(monkeypatch, {30}, factor=50.0)
    settings = ["trainer.max_steps=34", "guard.spike_zscore=8", "guard.spike_window=20", "checkpoint.every_steps=34"]
    run(*settings)
    (skip,) = [event for event in run.events() if event["event"] == "skipped"]
    assert skip["step"] == 31
    assert "spike" in skip["reason"]
    (state,) = [path.read_text() for path in run.path.glob("checkpoints/step-000000034/state.json")]
    assert state.count(",\n  ") >= 19  # twenty losses, one a line


def test_without_being_asked_for_a_spike_is_trained_on(run, monkeypatch):
    poison(monkeypatch, {30}, factor=50.0)
    run("trainer.max_steps=34")
    assert not [event for event in run.events() if event["event"] == "skipped"]


def test_non_finite_values_never_enter_the_window():
    window = [2.0 + 0.01 * number for number in range(20)]
    rules = GuardConfig(spike_zscore=5.0)
    assert "nan" in fault_of(math.nan, 1.0, window, rules)
    assert "norm" in fault_of(2.0, math.inf, window, rules)
    assert "spike" in fault_of(9.0, 1.0, window, rules)
    assert fault_of(2.1, 1.0, window, rules) is None
    assert fault_of(9.0, 1.0, window[:10], rules) is None  # too few to know


@given(
    windows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=4),
    steps=st.integers(1, 60),
)
def test_steps_train_on_the_batches_that_are_left_in_order(windows, steps):
    skipped_batches, used = [], -1
    for start, length in windows:  # each window begins after the one before, as when a run goes back again and again
        first = used + 1 + start
        skipped_batches.append([first, first + length])
        used = first + length
    banned = {batch for first, last in skipped_batches for batch in range(first, last + 1)}
    wanted = [batch for batch in range(steps + len(banned)) if batch not in banned][:steps]
    assert [batch_of_step(step, skipped_batches) for step in range(steps)] == wanted


@given(windows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=5), steps=st.integers(1, 60))
def test_windows_that_overlap_leave_each_batch_out_once(windows, steps):
    """As when a run goes on with other rules, or on other hardware, and more around a window turns out bad."""
    windows = [(first, first + length) for first, length in windows]
    banned = {batch for first, last in windows for batch in range(first, last + 1)}
    wanted = [batch for batch in range(steps + len(banned)) if batch not in banned][:steps]
    assert [batch_of_step(step, windows) for step in range(steps)] == wanted


def test_a_roll_back_finds_a_checkpoint_however_many_saves_fall_into_the_bad_window(run, monkeypatch):
    """Steps 31 to 41 are bad and saves come every four steps: two of them once pushed out the last good one."""
    seen = poison(monkeypatch, set(range(30, 41)))
    run("trainer.max_steps=44", "checkpoint.every_steps=4", "validate.every_steps=0")
    events = [event["event"] for event in run.events()]
    assert events == ["began", *["skipped"] * 11, "rolled_back", "continued", "saved", "finished"]
    assert run.events()[-3]["step"] == 28
    assert seen == [*range(41), 28, 29, *range(41, 55)]


def test_a_roll_back_without_a_checkpoint_stops_and_the_next_start_leaves_the_batches_out(run, monkeypatch):
    seen = poison(monkeypatch, {4, 5, 6})
    with pytest.raises(NonFiniteTraining, match=r"no checkpoint before step 5 to go back to.*begins again at step 1"):
        run(*SETTINGS, "checkpoint.every_steps=50", "validate.every_steps=0")
    seen.clear()
    run(*SETTINGS, "checkpoint.every_steps=50", "validate.every_steps=0")
    assert seen == [0, 1, 2, 3, *range(7, 15)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("instant", ["before", "between", "after"])
def test_a_kill_in_the_middle_of_a_roll_back_changes_no_byte(run, monkeypatch, tmp_path, instant):
    """Saves of steps 9 and 12 fall into the bad window, of steps 8 to 13."""
    poison(monkeypatch, set(range(7, 13)))
    rules = ["trainer.max_steps=16", "checkpoint.every_steps=3", "guard.max_skips=5", "validate.every_steps=7"]
    run(*rules)
    straight, run.path = run.path, tmp_path / "again"
    real = store._remove

    def remove(path):
        if instant != "before":
            real(path)
        if instant != "after" or path.name == "step-000000012":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("minigpt.training.run.discard_from", lambda folder, step: [
            remove(path) for path in list_checkpoints(folder) if store.step_of(path) >= step
        ])  # fmt: skip
        with pytest.raises(Killed):
            run(*rules)
    run(*rules)
    assert compare_runs(straight, run.path)[1] == []


def test_weights_that_are_not_finite_are_not_saved_and_the_guard_goes_back(run, monkeypatch, capsys):
    """The update of step 5 spoils a weight; a save is due at step 6, inside the bad window."""
    poison(monkeypatch, ())
    real, spoilt = AdamW.step, []

    def step(self, closure=None):
        loss = real(self, closure)
        if self.param_groups[0]["lr"] and len(spoilt) < 5:
            spoilt.append(1)
            if len(spoilt) == 5:
                self.param_groups[0]["params"][0].data.fill_(float("inf"))
        return loss

    monkeypatch.setattr(AdamW, "step", step)
    run(*SETTINGS, "validate.every_steps=0")
    said = capsys.readouterr().out
    assert "is not finite after step 6; no checkpoint of it is written" in said
    assert "rolled_back" in [event["event"] for event in run.events()]
    assert run.rows()[-1]["step"] == 12
    assert all(tensor.isfinite().all() for weights in all_weights(run) for tensor in weights.values())


def count_batches(bad_batches):
    """Return a `fit` whose step adds the number of its batch to the weights: the guard and the saves are the real ones.

    A training without its arithmetic takes a twentieth of the time.
    """

    def fit(job, module):
        skipped, state = job.run.skipped_batches(), module.state
        module.step_end = StepEnd(module, job.run, job.prepared, job.processes.signals, None)
        module.trainer = SimpleNamespace(should_stop=False, callbacks=[], world_size=1)
        with module.step_end.outputs:
            module.step_end.begin(module)
            while state.step < module.total_steps:
                number = batch_of_step(state.step, skipped)
                loss = math.nan if number in bad_batches else 2.0
                fault = fault_of(loss, 1.0, state.recent_losses, module.config.guard)
                if fault is None:
                    for parameter in module.parameters():
                        parameter.data.mul_(0.875).add_(number)
                result = StepResult(loss, 1.0, 1.0, 1e-3, fault, overflow=False, request=StopRequest())
                module.step_end(module, result, is_newest=True)
                module.step_end.save(module)

    return fit


def score(outputs, module, split):
    """Return a validation loss that goes up and down, so that the best checkpoint is not always the newest."""
    return Score(3.0 + math.sin(float(module.gpt.final_norm.weight.detach().sum())), 1, 1)


@pytest.fixture(scope="module")
def trial(new_run, tmp_path_factory):
    """Trains with bad batches, `counted` without arithmetic, and watches what is removed."""
    place = new_run(tmp_path_factory.mktemp("trials"))
    plain = compose("train", place.arguments("trainer.max_steps=24", "logger.every_steps=24", "validate.every_steps=7"))
    numbers = iter(range(10**6))

    def attempt(bad, rules, skipped=(), *, counted):
        path = place.folder / f"run-{next(numbers)}"
        config = copy.deepcopy(plain)
        config.run.dir = str(path)
        config.checkpoint.every_steps, config.guard.max_skips, config.checkpoint.keep_last = rules
        path.mkdir()
        (path / "skipped_batches.json").write_text(json.dumps(skipped))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("minigpt.training.ending.write_report", lambda *_: None)
            patch.setattr("minigpt.machine.choices.activation_bytes", lambda *_, **__: 10_000)  # counting takes time
            patch.setattr("minigpt.training.run.describe_plan", lambda *_, **__: "")
            poison(patch, bad)
            if counted:
                patch.setattr("minigpt.training.run.fit", count_batches(bad))
                patch.setattr("minigpt.training.outputs.publish", lambda *_: None)
                patch.setattr("os.fsync", lambda descriptor: None)  # tests/checkpoint pulls the plug
                patch.setattr(Outputs, "score", score)
            real = store._remove

            def remove(path):
                good = [each for each in list_checkpoints(path.parent) if not read_manifest(each).get("bad_steps")]
                real(path)
                assert not good or good[-1].is_dir(), "the newest good checkpoint is gone"

            patch.setattr(store, "_remove", remove)
            assert train(config) == 0
        return path

    return attempt


REASONS = r"no checkpoint before step|guard\.max_rollbacks=|every one of the"


def go_back_and_end_with_the_same_bytes(trial, bad, *rules, counted=False):
    """A run that learns of its bad batches ends as one that knew from the start those that it left out."""
    reason = ""
    try:
        run = trial(bad, rules, counted=counted)
    except NonFiniteTraining as named:
        reason = str(named)
    if reason:
        assert re.search(REASONS, reason)
        return
    other = trial(bad, rules, json.loads((run / "skipped_batches.json").read_text()), counted=counted)
    assert compare_runs(run, other)[1] == []


SCHEDULES = {
    "bad": st.sets(st.integers(0, 40), max_size=12)
    | st.builds(lambda first, length: set(range(first, first + length)), st.integers(0, 30), st.integers(1, 14)),
    "every": st.integers(1, 9),
    "max_skips": st.integers(0, 12),
    "keep_last": st.integers(2, 4),
}


@given(**SCHEDULES)
@settings(max_examples=18, derandomize=True)
def test_no_schedule_of_bad_steps_loses_the_newest_good_checkpoint(trial, bad, every, max_skips, keep_last):
    go_back_and_end_with_the_same_bytes(trial, bad, every, max_skips, keep_last, counted=True)


@pytest.mark.soak
@given(**SCHEDULES)
@settings(max_examples=300)
def test_three_hundred_schedules_of_bad_steps_without_arithmetic(trial, bad, every, max_skips, keep_last):
    go_back_and_end_with_the_same_bytes(trial, bad, every, max_skips, keep_last, counted=True)


@pytest.mark.soak
@given(**SCHEDULES)
@settings(max_examples=400)
def test_four_hundred_schedules_of_bad_steps(trial, bad, every, max_skips, keep_last):
    go_back_and_end_with_the_same_bytes(trial, bad, every, max_skips, keep_last)


def test_a_run_whose_every_step_was_skipped_has_not_succeeded(run, monkeypatch):
    poison(monkeypatch, set(range(6)))
    for _ in range(2):  # the same command again says so, too
        with pytest.raises(NonFiniteTraining, match="nothing was learned"):
            run()


class Diverge(L.Callback):
    """At the end of step 12 the weights are so large that logits overflow, once."""

    done = False

    def on_train_batch_end(self, trainer, module, *_):
        if module.state.step == 12 and not self.done:
            self.done = True
            with torch.no_grad():
                module.gpt.token_embedding.weight.mul_(1e30)


def test_a_sample_that_is_due_among_bad_steps_leaves_the_guard_to_its_work(run, capsys):
    settings = ("trainer.max_steps=20", "guard.max_skips=3", "checkpoint.every_steps=10", "samples.every_steps=14")
    assert train(compose("train", run.arguments(*settings, "validate.every_steps=0")), callbacks=[Diverge()]) == 0
    assert "No sample at step 14: the model's logits are NaN or infinite" in capsys.readouterr().out
    events = [event["event"] for event in run.events()]
    assert events == ["began", *["skipped"] * 4, "rolled_back", "continued", "saved", "finished"]
    samples = [json.loads(line)["step"] for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert samples == [14, 20]  # the weights that it went back to can write


def test_a_run_that_diverges_ends_by_that_name_whenever_it_samples(run):
    with pytest.raises(NonFiniteTraining, match="no checkpoint before step 2 to go back to"):
        run("optimizer.lr=1e18", "optimizer.grad_clip=0", "trainer.max_steps=40", "guard.max_skips=3",
            "samples.every_steps=4", "checkpoint.every_steps=10")  # fmt: skip


class FlippedBit(L.Callback):
    """From step 5 on an average of the optimizer is infinite, as a flipped bit may leave it."""

    def on_train_batch_end(self, trainer, module, *_):
        if module.state.step == 5:
            module.optimizer.state[module.gpt.token_embedding.weight]["exp_avg_sq"][0, 0] = math.inf


def test_an_average_that_is_not_finite_is_never_saved(run, capsys):
    """A run can't be continued from it, and the good checkpoints before it would go."""
    settings = ("checkpoint.every_steps=4", "trainer.max_steps=12", "validate.every_steps=0")
    with pytest.raises(NonFiniteTraining, match=r"the optimizer's average \d+\.exp_avg_sq is not finite after step 12"):
        train(compose("train", run.arguments(*settings)), callbacks=[FlippedBit()])
    assert "WARNING: the optimizer's average " in capsys.readouterr().out
    assert [store.step_of(path) for path in list_checkpoints(run.path / "checkpoints")] == [4]
    run(*settings)
    assert run.rows()[-1]["step"] == 12
