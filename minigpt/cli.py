"""The command `minigpt COMMAND [key=value ...]`; scripts/*.py and `python -m minigpt` call it, too.

Modules are imported when a command needs them, so that a fault on the command line is found before torch is loaded.
COMMANDS says what each function is for.
"""

import difflib
import gc
import inspect
import os
import shlex
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from minigpt import __version__
from minigpt.faults import FINISHED, UserFault, run_script
from minigpt.invocation import command_line, typed
from minigpt.redact import redact_arguments


def train(arguments: list[str]) -> int:
    options = {argument.partition("=")[0] for argument in arguments}
    if options & {"-m", "--multirun"} and not options & {"--help", "-h", "--cfg", "-c"}:
        from minigpt.sweep.settings import read_grid

        return _load("minigpt.sweep.search:run_sweep")(read_grid(arguments, command_line("train")))

    from minigpt.ranks.launch import start_ranks
    from minigpt.ranks.signals import Signals

    with Signals():  # handled even while torch is loaded
        config = _compose("train", arguments)
        if (code := start_ranks(config.trainer)) is not None:
            return code
        return _load("minigpt.stages:train_in_stages")(config, _load("minigpt.training.run:train"))


def prepare(arguments: list[str]) -> None:
    config = _compose("prepare", arguments)
    if config.ray_address:
        os.environ["RAY_ADDRESS"] = config.ray_address  # Ray looks for its cluster there

    find_or_make = _load("minigpt.data.preparing.prepare:find_or_make")
    from minigpt.data.prepared import describe
    from minigpt.ranks.signals import Signals

    with Signals():
        prepared = find_or_make(config.data, config.tokenizer, work=config.prepare)
    print("\n".join(describe(prepared)))
    text = [word for word in redact_arguments(arguments) if not word.startswith(("prepare.", "ray."))]
    print(f"\nTrain on it:\n  {typed('train')} {shlex.join(text)}".rstrip())


def sweep(arguments: list[str]) -> int:
    from minigpt.sweep.settings import read_sweep

    settings = read_sweep(arguments, command_line("train"))
    return _load("minigpt.sweep.search:run_sweep")(settings)


def report(arguments: list[str]) -> None:
    config = _compose("report", arguments)

    from minigpt.report.runs import newest_run

    run = os.path.expanduser(config.run_dir or newest_run("runs"))
    _load("minigpt.report.page:write_report")(run)
    print(f"Wrote {os.path.join(run, 'loss.png')} and {os.path.join(run, 'report.html')}")


def runs(arguments: list[str]) -> None:
    from minigpt.report.runs import list_runs

    print("\n\n".join(list_runs(folder) for folder in _compose("runs", arguments).folders))


def plan(arguments: list[str]) -> None:
    config = _compose("plan", arguments)
    if config.budget:
        trials = (_load(f"minigpt.training.run:{name}_alone") for name in ("measured", "piloted"))
        print(_load("minigpt.sizing.plan:plan_budgets")(config, *trials))
    else:
        _load("minigpt.report.plan:plan")(config)


def slurm(arguments: list[str]) -> None:
    config = _compose("slurm", arguments)

    from minigpt.config.command_line import train_arguments
    from minigpt.ranks.slurm import write_train_script

    command = [*command_line("train"), *train_arguments("slurm", arguments)]
    print(write_train_script(config, command, shlex.join([*typed("slurm").split(), *redact_arguments(arguments)])))


def benchmark(arguments: list[str]) -> None:
    from minigpt.benchmark.presets import read_benchmark

    config, words = read_benchmark(arguments)
    _load("minigpt.benchmark.measure:benchmark")(config, words)


def verify_resume(arguments: list[str]) -> int:
    config = _compose("verify-resume", arguments)

    from minigpt.config.command_line import train_arguments

    command = [*command_line("train"), *train_arguments("verify-resume", arguments), "logger.name=files"]
    return _load("minigpt.verify:verify_resume")(config, command, kills=config.kills, folder=Path(tempfile.mkdtemp()))


