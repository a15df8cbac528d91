"""The command `minigpt COMMAND [key=value ...]`; scripts/*.py and `python -m minigpt` call it, too.

A command is a function below: the first line of its docstring is shown in the list of commands, and its modules are
imported when it is called, so that a fault on the command line is found before torch is loaded.
"""

from __future__ import annotations  # so that a Python that is too old gets as far as the sentence about it

import contextlib
import difflib
import inspect
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.faults import FINISHED, UserFault, run_script
from minigpt.invocation import command_line, typed
from minigpt.loading import loading
from minigpt.redact import redact_arguments


def train(arguments: list[str]) -> int:
    """Train a GPT, or continue a run; with -m, train each combination of some values."""
    from minigpt.sweep.grid import run_grid, wants_grid

    if wants_grid(arguments):
        return run_grid(arguments, command_line("train"))

    from minigpt.children import watch_lifeline
    from minigpt.ranks.signals import Signals

    with Signals():  # handled even while torch is loaded
        watch_lifeline()
        config = _compose("train", arguments)

        with loading():
            from minigpt.data.preparing.prepare import require_vocabulary

        require_vocabulary(config.data, config.tokenizer)

        with loading():
            from minigpt.stages import train_in_stages
            from minigpt.training.run import train

        return train_in_stages(config, arguments, train)


def sample(arguments: list[str]) -> int:
    """Write text with a trained GPT."""
    config = _compose("sample", arguments)

    with loading():
        from minigpt.sampling.sample import sample

    return sample(config)


def prepare(arguments: list[str]) -> None:
    """Turn text into token files, without training."""
    config = _compose("prepare", arguments)
    if config.ray.address:
        os.environ["RAY_ADDRESS"] = config.ray.address  # Ray looks for its cluster there

    with loading():
        from minigpt.data.prepared import describe
        from minigpt.data.preparing.prepare import prepare_again_if_damaged
        from minigpt.ranks.signals import Signals

    with Signals():
        prepared = prepare_again_if_damaged(config.data, config.tokenizer, work=config.prepare)
    print("\n".join(describe(prepared)))
    text = [each for each in redact_arguments(arguments) if not each.startswith(("prepare.", "ray."))]
    print(f"\nTrain on it:\n  {typed('train')} {shlex.join(text)}".rstrip())


def sweep(arguments: list[str]) -> int:
    """Search for better settings: many trainings, on all devices."""
    from minigpt.sweep.settings import read_sweep

    found = read_sweep(arguments, command_line("train"))

    with loading():
        from minigpt.sweep.driver import run_sweep

    return run_sweep(found)


def compare(arguments: list[str]) -> None:
    """Tell which run predicts better, and how sure that is."""
    config = _compose("compare", arguments)

    with loading():
        from minigpt.compare.command import compare

    compare(config)


def evaluate(arguments: list[str]) -> None:
    """Score texts and questions: perplexity, bits per byte, accuracy."""
    config = _compose("evaluate", arguments)

    with loading():
        from minigpt.evaluation.command import evaluate

    evaluate(config)


def export(arguments: list[str]) -> None:
    """Write a model as a Hugging Face folder or a GGUF file, with a proof."""
    config = _compose("export", arguments)

    with loading():
        from minigpt.export import export

    export(config)


def report(arguments: list[str]) -> None:
    """Draw a run's loss.png and report.html again."""
    config = _compose("report", arguments)
    run = os.path.expanduser(config.run.dir)

    with loading():
        from minigpt.report.page import write_report

    write_report(run)
    print(f"Wrote {os.path.join(run, 'loss.png')} and {os.path.join(run, 'report.html')}")


def runs(arguments: list[str]) -> None:
    """List the runs of a folder, or the checkpoints of a run."""
    folders = _compose("runs", arguments).folders

    from minigpt.report.runs import list_runs

    print("\n\n".join(list_runs(folder) for folder in folders))


def plan(arguments: list[str]) -> None:
    """Tell what memory a training takes on each device, and what fits."""
    given = any(argument.lstrip("+").startswith(("data=", "data.")) for argument in arguments)
    notes = io.StringIO()
    try:
        with contextlib.redirect_stderr(notes):
            config = _compose("plan", arguments)
    except UserFault as fault:
        if given or "data.source" not in str(fault):
            raise
        notes.truncate(0)  # composing again prints them
        config = _compose("plan", [*arguments, "data.name=stdlib"])  # no text is needed
    finally:
        print(notes.getvalue(), end="", file=sys.stderr)

    with loading():
        from minigpt.machine.layouts import describe_layouts

    print(describe_layouts(config))


