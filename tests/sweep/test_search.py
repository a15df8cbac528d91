"""Which point comes next, and which trial is stopped early: both follow from what is known, and from nothing else."""

import math
import random

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from minigpt.config.schema import SearchConfig
from minigpt.sweep.search import Pruning, marks, propose
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial, best_trial, ranked, standard_error

from .conftest import made_trial

SPACE = {
    "optimizer.lr": FloatDistribution(1e-5, 1.0, log=True),
    "model.n_layer": IntDistribution(1, 8),
    "schedule.name": CategoricalDistribution(["cosine", "wsd"]),
}


def loss(point: dict) -> float:
    return (math.log10(point["optimizer.lr"]) + 2.5) ** 2 + 0.02 * abs(point["model.n_layer"] - 6)


def searched(sampler: str, count: int, seed: int = 1) -> list[Trial]:
    search, trials = SearchConfig(sampler=sampler), []
    for number in range(count):
        point = propose(SPACE, search, seed=seed, number=number, trials=trials)
        trials.append(made_trial(number, point, COMPLETE, loss(point), space=SPACE))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_point_follows_from_number_and_history(sampler):
    once, again = searched(sampler, 12), searched(sampler, 12)
    assert [trial.params for trial in once] == [trial.params for trial in again]
    assert [trial.params for trial in once] != [trial.params for trial in searched(sampler, 12, seed=2)]
    anew = propose(SPACE, SearchConfig(sampler=sampler), seed=1, number=9, trials=list(reversed(once[:9])))
    assert anew == once[9].params
    assert all(1e-5 <= trial.params["optimizer.lr"] <= 1 for trial in once)


def test_tpe_learns():
    def late(sampler: str) -> float:
        return sum(trial.value for seed in range(3) for trial in searched(sampler, 30, seed)[15:]) / 45

    assert late("tpe") < 0.6 * late("random")


def test_running_and_failed_trials_do_not_stop_tpe():
    trials = searched("tpe", 8)
    trials += [made_trial(8, trials[0].params, space=SPACE), made_trial(9, trials[1].params, FAILED, space=SPACE)]
    trials.append(made_trial(10, trials[2].params, PRUNED, 3.0, {100: 3.0}, space=SPACE))
    assert set(propose(SPACE, SearchConfig(), seed=1, number=11, trials=trials)) == set(SPACE)


def test_marks_are_passed_once_and_the_last_row_decides_nothing():
    values = [(100, 3.0), (200, None), (250, 2.0), (400, 2.5), (700, 1.0), (800, 0.5)]
    rows = [{"tokens": tokens, "val/loss": value} for tokens, value in values]
    assert list(marks(rows, 200, "val/loss")) == [(200, 2.0), (400, 2.0), (600, 1.0)]
    assert list(marks(rows[:1], 50, "val/loss")) == []


def judge(value: float, others: list[Trial], tokens: int = 100, number: int = 99, **search) -> bool:
    pruning = Pruning(SearchConfig(**search), first=100, last=2700)
    return pruning.is_behind(number, [*others, made_trial(number, curve={tokens: value})])


def test_median():
    others = [made_trial(number, {}, COMPLETE, 1.0, {100: float(number)}) for number in range(5)]
    assert judge(2.1, others, pruner="median")
    assert not judge(2.0, others, pruner="median")
    assert not judge(9.0, others[:4], pruner="median")  # too few to tell
    assert not judge(9.0, others, tokens=200, pruner="median")  # nobody was measured there
    assert not judge(9.0, others, pruner="none")


def first_stops(count: int) -> list[int | None]:
    """Where each of some trials, each worse than those before, is stopped first; None: nowhere."""
    pruning = Pruning(SearchConfig(pruner="hyperband"), first=100, last=2700)
    found = []
    for number in range(count):
        curve, stops = {}, []
        for tokens in range(100, 2700, 100):
            curve[tokens] = 2.0 + number
            stops += [tokens] if pruning.is_behind(number, [made_trial(number, curve=curve)]) else []
        found.append(stops[0] if stops else None)
    return found


def test_hyperband_judges_each_bracket_first_at_a_rung_of_its_own():
    firsts = first_stops(200)
    assert {100, 300, 900} <= set(firsts) <= {100, 300, 900, None}
    assert firsts.count(100) > firsts.count(900) > 0


def test_hyperband_lets_a_third_go_on():
    firsts = first_stops(60)
    mine = [number for number, first in enumerate(firsts) if first == 100]
    others = [made_trial(number, {}, PRUNED, 1.0, {100: float(place)}) for place, number in enumerate(mine[:8])]
    assert not judge(1.5, others, number=mine[8], pruner="hyperband")
    assert judge(3.5, others, number=mine[8], pruner="hyperband")
    assert not judge(3.5, [], number=mine[8], pruner="hyperband")  # the first to come
    assert not judge(9.0, others, number=firsts.index(900), pruner="hyperband")  # another bracket


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_verdict_is_repeated_by_a_process_that_begins_anew(pruner):
    """What the trials have reported decides, not how often or by which process the pruner was asked."""
    chance, trials, verdicts = random.Random(3), [], []
    running = Pruning(SearchConfig(pruner=pruner), first=100, last=2700)
    for number in range(30):
        curve, verdict = {}, False
        for tokens in range(100, 2700, 100):
            curve[tokens] = chance.random()
            known = [*trials, made_trial(number, curve=curve)]
            verdict = running.is_behind(number, known)
            if tokens in (100, 300, 900):
                again = Pruning(SearchConfig(pruner=pruner), first=100, last=2700)
                assert again.is_behind(number, known) == verdict
            if verdict:
                break
        verdicts.append(verdict)
        trials.append(made_trial(number, {}, PRUNED if verdict else COMPLETE, curve[tokens], curve))
    assert verdicts.count(True) > 5
    assert verdicts.count(False) > 5


def test_ranks():
    trials = [made_trial(0, {}, FAILED), made_trial(1, {}, COMPLETE, 2.0), made_trial(2, {}, PRUNED, 0.5)]
    trials += [made_trial(3, {}, COMPLETE, 1.0), made_trial(4)]
    assert [trial.number for trial in ranked(trials)] == [3, 1, 2, 4, 0]
    assert best_trial(trials) is trials[3]
    assert best_trial([trials[0], trials[2]]) is None
    assert standard_error(made_trial(0, facts={"values": [1.0]})) is None
    assert standard_error(made_trial(0, facts={"values": [1.0, 2.0, 3.0]})) == pytest.approx(1 / math.sqrt(3))
