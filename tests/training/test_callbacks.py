"""Lightning callbacks of a user's own: which hooks reach them."""

import lightning as L

from minigpt.config.compose import compose
from minigpt.training.run import train


class Notes(L.Callback):
    """Writes down each call of some hooks."""

    def __init__(self):
        self.calls = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.calls.append("step")

    def on_validation_start(self, trainer, pl_module):
        self.calls.append("validation")

    def on_validation_end(self, trainer, pl_module):
        self.calls.append("validated")


def test_a_callback_sees_each_optimizer_step_and_each_validation(run):
    notes = Notes()
    train(compose("train", run.arguments("trainer.micro_batch=4", "trainer.max_steps=4")), callbacks=[notes])
    step, validation = ["step"], ["validation", "validated"]
    assert notes.calls == step * 2 + validation + step * 2 + validation
