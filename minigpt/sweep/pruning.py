"""Early stopping: the marks where trials are compared, and Optuna's pruners behind one question.

The verdict is a function of what the trials have reported, so a sweep that was killed repeats it when it goes on.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna

from minigpt.config.schema import SearchConfig
from minigpt.sweep.trial import COMPLETE, Trial, is_finished


def marks(rows: Sequence[Mapping[str, Any]], every_tokens: int, metric: str) -> Iterator[tuple[int, float]]:
    """Yield (tokens, best value so far) at each multiple of `every_tokens` that a run has passed.

    The last row is left out: it may be the run's end, and a run at its end is complete.
    """
    best, passed = math.inf, 0
    for row in rows[:-1]:
        value, tokens = row.get(metric), row.get("tokens")
        if not isinstance(value, int | float) or not isinstance(tokens, int):
            continue
        best = min(best, value)
        for mark in range(passed + 1, tokens // every_tokens + 1):
            yield mark * every_tokens, best
        passed = max(passed, tokens // every_tokens)


class Pruning:
    """Asks one of Optuna's pruners about trials, on a study in memory that repeats what they have reported.

    Optuna's Hyperband notes in its storage which rungs a trial has completed, so asking it twice changes the answer.
    The study in memory begins anew with each process, and with it the notes.

    Args:
        search: names the pruner and holds its settings.
        first: tokens at the first mark.
        last: tokens of a whole run.
    """

    def __init__(self, search: SearchConfig, *, first: int, last: int):
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if search.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=search.startup_trials)
        elif search.pruner == "hyperband":
            pruner = optuna.pruners.HyperbandPruner(first, max(first, last), search.reduction_factor)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Hyperband's brackets follow from the study's name, which is therefore the same everywhere.
        self.study = optuna.create_study(study_name="sweep", sampler=optuna.samplers.RandomSampler(), pruner=pruner)
        self.copies: list[optuna.Trial] = []
        self.reported: set[tuple[int, int]] = set()  # number and mark
        self.told: set[int] = set()
        self.verdicts: dict[int, bool] = {}  # at each trial's last mark

    def is_behind(self, number: int, trials: Sequence[Trial]) -> bool:
        """Return whether trial `number` is to be stopped at the last mark that it has reported."""
        for trial in sorted(trials, key=lambda each: (each.number == number, each.number)):
            while len(self.copies) <= trial.number:
                self.copies.append(self.study.ask())
            copy = self.copies[trial.number]
            for tokens, value in sorted(trial.intermediate_values.items()):
                if (trial.number, tokens) not in self.reported:
                    self.reported.add((trial.number, tokens))
                    copy.report(value, tokens)
                    self.verdicts[trial.number] = copy.should_prune()
            if is_finished(trial) and trial.number not in self.told:
                self.told.add(trial.number)
                self.study.tell(copy, trial.value if trial.state == COMPLETE else None, trial.state)
        return self.verdicts.get(number, False)
