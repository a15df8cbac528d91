"""The sweep's loop: Optuna proposes settings, keeps the trials and prunes; each slot trains a trial at a time."""

import contextlib
import itertools
import os
import signal
import time
import warnings
import zlib
from collections.abc import Sequence

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, create_trial

from minigpt.config.convert import values
from minigpt.config.run_names import NAMED, differences
from minigpt.config.schema import SearchConfig, TrainerConfig
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import FINISHED, NON_FINITE, STOPPED, TRIALS_FAILED, UserFault
from minigpt.files import lock_or_wait, read_json, write_file, write_json
from minigpt.machine.cores import usable_cores
from minigpt.ranks.signals import Signals
from minigpt.ranks.slurm import requeue
from minigpt.redact import redact, redact_values
from minigpt.screen import number_of, tell
from minigpt.sweep import results
from minigpt.sweep.settings import Sweep
from minigpt.sweep.space import Point, Space, points, rounded
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, TrialRun, run_number

POLL_SECONDS = 0.1
optuna.logging.set_verbosity(optuna.logging.WARNING)  # the sweep prints lines of its own about each trial
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def run_sweep(sweep: Sweep) -> int:
    """Begin or continue a sweep, and run it to its end.

    Returns:
        0 when all trials have a result, 6 when some failed or too many failed in a row, 75 when a signal stopped it.
    """
    with Signals() as signals, contextlib.ExitStack() as opened:
        if not {key.partition(".")[0] for key in sweep.space} & {"data", "tokenizer", "experiment"}:
            prepare(sweep.config.data, sweep.config.tokenizer)  # once, or trials would wait for each other
        for name in ("trials", "logs"):
            (sweep.folder / name).mkdir(parents=True, exist_ok=True)
        held = opened.enter_context(open(sweep.folder / "sweep.lock", "a"))
        others = f"another command runs {sweep.folder}, or trainings of one that was killed save and stop"
        lock_or_wait(held, lambda: tell(f"Waiting: {others}"))
        check_identity(sweep)
        signals.noted_only = True
        loop = Loop(sweep, open_study(sweep), signals, held.fileno())
        loop.run()
        return loop.close()


def check_identity(sweep: Sweep) -> None:
    """Write sweep.json, or check that the sweep in this directory is the same one."""
    file = sweep.folder / "sweep.json"
    if not file.exists():
        write_json(file, redact_values(values(sweep.config)))
        return
    if changed := [change for change in differences(read_json(file), sweep.config) if change.role in NAMED]:
        listed = "\n  ".join(map(str, changed))
        remedy = "Use the old values, or start another sweep with sweep.dir=NEW_DIR"
        raise UserFault(f"sweep.dir={sweep.folder} was begun with other settings:\n  {listed}\n{remedy}")


def open_study(sweep: Sweep) -> optuna.Study:
    """Open Optuna's journal of the sweep, without half a line that a full disk has left."""
    journal, search = sweep.folder / "journal.jsonl", sweep.config.search
    journal.with_name("journal.jsonl.lock").unlink(missing_ok=True)  # of a sweep that was killed while it wrote
    if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):
        write_file(journal, content[: content.rfind(b"\n") + 1])
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if search.pruner == "median":
        pruner = optuna.pruners.MedianPruner(n_startup_trials=search.startup_trials)
    elif search.pruner == "hyperband":
        first, trainer = sweep.mark_tokens, sweep.config.trainer
        last = max(first, trainer.max_tokens or (trainer.max_steps or 0) * sweep.config.batch_tokens)
        pruner = optuna.pruners.HyperbandPruner(first, last, search.reduction_factor)
    storage, name = optuna.storages.JournalStorage(JournalFileBackend(str(journal))), sweep.folder.resolve().name
    options = {"study_name": name, "sampler": optuna.samplers.RandomSampler(), "pruner": pruner, "load_if_exists": True}
    return optuna.create_study(storage=storage, **options)  # type: ignore[arg-type]


def propose(space: Space, search: SearchConfig, *, seed: int, number: int, trials: Sequence[FrozenTrial]) -> Point:
    """Choose the point of trial `number`; random numbers follow from the sweep's seed and this number.

    TPE is the tree-structured Parzen estimator. Source: Bergstra et al. 2011, section 4; multivariate as in Falkner
    et al. 2018 (BOHB), section 3.3.
    """
    if search.sampler == "grid":
        return next(itertools.islice(points(space), number, None))
    trial_seed = zlib.crc32(f"{seed}/{number}".encode())
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(trial_seed)
    if search.sampler == "tpe" and sum(trial.state in (COMPLETE, PRUNED) for trial in trials) >= search.startup_trials:
        sampler = optuna.samplers.TPESampler(seed=trial_seed, multivariate=True, constant_liar=True, n_startup_trials=0)
    study = optuna.create_study(sampler=sampler)  # in memory, so that the storage gets the rounded values in one write
    study.add_trials([trial for trial in trials if trial.state != FAILED])
    point = study.ask(dict(space)).params
    return {key: rounded(distribution, point[key]) for key, distribution in space.items()}


def share_gpus(workers: int, trainer: TrainerConfig) -> list[str]:
    """Return the GPUs of each worker, as CUDA_VISIBLE_DEVICES names them; "" on a CPU."""
    if trainer.device in ("cpu", "mps"):
        return [""] * workers
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        import torch  # here, not above: a sweep on CPUs needs none of it

        visible = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = itertools.cycle(visible.split(","))
    return [",".join(dict.fromkeys(itertools.islice(gpus, trainer.devices))) for _ in range(workers)]


