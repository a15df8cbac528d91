"""minigpt benchmark: measures each part in turn, prints tables, and the ratios last."""

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from minigpt.benchmark.bench import HEADS, Bench, Section, say
from minigpt.benchmark.sampling import sampling
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import markdown
from minigpt.benchmark.tokens import write_text
from minigpt.benchmark.training import resuming, training, variants
from minigpt.files import write_file, write_json
from minigpt.rundir.run_directory import commit, environment

BUSY = 0.5  # load average above which figures are doubtful
PARTS = {part.__name__: part for part in (training, variants, resuming, sampling)}


def benchmark(plans: Sequence[Plan]) -> int:
    """Measure what the plans ask for, one size after the other.

    Returns:
        0, or 1 if the loss curves differ from nanoGPT's or a run does not resume exactly.

    Raises:
        UserFault: a contender of ours ended with an error.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends the measurement, too, as Ctrl-C does
    write_to, checkout = plans[0].config.write_to, plans[0].config.nanogpt
    if write_to is not None:
        Path(write_to).mkdir(parents=True, exist_ok=True)  # now: a fault must not come after all is measured
    beside = f", nanoGPT at {commit(Path(checkout))}" if checkout else ""
    facts = [f"{name} {value}" for name, value in environment().items()]
    about = [f"Machine    {time.strftime('%Y-%m-%d %H:%M:%S %Z')}, {', '.join(facts)}{beside}"]
    if os.getloadavg()[0] > BUSY:
        about.append(f"WARNING: the load average is {os.getloadavg()[0]:.2f}: wait until nothing else is running")
    say("\n".join(about))
    sections: list[tuple[str, Section]] = []
    for plan in plans:
        with tempfile.TemporaryDirectory(prefix="minigpt-benchmark-", ignore_cleanup_errors=True) as folder:
            bench = Bench(plan, Path(folder))
            write_text(bench.folder / "text.txt", plan.vocab_size)
            bench.choices = bench.measure("steps.probe")
            about.append(describe_choices(plan, bench.choices))
            say(about[-1])
            for part in dict.fromkeys(plan.config.what.split(",")):
                section = PARTS[part](bench)
                sections.append((plan.config.preset, section))
                table = "\n\n".join([markdown(HEADS, section.rows), *section.notes])
                say(f"\n## {section.title}, {plan.config.preset}\n\n{table}\n")
                if write_to is not None:
                    write_results(Path(write_to), about, sections)
    say(" | ".join(section.summary for _, section in sections if section.summary))
    return int(any(section.void for _, section in sections))


def describe_choices(plan: Plan, choices: dict) -> str:
    """Return lines with the settings of a plan and the automatic choices."""
    compiled = "compiled" if choices["compile"] else "not compiled"
    return (
        f"Settings   preset={plan.config.preset} {' '.join(plan.settings)}\n"
        f"Choices    {choices['device']} ({choices['name']}), {choices['threads']} threads, {choices['precision']}, "
        f"{compiled}, {choices['attention_kernel']} attention, {choices['accumulate']} x {choices['micro_batch']} "
        f"sequences a step, V={plan.vocab_size}"
    )


def write_results(folder: Path, about: Sequence[str], sections: Sequence[tuple[str, Section]]) -> None:
    """Write benchmark.md, all sections in one table, and benchmark.json, with every measurement."""
    rows = [[size, part.title, *row] for size, part in sections for row in part.rows]
    table = markdown(["size", "part", *HEADS], rows)
    notes = [f"{part.title}, {size}: {note}" for size, part in sections for note in part.notes]
    write_file(folder / "benchmark.md", "\n\n".join(["\n".join(["```", *about, "```"]), table, *notes]) + "\n")
    content = {"about": about, "sections": [{"size": size, **asdict(part)} for size, part in sections]}
    write_json(folder / "benchmark.json", content)
    say(f"Written to {folder / 'benchmark.md'} and {folder / 'benchmark.json'}")
