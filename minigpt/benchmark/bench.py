"""What the parts of a benchmark share: measurements taken in turn, and the table of their results."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.benchmark.measurement import measure, numbers
from minigpt.benchmark.settings import WARM_UP, Plan
from minigpt.benchmark.table import number, spread
from minigpt.faults import UserFault

HEADS = ["measured", "ms/step", "tokens/s", "first, s", "times as long"]

Measurement = dict[str, Any]  # ms of a step, tokens of a step, first: seconds to the first step, if it is known
Found = dict[str, list[Measurement]]  # contender -> a measurement per round

say = partial(print, flush=True)  # at once: a benchmark is long


@dataclass(frozen=True)
class Section:
    """The result of a part."""

    title: str
    rows: list[list[str]]  # under HEADS
    notes: Sequence[str] = ()
    summary: str = ""  # for the last line of all
    void: bool = False  # whether its speeds are invalid
    measurements: Found = field(default_factory=dict)


@dataclass
class Bench:
    """The benchmark of one size while it runs."""

    plan: Plan
    folder: Path  # for all files
    choices: dict[str, Any] = field(default_factory=dict)  # what minigpt.benchmark.steps.probe returned

    def words(self, *changes: str, steps: int = 0) -> list[str]:
        """Return the command line of one training, in a run directory of its own.

        Args:
            changes: settings that differ from the plan's.
            steps: optimizer steps; 0: those of a measurement, one more than the gaps between them.
        """
        text = ("data=text", f"data.source={self.folder / 'text.txt'}", f"data.dir={self.folder / 'data'}")
        length = f"trainer.max_steps={steps or WARM_UP + (self.plan.config.steps or 0) + 1}"
        own = (*text, "tokenizer=char", length, "validate.every_steps=0", "data.val_fraction=0.01")  # fast to validate
        return [*self.plan.settings, *own, f"run.dir={self.folder / f'run-{next(numbers)}'}", *changes]

    def measure(self, job: str, *changes: str, **task: Any) -> dict[str, Any]:
        """Do a job (see minigpt.benchmark.measurement.measure) with the plan's settings and these changes."""
        words = task.pop("words", None) or self.words(*changes)
        return measure(self.folder, job, threads=self.choices.get("threads", 0), words=words, **task)

    def in_turn(self, contenders: Mapping[str, Callable[[], Measurement]]) -> tuple[Found, list[str]]:
        """Measure all contenders in each round, A B C A B C ...

        Returns:
            The measurements, and a note for each contender that failed and is left out.

        Raises:
            UserFault: a contender failed whose name begins with minigpt.
        """
        found: Found = {name: [] for name in contenders}
        notes, rounds = [], self.plan.config.rounds
        for turn in range(1, rounds + 1):
            for name in list(found):
                try:
                    found[name].append(contenders[name]())
                except UserFault as fault:
                    if name.startswith("minigpt"):
                        raise
                    notes.append(f"{name} is left out: {fault}")
                    say(f"WARNING    {notes[-1]}")
                    del found[name]
                else:
                    say(f"Round {turn}/{rounds}  {name:<30} {found[name][-1]['ms']:10,.2f} ms/step")
        return found, notes

    def section(
        self, title: str, found: Found, notes: Sequence[str], *, baseline: Callable[[str], str], void: bool = False
    ) -> Section:
        """Return a section with a row per contender. Ratios are taken within a round: its conditions are the same.

        Args:
            title: of the part.
            found: all measurements.
            notes: needed to read the table.
            baseline: contender -> the one of ours with which it is compared.
            void: whether the speeds are invalid.
        """
        rows = []
        for name, measurements in found.items():
            times = [each["ms"] for each in measurements]
            own = [each["ms"] for each in found[baseline(name)]]
            speed = statistics.median(1e3 * each["tokens"] / each["ms"] for each in measurements)
            firsts = [each["first"] for each in measurements if each.get("first") is not None]
            first = number(statistics.median(firsts)) if firsts else ""
            ratio = "1" if times == own else spread([one / other for one, other in zip(times, own, strict=True)])
            rows.append([name, spread(times), number(speed), first, ratio])
        facts = f"{self.plan.config.preset} {self.choices['precision']}{' compiled' * self.choices['compile']}"
        ratios = "; ".join(f"{name} {ratio}" for name, *_, ratio in rows if ratio != "1")
        start = "VOID: the curves differ. " if void else ""
        return Section(title, rows, notes, f"{start}{title} {facts}, times as long: {ratios}", void, found)
