"""How a budget is divided: the pilot's share of it."""

import pytest

from minigpt.config.compose import compose
from minigpt.ranks.group import Processes
from minigpt.sizing.dial import Dial
from minigpt.sizing.law import Text


@pytest.mark.parametrize(
    ("seconds", "steps"), [(15.0, None), (30.0, 125), (60.0, 250), (120.0, 500), (240.0, 1000), (3600.0, 1000)]
)
def test_a_longer_budget_has_a_longer_pilot(seconds: float, steps: int | None):
    tried = []

    def pilot(config, _):
        tried.append(config.trainer.max_steps)
        return 2.0

    config = compose("train", ["experiment=demo", f"budget={seconds:g}s"])
    sizer = Dial(config, "cpu", lambda *_: 45_000.0, pilot, seconds, Processes())
    text = Text(10**7, 1.7, 1.9)
    leveled = sizer.try_text(None, text)
    assert tried == [] if steps is None else tried == [pytest.approx(steps, rel=0.04)]
    assert (leveled == text) == (steps is None)
