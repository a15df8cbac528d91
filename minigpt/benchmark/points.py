"""Where cost is measured as it grows: one thing is changed at a time, all else stays the preset's."""

from dataclasses import dataclass
from pathlib import Path

from minigpt.benchmark.settings import Plan

STEP_TOKENS = 4096  # of each step while the context grows
CONTEXTS = (64, 128, 256, 512, 1024)
NARROW = 256  # n_embd up to which a model is also tried four times as wide and deep, else twice
SIZES = (10**6, 10**8, 10**9, 10**10, 10**11)  # bytes of shards
NEVER = 10**9  # steps between saves that no run reaches

TITLES = {  # section -> title, and what is written along the axis
    "context": ("Context length", "tokens"),
    "width": ("Width", "n_embd"),
    "depth": ("Depth", "blocks"),
    "batch": ("Batch", "sequences a step"),
    "data": ("Data set", "shards"),
    "saves": ("Checkpoint interval", "steps"),
}


@dataclass(frozen=True)
class Setup:
    """What is run; two curves may share one."""

    settings: tuple[str, ...]  # of scripts/train.py, on top of the plan's
    steps: int  # timed
    n_bytes: int = 0  # of a data set of its own; 0: the benchmark's tokens


@dataclass(frozen=True)
class Point:
    """One place of one curve."""

    section: str
    label: str
    setup: Setup


def few_steps(plan: Plan) -> int:
    """Timed in a turn of most points: a sixth of a training turn's."""
    return max(2, plan.steps // 6)


def warm_up(plan: Plan) -> int:
    """Steps before them, not timed."""
    return max(1, plan.warm_up // 4)


def find_points(plan: Plan) -> list[Point]:
    """Every curve but those of runs that continue or last long."""
    every = [*_contexts(plan), *_sizes(plan), *_batches(plan), *_data_sets(plan), *_intervals(plan)]
    return list(dict.fromkeys(every))  # half a block is one, too


def _contexts(plan: Plan) -> list[Point]:
    found = []
    for T in CONTEXTS:
        settings = (f"model.block_size={T}", *_batch(STEP_TOKENS // T, T))
        found.append(Point("context", f"{T}", Setup(settings, few_steps(plan))))
    return found


def _sizes(plan: Plan) -> list[Point]:
    model, few = plan.config.model, few_steps(plan)
    most = 4 if model.n_embd <= NARROW else 2
    widths, depths = [], []
    for factor in (most / 8, most / 4, most / 2, most):
        heads, layers = max(1, round(factor * model.n_head)), max(1, round(factor * model.n_layer))
        width = heads * (model.n_embd // model.n_head)
        wider = (f"model.n_embd={width}", f"model.n_head={heads}") if heads != model.n_head else ()
        deeper = (f"model.n_layer={layers}",) if layers != model.n_layer else ()
        widths.append(Point("width", f"{width}", Setup(wider, few)))
        depths.append(Point("depth", f"{layers}", Setup(deeper, few)))
    return widths + depths


def _batches(plan: Plan) -> list[Point]:
    T = plan.config.model.block_size
    own = plan.config.batch_tokens // T
    found = []
    for factor in (0.25, 0.5, 1, 2, 4):
        sequences = max(1, round(factor * own))
        settings = _batch(sequences, T) if sequences != own else ()
        found.append(Point("batch", f"{sequences}", Setup(settings, few_steps(plan))))
    return found


def _batch(sequences: int, block_size: int) -> tuple[str, ...]:
    return f"batch_tokens={sequences * block_size}", f"trainer.micro_batch={sequences}"


def _data_sets(plan: Plan) -> list[Point]:
    sizes = [size for size in SIZES if size <= 1e9 * plan.size_limit_gb]
    return [Point("data", size_text(size), Setup(("tokenizer=byte",), few_steps(plan), size)) for size in sizes]


def _intervals(plan: Plan) -> list[Point]:
    steps = max(4, plan.steps // 2)
    found = []
    for every in (max(1, steps // 30), max(2, steps // 10), max(3, steps // 2), NEVER):
        label = f"{every}" if every < NEVER else "at the end"
        found.append(Point("saves", label, Setup((f"checkpoint.every_steps={every}",), steps)))
    return found


def size_text(n_bytes: int) -> str:
    """1 MB, 10 GB."""
    return f"{n_bytes / 1e9:g} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:g} MB"


def arguments(plan: Plan, setup: Setup, tokens: Path, *more: str) -> list[str]:
    """Of scripts/train.py: no validation, which would be left out of the time anyway."""
    steps = warm_up(plan) + setup.steps + 1
    return plan.arguments(tokens, "validate.every_steps=0", *setup.settings, *more, steps=steps)