class Loop:
    """Gives trials to this machine's slots until there are no more.

    `signals` is looked at between two rounds; `lock` is the descriptor of the sweep's lock.
    """

    def __init__(self, sweep: Sweep, study: optuna.Study, signals: Signals, lock: int):
        self.sweep, self.study, self.signals, self.lock = sweep, study, signals, lock
        self.failures, self.stopped_early = 0, False  # in a row; whether there were too many
        config = sweep.config
        self.gpus = share_gpus(config.workers, config.trainer)  # of each slot
        self.threads = max(1, usable_cores() // (config.workers * (1 if self.gpus[0] else config.trainer.devices)))
        self.warned: set[str] = set()
        self.running: dict[int, TrialRun] = {}  # by the number of the slot
        current = results.shown_trials(self.trials())
        self.left = [trial for trial in current if trial.state == RUNNING]  # by a sweep that was stopped or killed
        self.failed = [t for t in current if t.state == FAILED and t.user_attrs.get("code") != NON_FINITE]
        done = f", {len(current) - len(self.left)} done" if current else ""
        done += f", {len(self.failed)} that failed are tried again" if self.failed else ""
        what = number_of(self.sweep.trials, "trial")
        tell(f"Sweep      {self.sweep.folder}: {what} of {', '.join(self.sweep.space) or 'one setting'}{done}")

    def trials(self) -> list[FrozenTrial]:
        """Return all trials as they are now, by number."""
        return self.study.get_trials(deepcopy=False)

    def run(self) -> None:
        """Run until all trials have a result, or no more may be begun."""
        while True:
            for number, gpus in enumerate(self.gpus):
                if number not in self.running and (trial := self.next_trial()):
                    self.running[number] = TrialRun(self.sweep, self.study, trial, gpus, self.threads, self.lock)
            if not self.running:
                return
            for number, run in list(self.running.items()):
                run.stopping = self.signals.received is not None
                if next(run.looks, "over") == "over":
                    del self.running[number]
                    self.finish(run)
            time.sleep(POLL_SECONDS)

    def next_trial(self) -> FrozenTrial | None:
        """Return a trial that was stopped, one that failed in an earlier sweep, or a new one; None: begin no more."""
        if self.signals.received is not None or self.stopped_early:
            return None
        if self.left:
            return self.left.pop(0)
        if self.failed:
            failed = self.failed.pop(0)
            return self.add(failed.params, {"again": run_number(failed)})
        number, config = len(results.shown_trials(self.trials())), self.sweep.config
        if number >= self.sweep.trials:
            return None
        seed = config.sweep.seed
        return self.add(propose(self.sweep.space, config.search, seed=seed, number=number, trials=self.trials()), {})

    def add(self, point: Point, facts: dict) -> FrozenTrial:
        """Add a running trial to the record."""
        trial = create_trial(state=RUNNING, params=point, distributions=self.sweep.space, user_attrs=facts)
        self.study.add_trial(trial)
        return self.trials()[-1]

    def finish(self, run: TrialRun) -> None:
        """Print a trial's result, if it has one, and bring the leaderboard up to date."""
        trial, limit = self.trials()[run.trial.number], self.sweep.config.sweep.max_failures
        if not trial.state.is_finished():
            return
        tell(results.news_of(trial, self.sweep, time.monotonic() - run.began))
        said = run.output.read_text(errors="replace").splitlines() if run.output and run.output.exists() else []
        if news := {line for line in said if line.startswith("WARNING")} - self.warned:  # each once
            tell("\n".join(f"    | {redact(line)}" for line in sorted(news)))
            self.warned |= news
        results.write_leaderboard(self.sweep, self.trials())
        self.failures = self.failures + 1 if trial.state == FAILED else 0
        if trial.state == FAILED and run.child:
            tell("\n".join(f"    | {redact(line)}" for line in run.child.last_lines()[-5:]))
        if limit and self.failures >= limit:
            self.stopped_early = True
            what = f"{limit} trials in a row failed, so no more are begun (sweep.max_failures={limit})"
            tell(f"Stopped early: {what}. The last, see {run.output}: {trial.user_attrs['cause']}")

    def close(self) -> int:
        """Print the final table and how the sweep ended; return the exit code."""
        trials = self.trials()
        results.write_leaderboard(self.sweep, trials)
        tell(results.summary(self.sweep, trials))
        picture = results.draw_picture(self.sweep, trials)
        tell(f"Results    {self.sweep.folder / 'leaderboard.csv'}   {picture or ''}")
        if winner := results.winner(self.sweep, trials):
            tell(winner)
        if self.signals.received is not None:
            tell("Stopped, each trial with a checkpoint. The same command continues the sweep.")
            requeue(tell, asked=self.signals.received == signal.SIGUSR1)
            return STOPPED
        failed = sorted((t for t in results.shown_trials(trials) if t.state == FAILED), key=run_number)
        if not failed:
            return FINISHED
        what = number_of(len(failed), "trial")
        tell(f"{what} failed. Remove the cause; the same command tries all but non-finite ones again")
        code = failed[0].user_attrs.get("code") if self.sweep.runs else None  # None, too, of one that hung
        return TRIALS_FAILED if code is None else 128 - code if code < 0 else code
