"""The picture of a sweep, and the comparison that its last lines propose."""

import re
from types import SimpleNamespace

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from minigpt.sweep.results import draw_picture, winner

SPACE = {"optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True)}
SPACE |= {"schedule": CategoricalDistribution(["cosine", "wsd"])}
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
    config = SimpleNamespace(sweep=SimpleNamespace(metric="val/loss"))
    sweep = SimpleNamespace(space=SPACE, folder=tmp_path, config=config)
    assert draw_picture(sweep, trials[5:]) is None
    for some in (trials[:1], trials):  # one of which diverged
        assert draw_picture(sweep, some).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("failed", [False, True])
def test_the_two_best_settings_are_compared_with_all_their_seeds(tmp_path, failed):
    space = {name: CategoricalDistribution(values) for name, values in (("optimizer.lr", [1, 2]), ("seed", [1, 2]))}
    made = []
    for number, (lr, seed, value) in enumerate([(1, 1, 2.3), (2, 1, 2.0), (2, 2, 2.1), (1, 2, 2.2)]):
        state = TrialState.FAIL if failed and number == 3 else TrialState.COMPLETE
        value = value if state == TrialState.COMPLETE else None
        params = {"optimizer.lr": lr, "seed": seed}
        made.append(create_trial(state=state, value=value, params=params, distributions=space))
        made[-1].number = number
    config = SimpleNamespace(seeds=1, sweep=SimpleNamespace(metric="val/loss"), data=SimpleNamespace(name="text"))
    sweep = SimpleNamespace(folder=tmp_path, config=config, runs=None, shared=[])
    text = winner(sweep, made)
    runs = re.findall(r"vs|(?<=trials/000)\d", text.splitlines()[1])
    assert runs == (["1", "2", "vs", "0"] if failed else ["1", "2", "vs", "3", "0"])
    assert f"the next settings have {2.3 if failed else 2.2:.4f}" in text
    config.data.name = "chat"
    assert "compare" not in winner(sweep, made)
