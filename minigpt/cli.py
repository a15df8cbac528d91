"""The command `minigpt COMMAND [key=value ...]`; scripts/*.py and `python -m minigpt` come here, too.

A command is a function below: its first line stands in the list of commands, and what it imports is imported when it
is called, so that a fault on the command line is named before torch is loaded.
"""

from __future__ import annotations  # so that a Python that is too old gets as far as the sentence about it

import difflib
import inspect
import os
from collections.abc import Callable, Sequence

from minigpt.faults import UserFault, run_script


def train(arguments: list[str]) -> int:
    """Train a GPT, or continue a run; with -m, train each combination of some values."""
    from minigpt.invocation import command_line
    from minigpt.multirun import run_grid, wants_grid

    if wants_grid(arguments):
        return run_grid(arguments, command_line("train"))

    from minigpt.config.compose import compose
    from minigpt.process.signals import Signals

    with Signals():  # heard even while torch is loaded
        config = compose("train", arguments)

        from minigpt.data.prepare import require_vocabulary

        require_vocabulary(config.data, config.tokenizer)

        from minigpt.training.run import train

        return train(config)


def sample(arguments: list[str]) -> int:
    """Write text with a trained GPT."""
    from minigpt.config.compose import compose

    config = compose("sample", arguments)

    from minigpt.sampling.command import sample

    return sample(config)


def prepare(arguments: list[str]) -> None:
    """Turn text into token files, without training."""
    import shlex

    from minigpt.config.compose import compose

    config = compose("prepare", arguments)

    from minigpt.data.prepare import describe, mend
    from minigpt.invocation import typed

    print("\n".join(describe(mend(config.data, config.tokenizer))))
    print(f"\nTrain on it:\n  {typed('train')} {shlex.join(arguments)}".rstrip())


def sweep(arguments: list[str]) -> int:
    """Search for better settings: many trainings, on all devices."""
    from minigpt.invocation import command_line
    from minigpt.sweep.settings import read_plan

    plan = read_plan(arguments, command_line("train"))

    from minigpt.sweep.driver import run_sweep

    return run_sweep(plan)


def compare(arguments: list[str]) -> None:
    """Say which run predicts better, and how sure that is.

    Usage: minigpt compare RUN_A RUN_B [...]

    Scores each run's best checkpoint on the whole validation split, window by window, and judges the paired
    differences. Runs that differ in nothing but the seed are one side. `RUN ... vs RUN ...` divides the sides by hand.

    which=best|latest     the checkpoint of a run
    device=auto|cuda|mps|cpu
    data.dir=DIR          where prepared tokens are, if not where the runs say
    """
    from minigpt.compare.command import compare

    compare(arguments)


def report(arguments: list[str]) -> None:
    """Draw a run's loss.png and report.html again.

    Usage: minigpt report run.dir=RUN

    run.dir=RUN           the folder of a run, like runs/default-1a2b3c
    """
    run = _read("report", arguments, "run.dir=RUN")["run.dir"]

    from minigpt.report.page import write_report

    write_report(run)
    run = os.path.expanduser(run)
    print(f"Wrote {os.path.join(run, 'loss.png')} and {os.path.join(run, 'report.html')}")


def benchmark(arguments: list[str]) -> int:
    """Measure the speed of this machine."""
    from minigpt.benchmark.settings import read_plan

    plan = read_plan(arguments)

    from minigpt.benchmark.command import benchmark

    return benchmark(plan)


def verify_resume(arguments: list[str]) -> int:
    """Prove on this machine that a killed run ends with the same bytes.

    Usage: minigpt verify-resume [kills=5] [settings, as minigpt train takes them]

    Trains twice, once in one go and once killed with SIGKILL at random moments, and compares every byte.
    Exit code 0: the same bytes, 1: other bytes.

    Example: minigpt verify-resume experiment=demo trainer.max_steps=60 kills=5
    """
    from minigpt.verify import verify_command

    return verify_command(arguments)


