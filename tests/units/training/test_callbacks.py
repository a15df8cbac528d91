"""Lightning callbacks of a user's own: which hooks reach them, when, and what of them survives a restart."""

import lightning as L
import pytest
import torch

from minigpt.faults import UserFault
from minigpt.verify import compare_runs

NEVER = {
    "on_sanity_check_start", "on_sanity_check_end", "on_validation_batch_start", "on_validation_batch_end",
    "on_load_checkpoint", "on_exception",
    *(f"on_{what}_{when}" for what in ("test", "predict") for when in
      ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end")),
}  # fmt: skip
HOOKS = {name for name in vars(L.Callback) if name.startswith("on_")} | {"setup", "teardown"}


class Notes(L.Callback):
    """Writes down the name of each hook that is called, and how many steps were done."""

    def __init__(self):
        self.calls = []


def _note(name):
    def hook(self, trainer, pl_module, *arguments, **options):
        self.calls.append((name, pl_module.state.step))

    return hook


for _name in HOOKS:
    setattr(Notes, _name, _note(_name))


def test_every_hook_of_lightning_reaches_a_callback_or_is_named_as_one_that_does_not(run):
    notes = Notes()
    run(callbacks=[notes])
    assert {name for name, _ in notes.calls} == HOOKS - NEVER


def test_the_hooks_of_a_step_come_in_this_order(run):
    notes = Notes()
    run("trainer.micro_batch=4", "trainer.max_steps=2", callbacks=[notes])
    micro_batch = ["on_train_batch_start", "on_before_backward", "on_after_backward", "on_train_batch_end"]
    names = [name for name, _ in notes.calls if name != "on_before_zero_grad"]
    first = names.index("on_train_batch_start")
    before_update = ["on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step"]
    assert names[first : first + 9] == [*micro_batch, *before_update, "on_train_batch_end"]
    last = names[first + 9 : first + 9 + 14]
    assert last == [
        *micro_batch, *before_update, "on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end",
        "on_validation_end", "on_train_batch_end", "on_save_checkpoint",
    ]  # fmt: skip
    done = [step for name, step in notes.calls if name == "on_train_batch_end"]
    assert done == [0, 1, 1, 2]  # the step is counted when its last micro-batch ends


def test_a_callback_sees_the_numbers_of_the_last_row(run):
    seen = []

    class Read(L.Callback):
        def on_validation_end(self, trainer, pl_module):
            seen.append([float(trainer.callback_metrics[name]) for name in names])

    names = ["step", "tokens", "train/loss", "val/loss"]
    run("logger.every_steps=1", callbacks=[Read()])
    assert seen == [pytest.approx([row[name] for name in names]) for row in run.rows() if "val/loss" in row]


@pytest.mark.parametrize("hook", ["on_validation_end", "on_train_batch_end"])
def test_a_callback_may_end_the_training_with_a_checkpoint_and_the_run_goes_on(run, tmp_path, hook, capsys):
    whole = run().rename(tmp_path / "whole")
    stop = L.Callback()

    def end(trainer, pl_module, *_):
        trainer.should_stop = trainer.should_stop or pl_module.state.step == 4

    setattr(stop, hook, end)
    run(callbacks=[stop])
    assert "by a callback" in capsys.readouterr().out
    assert sorted(path.name for path in run.path.glob("checkpoints/step-*"))[-1] == "step-000000004"
    run()
    assert compare_runs(whole, run.path)[1] == []


class Average(L.Callback):
    """A moving average of a weight, and the steps it has seen."""

    def __init__(self, stop_at=None):
        self.average = torch.zeros(16)
        self.history = []
        self.stop_at = stop_at

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.average.lerp_(pl_module.gpt.final_norm.weight.detach(), 0.1)
        self.history.append(pl_module.state.step)
        trainer.should_stop = self.stop_at == pl_module.state.step

    def state_dict(self):
        return {"average": self.average.tolist(), "history": self.history, "note": None}

    def load_state_dict(self, state):
        self.average, self.history = torch.tensor(state["average"]), state["history"]


def test_the_state_of_a_callback_goes_on_where_the_run_does(run, tmp_path):
    straight = Average()
    whole = run(callbacks=[straight]).rename(tmp_path / "whole")
    run(callbacks=[Average(stop_at=2)])
    resumed = Average()
    run(callbacks=[resumed])
    assert resumed.history == [0, 1, 2, 3, 4, 5]
    assert torch.equal(resumed.average, straight.average)
    assert compare_runs(whole, run.path)[1] == []  # callbacks.json among the files
    assert (whole / "checkpoints/step-000000006/callbacks.json").is_file()


def test_a_state_that_is_not_json_is_refused_before_anything_is_written(run):
    odd = L.Callback()
    odd.state_dict = lambda: {"open": {1, 2}}
    with pytest.raises(UserFault, match=r"set is not JSON serializable\. .*trainer\.patience=N"):
        run(callbacks=[odd])
    assert not run.path.exists()
