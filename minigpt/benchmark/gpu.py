"""What a training costs with other choices of the trainer, and whether it resumes exactly: the questions for a GPU."""

import json
from typing import Any

from minigpt.benchmark.bench import Bench, Section
from minigpt.benchmark.table import ratios, spread
from minigpt.benchmark.training import milliseconds, train_py
from minigpt.config.convert import flatten, from_dict, settings
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.invocation import command_line
from minigpt.verify import verify_resume

VARIANTS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "compiled": {"trainer.compile": "on"},
    "not compiled": {"trainer.compile": "off"},
    "deterministic": {"trainer.deterministic": True},
    "fp16": {"trainer.precision": "fp16"},
    "bf16": {"trainer.precision": "bf16"},
    "fp32": {"trainer.precision": "fp32"},
    "explicit attention": {"trainer.attention_kernel": "explicit"},
    "fused attention": {"trainer.attention_kernel": "fused"},
}
KILLS = 2


def variants(bench: Bench) -> Section:
    """Measure all of train.py with other choices, in turn; those that fail here are left out with the reason."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    notes = []
    for number in range(bench.plan.config.rounds):
        for name in list(found):
            try:
                found[name].append(train_py(bench, VARIANTS[name], f"{name.split()[0]}-{number}"))
            except UserFault as fault:
                if not VARIANTS[name]:
                    raise
                notes.append(f"{name} is left out: {fault}")
                del found[name]
                continue
            bench.tell(number, f"{name:<18} {found[name][-1]['ms']:10,.2f} ms/step")
    own, rows = milliseconds(found["as chosen"]), []
    for name, measurements in found.items():
        each = spread(milliseconds(measurements))
        speed = f"{1e3 * bench.plan.config.batch_tokens / each.median:,.0f}"
        rows.append([name, *each.cells(2), speed, ratios(milliseconds(measurements), own).text()])
    heads = ["train.py", "ms/step", "min", "max", "tokens/s", "x as chosen"]
    return Section("Choices of the trainer", heads, rows, "\n".join(notes))


def resuming(bench: Bench) -> Section:
    """Kill a deterministic run of this size and compare its bytes with those of one that was not killed."""
    total = bench.plan.preset.warm_up + bench.plan.preset.steps
    often = {"trainer.deterministic": True, "checkpoint.every_steps": max(1, total // 6), "logger.every_steps": 1}
    config = bench.training(often, steps=total)
    defaults = {key: setting.default for key, setting in settings(TrainConfig).items()}
    changed = {key: value for key, value in flatten(config).items() if value != defaults[key]}
    words = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changed.items()]
    command = [*command_line("train"), *words]
    folder = bench.folder / "resuming"
    folder.mkdir()
    code = verify_resume(from_dict(TrainConfig, config), command, kills=KILLS, folder=folder)
    rows = [[f"deterministic, killed {KILLS} times", "the same" if code == 0 else "OTHER"]]
    return Section("Exact resume", ["a run", "bytes at its end"], rows, void=code != 0)
