"""The picture of a sweep."""

from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from minigpt.sweep.results import draw_picture, draw_setting, shown_trials

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


@pytest.mark.parametrize("key", SPACE)
def test_every_trial_that_has_ended_is_inside_the_picture(trials, key):
    chart = Figure().subplots()
    draw_setting(chart, key, SPACE[key], shown_trials(trials))
    points = [point for marks in chart.collections for point in marks.get_offsets().tolist()]
    assert len(points) == len(VALUES) - 1
    low, high = chart.get_ylim()
    left, right = chart.get_xlim()
    assert all(left <= x <= right and low < y < high for x, y in points)
    labels = [text.partition(" (")[0] for text in chart.get_legend_handles_labels()[1]]
    assert labels == ["best", "complete", "pruned", "failed", "above the picture"]
    (best,) = chart.collections[0].get_offsets().tolist()
    assert best[1] == 1.9


def test_a_picture_of_one_trial_and_none_without(tmp_path, trials):
    sweep = SimpleNamespace(
        space=SPACE, folder=tmp_path, config=SimpleNamespace(sweep=SimpleNamespace(metric="val/loss"))
    )
    assert draw_picture(sweep, trials[5:]) is None
    assert draw_picture(sweep, trials[:1]).read_bytes()[:4] == b"\x89PNG"
