"""Which point comes next follows from what is known, and marks from the rows of a run."""

import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial

from minigpt.config.schema import SearchConfig, TrainerConfig
from minigpt.sweep.results import shown_trials, standard_error
from minigpt.sweep.search import propose, share_gpus
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, marks

SPACE = {
    "optimizer.lr": FloatDistribution(1e-5, 1.0, log=True),
    "model.n_layer": IntDistribution(1, 8),
    "schedule.name": CategoricalDistribution(["cosine", "wsd"]),
}


def made(number, state=RUNNING, value=None, point=None, **facts) -> FrozenTrial:
    space = SPACE if point else {}
    trial = create_trial(state=RUNNING, params=point or {}, distributions=space, user_attrs=facts)
    trial.number, trial.state, trial.value = number, state, value
    trial.datetime_complete = trial.datetime_start if state.is_finished() else None
    return trial


def loss(point: dict) -> float:
    return (math.log10(point["optimizer.lr"]) + 2.5) ** 2 + 0.02 * abs(point["model.n_layer"] - 6)


def searched(sampler: str, count: int, seed: int = 1) -> list[FrozenTrial]:
    search, trials = SearchConfig(sampler=sampler), []
    for number in range(count):
        point = propose(SPACE, search, seed=seed, number=number, trials=trials)
        trials.append(made(number, COMPLETE, loss(point), point))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_point_follows_from_number_and_history(sampler):
    once, again = searched(sampler, 12), searched(sampler, 12)
    assert [trial.params for trial in once] == [trial.params for trial in again]
    assert [trial.params for trial in once] != [trial.params for trial in searched(sampler, 12, seed=2)]


def test_tpe_learns_and_running_and_failed_trials_do_not_stop_it():
    def late(sampler: str) -> float:
        return sum(trial.value for trial in searched(sampler, 30)[15:]) / 15

    assert late("tpe") < 0.7 * late("random")
    trials = searched("tpe", 8)
    trials += [made(8, point=trials[0].params), made(9, FAILED, point=trials[1].params)]
    assert set(propose(SPACE, SearchConfig(), seed=1, number=11, trials=trials)) == set(SPACE)


def test_marks_are_passed_once_and_the_last_row_decides_nothing():
    values = [(100, 3.0), (200, None), (250, 2.0), (400, 2.5), (700, 1.0), (800, 0.5)]
    rows = [{"tokens": tokens, "val/loss": value} for tokens, value in values]
    assert list(marks(rows, 200, "val/loss")) == [(200, 2.0), (400, 2.0), (600, 1.0)]
    assert list(marks(rows[:1], 50, "val/loss")) == []


def test_ranks_and_trials_that_were_tried_again():
    trials = [made(0, FAILED), made(1, COMPLETE, 2.0), made(2, PRUNED, 0.5), made(3, COMPLETE, 1.0), made(4)]
    assert [trial.number for trial in shown_trials(trials)] == [3, 1, 2, 4, 0]
    again = made(5, COMPLETE, 1.5, again=0)
    assert [trial.number for trial in shown_trials([*trials, again])] == [3, 5, 1, 2, 4]
    assert standard_error(made(0, values=[1.0])) is None
    assert standard_error(made(0, values=[1.0, 2.0, 3.0])) == pytest.approx(1 / math.sqrt(3))


def test_workers_share_the_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert share_gpus(4, TrainerConfig(device="cuda")) == ["3", "5", "7", "3"]
    assert share_gpus(2, TrainerConfig(device="cuda", devices=2)) == ["3,5", "7,3"]
    assert share_gpus(2, TrainerConfig(device="cpu")) == ["", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert share_gpus(2, TrainerConfig(device="auto")) == ["", ""]