def draw_attention(arguments: list[str]) -> None:
    """Draw what each head attends to.

    Usage: minigpt draw-attention checkpoint=RUN text=TEXT [out=FOLDER] [which=best|latest]

    checkpoint=RUN        a run directory or a checkpoint in it
    text=TEXT             what the model reads, taken literally
    out=FOLDER            for the pictures, one PNG per layer; default RUN/attention
    which=best|latest     the checkpoint of a run
    """
    given = _read("draw-attention", arguments, "checkpoint=RUN text=TEXT [out=FOLDER] [which=best|latest]")
    if given.get("which", "best") not in ("best", "latest"):
        raise UserFault(f"which={given['which']}: wanted which=best or which=latest")

    from minigpt.report.attention import draw_attention

    paths = draw_attention(given["checkpoint"], given["text"], given.get("out"), given.get("which", "best"))
    print("Wrote", *paths, sep="\n  ")


def demo(arguments: list[str]) -> int:
    """Train a small GPT on text that this machine already has, and let it write.

    Usage: minigpt demo [settings, as minigpt train takes them]

    The same as `minigpt train experiment=demo`, a minute or two on two CPU cores, and afterwards the comparison with an
    n-gram model that has counted every three-byte context of the same text, a sample, and where the report is.
    minigpt train --help lists the settings.

    Example: minigpt demo data=text data.source=my_texts/ trainer.max_steps=500
    """
    from minigpt.config.compose import compose

    config = compose("train", ["experiment=demo", *arguments])

    from minigpt.demo import demo

    return demo(config)


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    function.__name__.replace("_", "-"): function
    for function in (train, sample, sweep, prepare, compare, report, benchmark, verify_resume, draw_attention, demo)
}
OWN_HELP = (
    "compare",
    "report",
    "verify-resume",
    "draw-attention",
    "demo",
)  # of the others config/help.py makes the page


def main() -> None:
    """Run the command that this process' command line names, and exit with the code its outcome stands for."""
    run_script(_dispatch)


def run(name: str) -> None:
    """Run one command with this process' arguments, and exit: what scripts/NAME.py does."""
    run_script(lambda arguments: _dispatch([name, *arguments]))


def _dispatch(words: list[str]) -> int | None:
    name, *arguments = words or ["--help"]
    if name in ("--help", "-h", "help"):
        print(list_of_commands())
        return 0
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name.replace("_", "-"), COMMANDS, n=1, cutoff=0.5)
        hint = f"Did you mean minigpt {near[0]}?" if near else "`minigpt --help` lists them"
        raise UserFault(f"minigpt has no command {name!r}. {hint}")
    if name in OWN_HELP and not {"--help", "-h"}.isdisjoint(arguments):
        print(inspect.getdoc(command))
        return 0
    return command(arguments)


def list_of_commands() -> str:
    """Return what `minigpt --help` prints: a line for each command."""
    lines = [f"  {name:<16}{(function.__doc__ or '').splitlines()[0]}" for name, function in COMMANDS.items()]
    end = "minigpt COMMAND --help lists what a command takes; minigpt train --help has the exit codes, too."
    return "\n".join(["Usage: minigpt COMMAND [group=choice] [key=value ...]", "", *lines, "", end])


def _read(name: str, arguments: Sequence[str], usage: str) -> dict[str, str]:
    """Return key=value arguments; the values are taken literally, whatever characters they hold.

    Args:
        name: of the command.
        arguments: as they were typed.
        usage: the keys, like "run.dir=RUN [out=FOLDER]"; those in brackets may be left out.

    Raises:
        UserFault: a key that the command does not have, twice, without a value, or missing.
    """
    remedy = f"Type: minigpt {name} {usage}"
    keys = {word.strip("[]").partition("=")[0]: word[0] != "[" for word in usage.split()}
    given: dict[str, str] = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in keys:
            raise UserFault(f"minigpt {name} takes {', '.join(keys)} and nothing else, got {argument!r}. {remedy}")
        if key in given or not value:
            raise UserFault(f"minigpt {name} takes {key}= once, with a value. {remedy}")
        given[key] = value
    if missing := [key for key, required in keys.items() if required and key not in given]:
        raise UserFault(f"minigpt {name} needs {missing[0]}=. {remedy}")
    return given
