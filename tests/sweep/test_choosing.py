"""Which point comes next, and which trial is stopped early: both follow from what is known, and from nothing else."""

import math

import pytest

from minigpt.config.schema import SearchConfig
from minigpt.sweep.propose import importances, propose
from minigpt.sweep.pruning import bracket, bracket_count, is_behind, marks, rungs
from minigpt.sweep.space import Axis
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, Trial, best_trial, ranked, standard_error

LR = Axis("optimizer.lr", low=1e-5, high=1.0, log=True)
AXES = [LR, Axis("model.n_layer", low=1, high=8, step=1, whole=True), Axis("schedule.name", choices=("cosine", "wsd"))]


def loss(point: dict) -> float:
    return (math.log10(point["optimizer.lr"]) + 2.5) ** 2 + 0.02 * abs(point["model.n_layer"] - 6)


def searched(sampler: str, count: int, seed: int = 1) -> list[Trial]:
    search, trials = SearchConfig(sampler=sampler), []
    for number in range(count):
        point = propose(AXES, search, seed=seed, number=number, trials=trials)
        trials.append(Trial(number, point, COMPLETE, loss(point)))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_point_follows_from_number_and_history(sampler):
    once, again = searched(sampler, 12), searched(sampler, 12)
    assert [trial.params for trial in once] == [trial.params for trial in again]
    assert [trial.params for trial in once] != [trial.params for trial in searched(sampler, 12, seed=2)]
    anew = propose(AXES, SearchConfig(sampler=sampler), seed=1, number=9, trials=list(reversed(once[:9])))
    assert anew == once[9].params
    assert all(1e-5 <= trial.params["optimizer.lr"] <= 1 for trial in once)


def test_tpe_learns():
    def late(sampler: str) -> float:
        return sum(trial.value for seed in range(3) for trial in searched(sampler, 30, seed)[15:]) / 45

    assert late("tpe") < 0.6 * late("random")


def test_running_and_failed_trials_do_not_stop_tpe():
    trials = searched("tpe", 8)
    trials += [Trial(8, trials[0].params, RUNNING), Trial(9, trials[1].params, FAILED)]
    trials.append(Trial(10, trials[2].params, PRUNED, 3.0, curve={100: 3.0}))
    assert set(propose(AXES, SearchConfig(), seed=1, number=11, trials=trials)) == {axis.key for axis in AXES}


def test_importance_names_what_matters():
    shares = importances(AXES, searched("random", 40))
    assert max(shares, key=lambda key: shares[key]) == "optimizer.lr"
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(AXES, searched("random", 3)) == {}


def test_marks_are_passed_once_and_the_last_row_decides_nothing():
    values = [(100, 3.0), (200, None), (250, 2.0), (400, 2.5), (700, 1.0), (800, 0.5)]
    rows = [{"tokens": tokens, "val/loss": value} for tokens, value in values]
    assert list(marks(rows, 200, "val/loss")) == [(200, 2.0), (400, 2.0), (600, 1.0)]
    assert list(marks(rows[:1], 50, "val/loss")) == []


def judge(value: float, others: list[Trial], tokens: int = 100, number: int = 99, **search) -> bool:
    trial = Trial(number, {})
    config = SearchConfig(**search)
    return is_behind(trial, tokens, value, others=others, search=config, first=100, last=2700)


def test_median():
    others = [Trial(number, {}, COMPLETE, 1.0, {100: float(number)}) for number in range(5)]
    assert judge(2.1, others, pruner="median")
    assert not judge(2.0, others, pruner="median")
    assert not judge(9.0, others[:4], pruner="median")  # too few to tell
    assert not judge(9.0, others, tokens=200, pruner="median")  # nobody was measured there
    assert not judge(9.0, others, pruner="none")


def test_hyperband_lets_a_third_of_each_bracket_on():
    count = bracket_count(3, 100, 2700)
    assert count == 3
    assert [rungs(place, 3, 100, 2700) for place in range(3)] == [[100, 300, 900], [300, 900], [900]]
    places = [bracket(number, count, 3) for number in range(3000)]
    shares = [places.count(place) / 3000 for place in range(3)]
    assert shares[0] > shares[1] > 0.1
    mine = [number for number in range(200) if bracket(number, count, 3) == 0][:9]
    others = [Trial(number, {}, PRUNED, 1.0, {100: float(place)}) for place, number in enumerate(mine[:8])]
    assert not judge(1.5, others, number=mine[8], pruner="hyperband")
    assert judge(3.5, others, number=mine[8], pruner="hyperband")
    assert not judge(3.5, [], number=mine[8], pruner="hyperband")  # the first to come
    assert not judge(9.0, others, tokens=200, number=mine[8], pruner="hyperband")  # no rung
    other_bracket = next(number for number in range(200) if bracket(number, count, 3) == 2)
    assert not judge(9.0, others, number=other_bracket, pruner="hyperband")


def test_ranks():
    trials = [Trial(0, {}, FAILED), Trial(1, {}, COMPLETE, 2.0), Trial(2, {}, PRUNED, 0.5), Trial(3, {}, COMPLETE, 1.0)]
    assert [trial.number for trial in ranked(trials)] == [3, 1, 2, 0]
    assert best_trial(trials) is trials[3]
    assert best_trial([trials[0], trials[2]]) is None
    assert standard_error([1.0]) is None
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
