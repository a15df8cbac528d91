"""The picture of a sweep."""

from types import SimpleNamespace

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from minigpt.sweep.results import draw_picture

SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "schedule": CategoricalDistribution(["cosine", "wsd"]),
}
STATES = [*[TrialState.COMPLETE] * 4, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]
VALUES = [2.0, 1.9, 2.1, 70.0, 2.05, None, None]


@pytest.fixture
def trials():
    made = []
    for number, (state, value) in enumerate(zip(STATES, VALUES, strict=True)):
        params = {"optimizer.lr": 10 ** (-4 + number / 2), "schedule": ("cosine", "wsd")[number % 2]}
        made.append(create_trial(state=state, value=value, params=params, distributions=SPACE))
        made[-1].number = number
    return made


def test_a_picture_of_one_trial_and_none_without(tmp_path, trials):
    sweep = SimpleNamespace(
        space=SPACE, folder=tmp_path, config=SimpleNamespace(sweep=SimpleNamespace(metric="val/loss"))
    )
    assert draw_picture(sweep, trials[5:]) is None
    for some in (trials[:1], trials):  # one of which diverged
        assert draw_picture(sweep, some).read_bytes()[:4] == b"\x89PNG"
