"""The guard's rules, the batches that are left out, and that no schedule of bad steps loses the good checkpoint."""

import json
import math

import lightning as L
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.config.schema import GuardConfig
from minigpt.data.order import batch_of_step
from minigpt.training.guard import fault_of


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
    run(*words, "validate.every_steps=0", callbacks=[Diverge()])
    assert "No sample at step 14: the model's logits are NaN or infinite" in capsys.readouterr().out
    events = [event["event"] for event in run.events()]
    assert events == ["began", *["skipped"] * 4, "rolled_back", "continued", "saved", "finished"]
    samples = [json.loads(line)["step"] for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert samples == [14, 20]  # the weights that it went back to can write
