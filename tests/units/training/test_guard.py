"""The guard's rules, the batches that are left out, and that no schedule of bad steps loses the good checkpoint."""

import copy
import json
import math
import re

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.checkpoint import folder as checkpoint_folder
from minigpt.checkpoint.folder import list_checkpoints, read_manifest
from minigpt.config.compose import compose
from minigpt.config.schema import GuardConfig
from minigpt.data.order import batch_of_step
from minigpt.faults import NonFiniteTraining
from minigpt.model.evaluate import Score
from minigpt.training import output
from minigpt.training.guard import StepResult, fault_of
from minigpt.training.run import train
from minigpt.training.stop import StopRequest
from minigpt.verify import compare_runs


def test_non_finite_values_and_spikes_are_faults():
    window = [2.0 + 0.01 * number for number in range(20)]
    rules = GuardConfig(spike_zscore=5.0)
    assert "nan" in fault_of(math.nan, 1.0, window, rules)
    assert "norm" in fault_of(2.0, math.inf, window, rules)
    assert "spike" in fault_of(9.0, 1.0, window, rules)
    assert fault_of(2.1, 1.0, window, rules) is None
    assert fault_of(9.0, 1.0, window[:10], rules) is None  # too few to know


@given(windows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=5), steps=st.integers(1, 60))
def test_windows_that_overlap_leave_each_batch_out_once(windows, steps):
    """As when a run continues with other rules, or on other hardware, and more around a window turns out bad."""
    windows = [(first, first + length) for first, length in windows]
    banned = {batch for first, last in windows for batch in range(first, last + 1)}
    wanted = [batch for batch in range(steps + len(banned)) if batch not in banned][:steps]
    assert [batch_of_step(step, windows) for step in range(steps)] == wanted


class TrainerWithoutArithmetic:
    """Stands for Lightning's: each step adds the number of its batch to the weights; guard and saves are the real ones.

    A training without its arithmetic takes a twentieth of the time.
    """

    world_size, should_stop, callbacks = 1, False, ()

    def __init__(self, bad_batches):
        self.bad_batches = bad_batches

    def fit(self, module, batches):
        module._trainer, state = self, module.state
        module.saving.begin(state.step)
        module.clock.start()
        while state.step < module.total_steps:
            number = batch_of_step(state.step, batches.skipped_batches)
            loss = math.nan if number in self.bad_batches else 2.0
            fault = fault_of(loss, 1.0, state.recent_losses, module.config.guard)
            if fault is None:
                for parameter in module.parameters():
                    parameter.data.mul_(0.875).add_(number)
            result = StepResult(loss, 1.0, 1.0, 1e-3, fault, overflow=False, request=StopRequest())
            module.end_step(result, is_newest=True)
            module.on_train_batch_end()


def score(gpt, *_):
    """Return a validation loss that rises and falls, so that the best checkpoint is not always the newest."""
    return Score(3.0 + math.sin(float(gpt.final_norm.weight.detach().sum())), 1, 1)


@pytest.fixture(scope="module")
def trial(new_run, tmp_path_factory):
    """Trains with bad batches, and watches what is removed."""
    place = new_run(tmp_path_factory.mktemp("trials"))
    plain = compose("train", place.arguments("trainer.max_steps=24", "logger.every_steps=24", "validate.every_steps=7"))
    numbers = iter(range(10**6))

    def attempt(bad, rules, skipped=()):
        path = place.folder / f"run-{next(numbers)}"
        config = copy.deepcopy(plain)
        config.run.dir = str(path)
        config.checkpoint.every_steps, config.guard.max_skips, config.checkpoint.keep_last = rules
        path.mkdir()
        (path / "skipped_batches.json").write_text(json.dumps(skipped))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("minigpt.training.run.describe_plan", lambda *_, **__: "")
            patch.setattr("minigpt.training.run.build_trainer", lambda *_, **__: TrainerWithoutArithmetic(bad))
            patch.setattr("minigpt.training.step.publish", lambda *_: None)
            patch.setattr("minigpt.training.output.publish", lambda *_: None)
            patch.setattr("os.fsync", lambda descriptor: None)
            patch.setattr(output, "score_split", score)
            real = checkpoint_folder._remove

            def remove(path):
                good = [other for other in list_checkpoints(path.parent) if not read_manifest(other).get("bad_steps")]
                real(path)
                assert not good or good[-1].is_dir(), "the newest good checkpoint is gone"

            patch.setattr(checkpoint_folder, "_remove", remove)
            assert train(config) == 0
        return path

    return attempt


REASONS = r"no checkpoint before step|guard\.max_rollbacks=|every one of the"
SCHEDULES = {
    "bad": st.sets(st.integers(0, 40), max_size=12)
    | st.builds(lambda first, length: set(range(first, first + length)), st.integers(0, 30), st.integers(1, 14)),
    "every": st.integers(1, 9),
    "max_skips": st.integers(0, 12),
    "keep_last": st.integers(2, 4),
}


def go_back_and_end_with_the_same_bytes(trial, bad, *rules):
    """A run that learns of its bad batches ends as one that knew from the start those that it left out."""
    reason = ""
    try:
        run = trial(bad, rules)
    except NonFiniteTraining as fault:
        reason = str(fault)
    if reason:
        assert re.search(REASONS, reason)
        return
    other = trial(bad, rules, json.loads((run / "skipped_batches.json").read_text()))
    assert compare_runs(run, other)[1] == []


@given(**SCHEDULES)
@settings(max_examples=5, derandomize=True)
def test_no_schedule_of_bad_steps_loses_the_newest_good_checkpoint(trial, bad, every, max_skips, keep_last):
    go_back_and_end_with_the_same_bytes(trial, bad, every, max_skips, keep_last)


class Diverge(L.Callback):
    """At the end of step 12 the weights are so large that logits overflow, once."""

    done = False

    def on_train_batch_end(self, trainer, module, *_):
        if module.state.step == 12 and not self.done:
            self.done = True
            with torch.no_grad():
                module.gpt.token_embedding.weight.mul_(1e30)


def test_a_sample_that_is_due_among_bad_steps_leaves_the_guard_to_its_work(run, capsys):
    words = ("trainer.max_steps=20", "guard.max_skips=3", "checkpoint.every_steps=10", "samples.every_steps=14")
    assert train(compose("train", run.arguments(*words, "validate.every_steps=0")), callbacks=[Diverge()]) == 0
    assert "No sample at step 14: the model's logits are NaN or infinite" in capsys.readouterr().out
    events = [event["event"] for event in run.events()]
    assert events == ["began", *["skipped"] * 4, "rolled_back", "continued", "saved", "finished"]
    samples = [json.loads(line)["step"] for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert samples == [14, 20]  # the weights that it went back to can write