def demo(arguments: list[str]) -> int:
    """Train a small GPT on text that this machine already has, and print a sample.

    Usage: minigpt demo [settings, as minigpt train takes them]

    The same as `minigpt train experiment=demo`, one to three minutes on two CPU cores, and then the
    comparison with models that only count or copy the same text, a sample, and where the report is.
    minigpt train --help lists the settings.

    Example: minigpt demo data=text data.source=my_texts/ trainer.max_steps=500
    """
    if not {"--help", "-h"}.isdisjoint(arguments):
        print(inspect.getdoc(demo))
        return FINISHED
    from minigpt.ranks.launch import start_ranks

    config = _compose("train", ["experiment=demo", *arguments])
    code = start_ranks(config.trainer)
    return _load("minigpt.demo:demo")(config) if code is None else code


# Name: one line about it, and a function of the arguments, or `module:function` of the composed config.
COMMANDS: dict[str, tuple[str, Callable[[list[str]], int | None] | str]] = {
    "train": ("Train a GPT, or continue a run; with -m, train each combination of some values.", train),
    "sample": ("Write text with a trained GPT.", "minigpt.sampling.sample:sample"),
    "sweep": ("Search for better settings: many trainings, on all devices.", sweep),
    "prepare": ("Turn text into token files, without training.", prepare),
    "compare": ("Say which run predicts better, and how certain that is.", "minigpt.evaluation.compare:compare"),
    "evaluate": ("Score texts: perplexity, bits per byte, accuracy.", "minigpt.evaluation.evaluate:evaluate"),
    "export": ("Write a model as a Hugging Face folder or a GGUF file, with a proof.", "minigpt.export:export"),
    "runs": ("List the runs of a folder, or the checkpoints of a run.", runs),
    "report": ("Draw a run's loss.png and report.html again.", report),
    "plan": ("Estimate the memory of a training; with budget=, the result of each time.", plan),
    "slurm": ("Write the script that submits a training to SLURM.", slurm),
    "benchmark": ("Measure tokens per second and MFU of training and sampling on this machine.", benchmark),
    "verify-resume": ("Prove on this machine that a killed run ends with the same bytes.", verify_resume),
    "look": ("Show the tokens of a text and the attention to them: a page or a picture.", "minigpt.serving.look:look"),
    "chat": ("Talk with a trained GPT.", "minigpt.sampling.chat:chat"),
    "serve": ("Serve models over HTTP: OpenAI's protocol, and a page to try them.", "minigpt.serving.serve:serve"),
    "demo": ("Train a small GPT on text that this machine already has, and print a sample.", demo),
}

MEANT = {"list": "runs", "ls": "runs", "generate": "sample", "eval": "evaluate", "tune": "sweep", "server": "serve"}


def main() -> None:
    """Run the command that the command line of this process names, and exit with the exit code for its outcome."""
    run_script(_dispatch)


def run(name: str) -> None:
    """Run one command with the arguments of this process, and exit; scripts/NAME.py call this."""
    run_script(lambda arguments: _dispatch([name, *arguments]))


def _dispatch(words: list[str]) -> int | None:
    name, *arguments = words or ["--help"]
    if name in COMMANDS:
        work = COMMANDS[name][1]
        if not isinstance(work, str):
            return work(arguments)
        config = _compose(name, arguments)
        return _load(work)(config)
    if name == "--version":
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
    for command, (line, _) in COMMANDS.items():
        print(f"  {command:<16}{line}")
    print("\nminigpt COMMAND --help lists what a command takes; minigpt train --help all has the exit codes, too.")
    return FINISHED


def _compose(command: str, arguments: list[str]) -> Any:
    from minigpt.config.compose import compose

    return compose(command, arguments)


def _load(target: str) -> Callable[..., Any]:
    """Import `module:function`, without the search for garbage: it takes a quarter of torch's and Lightning's import.

    Their 600,000 objects stay, so they are left out of later searches, too.
    """
    module, _, function = target.partition(":")
    gc.disable()
    try:
        return getattr(import_module(module), function)
    finally:
        gc.freeze()
        gc.enable()