def slurm(arguments: list[str]) -> None:
    """Write the script that submits a training to SLURM."""
    config = _compose("slurm", arguments)

    from minigpt.config.command_line import train_arguments
    from minigpt.ranks.slurm import write_train_script

    command = [*command_line("train"), *train_arguments("slurm", arguments)]
    print(write_train_script(config, command, shlex.join([*typed("slurm").split(), *redact_arguments(arguments)])))


def benchmark(arguments: list[str]) -> None:
    """Measure tokens per second and MFU of training and sampling on this machine."""
    from minigpt.benchmark.presets import read_benchmark

    config, words = read_benchmark(arguments)

    with loading():
        from minigpt.benchmark.measure import benchmark

    benchmark(config, words)


def verify_resume(arguments: list[str]) -> int:
    """Prove on this machine that a killed run ends with the same bytes."""
    config = _compose("verify-resume", arguments)

    from minigpt.config.command_line import train_arguments

    with loading():
        from minigpt.verify import verify_resume

    command = [*command_line("train"), *train_arguments("verify-resume", arguments), "logger.name=files"]
    return verify_resume(config, command, kills=config.kills, folder=Path(tempfile.mkdtemp(prefix="minigpt-verify-")))


def look(arguments: list[str]) -> None:
    """Write a page, or a picture, of the tokens of a text and the attention to them."""
    config = _compose("look", arguments)

    with loading():
        from minigpt.serving.look import look

    print("Wrote", *look(config))


def chat(arguments: list[str]) -> int:
    """Talk with a trained GPT."""
    config = _compose("chat", arguments)

    with loading():
        from minigpt.sampling.chat import chat

    return chat(config)


def serve(arguments: list[str]) -> int:
    """Answer OpenAI's protocol over HTTP, with a page to try models on."""
    config = _compose("serve", arguments)

    with loading():
        from minigpt.serving.serve import serve

    return serve(config)


def demo(arguments: list[str]) -> int:
    """Train a small GPT on text that this machine already has, and let it write.

    Usage: minigpt demo [settings, as minigpt train takes them]

    The same as `minigpt train experiment=demo`, a minute or two on two CPU cores, and afterwards the comparison with
    models that only count or copy the same text, a sample, and where the report is.
    minigpt train --help lists the settings.

    Example: minigpt demo data=text data.source=my_texts/ trainer.max_steps=500
    """
    if not {"--help", "-h"}.isdisjoint(arguments):
        print(inspect.getdoc(COMMANDS["demo"]))
        return 0

    config = _compose("train", ["experiment=demo", *arguments])

    with loading():
        from minigpt.demo import demo

    return demo(config, arguments)


def _compose(command: str, arguments: list[str]) -> Any:
    from minigpt.config.compose import compose

    return compose(command, arguments)


FUNCTIONS = (
    train,
    sample,
    sweep,
    prepare,
    compare,
    evaluate,
    export,
    runs,
    report,
    plan,
    slurm,
    benchmark,
    verify_resume,
    look,
    chat,
    serve,
    demo,
)
COMMANDS: dict[str, Callable[[list[str]], int | None]] = {each.__name__.replace("_", "-"): each for each in FUNCTIONS}


MEANT = {"list": "runs", "ls": "runs", "generate": "sample", "eval": "evaluate", "tune": "sweep", "server": "serve"}


def main() -> None:
    """Run the command that the command line of this process names, and exit with the exit code for its outcome."""
    run_script(_dispatch)


def run(name: str) -> None:
    """Run one command with the arguments of this process, and exit; scripts/NAME.py call this."""
    run_script(lambda arguments: _dispatch([name, *arguments]))


def _dispatch(words: list[str]) -> int | None:
    name, *arguments = words or ["--help"]
    if command := COMMANDS.get(name):
        return command(arguments)
    if name == "--version":
        from minigpt import __version__

        print(f"minigpt {__version__}")
        return FINISHED
    if name not in ("--help", "-h", "help"):
        from minigpt.config.schema import RETIRED

        if name in RETIRED:
            raise UserFault(f"{name} is retired: {RETIRED[name]}.")
        near = [MEANT[name]] if name in MEANT else difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"Did you mean minigpt {near[0]}?" if near else "`minigpt --help` lists them"
        raise UserFault(f"minigpt has no command {name!r}. {hint}")
    print("Usage: minigpt COMMAND [group=choice] [key=value ...]\n")
    for each, function in COMMANDS.items():
        print(f"  {each:<16}{(function.__doc__ or '').splitlines()[0]}")
    print("\nminigpt COMMAND --help lists what a command takes; minigpt train --help has the exit codes, too.")
    return FINISHED
