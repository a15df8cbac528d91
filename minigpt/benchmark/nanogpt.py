"""nanoGPT beside us: its own train.py is run as it is, and timed from the lines it prints."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.benchmark.process import TurnFailed, last_words, started
from minigpt.benchmark.tokens import chunks
from minigpt.config.schema import TrainConfig
from minigpt.data.prepare import Prepared

_ITERATION = re.compile(r"^iter (\d+): loss (\S+), time ([\d.]+)ms")
_BENCH = re.compile(r"^time per iteration: ([\d.]+)ms")


def lay_out(folder: Path, checkout: Path, prepared: Prepared) -> None:
    """A working folder for its train.py: data/made/{train,val}.bin and meta.pkl, and ways to the checkout."""
    data = folder / "data" / "made"
    data.mkdir(parents=True, exist_ok=True)
    for name, split in (("train", prepared.train), ("val", prepared.val)):
        with open(data / f"{name}.bin", "wb") as file:
            for tokens in chunks(split):
                file.write(tokens.astype("<u2").tobytes())
    if prepared.tokenizer.vocab_size < 50257:  # GPT-2's is what it takes when there is no such file
        (data / "meta.pkl").write_bytes(vocabulary_file(prepared.tokenizer.vocab_size))
    (folder / "nanogpt").symlink_to(checkout)  # a path without "=", which its settings can't hold
    (folder / "configurator.py").symlink_to(checkout / "configurator.py")


def vocabulary_file(vocab_size: int) -> bytes:
    """{"vocab_size": V} as the pickle that nanoGPT reads (protocol 0: a dictionary, a text, a number, set)."""
    return f"(dVvocab_size\nI{vocab_size}\ns.".encode()


def log_interval(steps: int) -> int:
    """Iterations between its lines."""
    return 10 if steps >= 20 else 1


def train_command(
    python: str, config: TrainConfig, choices: dict[str, Any], *, compiled: bool, warm_up: int, steps: int
) -> list[str]:
    """Its own train.py with the settings of our run, and lines often enough to time `steps` after the warm-up."""
    every = log_interval(steps)
    last = up_to(warm_up, every) + up_to(steps, every)
    model, optimizer = config.model, config.optimizer
    values: dict[str, Any] = {
        "dataset": "made",
        "out_dir": "out",
        "device": choices["device"],
        "dtype": "bfloat16" if choices["device"] == "cuda" and choices["precision"] == "bf16" else "float32",
        "compile": compiled,
        "eval_interval": 1_000_000,
        "eval_iters": 1,
        "log_interval": every,
        "always_save_checkpoint": False,
        "block_size": model.block_size,
        "batch_size": choices["micro_batch"],
        "gradient_accumulation_steps": choices["accumulate"],
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_embd": model.n_embd,
        "dropout": float(model.dropout),
        "bias": model.bias,
        "learning_rate": float(optimizer.lr),
        "min_lr": float(optimizer.lr * config.schedule.final_lr_fraction),
        "beta1": float(optimizer.beta1),
        "beta2": float(optimizer.beta2),
        "weight_decay": float(optimizer.weight_decay),
        "grad_clip": float(optimizer.grad_clip),
        "warmup_iters": config.schedule.warmup_steps,
        "max_iters": last,
        "lr_decay_iters": last,
    }
    return [python, "-u", "nanogpt/train.py", *(f"--{key}={value}" for key, value in values.items())]


def bench_command(python: str, config: TrainConfig, choices: dict[str, Any]) -> list[str]:
    """Its bench.py: 124M on a GPU, without data, clipping or schedule."""
    values = {
        "batch_size": choices["micro_batch"],
        "block_size": config.model.block_size,
        "bias": config.model.bias,
        "real_data": False,
        "compile": True,
    }
    return [python, "-u", "nanogpt/bench.py", *(f"--{key}={value}" for key, value in values.items())]


def up_to(number: int, every: int) -> int:
    """The next multiple of `every`."""
    return -(-number // every) * every


@dataclass(frozen=True)
class Line:
    """`iter N: loss L, time M ms` and when it came."""

    iteration: int
    loss: float
    at: float  # time.time()


def read_lines(lines: Iterable[str], now: Callable[[], float] = time.time) -> tuple[list[Line], list[str]]:
    """(the iterations among its lines, each with its moment; all lines)."""
    found, every = [], []
    for text in lines:
        at = now()
        every.append(text)
        match = _ITERATION.match(text)
        if match:
            found.append(Line(int(match[1]), float(match[2]), at))
    return found, every


def timing(lines: list[Line], warm_up: int) -> dict[str, Any]:
    """Milliseconds per step between the first line at or after the warm-up and the last.

    Raises:
        TurnFailed: there are not two such lines.
    """
    counted = [line for line in lines if line.iteration >= warm_up]
    if len(counted) < 2:
        raise TurnFailed(f"nanoGPT printed {len(counted)} lines `iter N: ...` after iteration {warm_up}; 2 are needed")
    first, last = counted[0], counted[-1]
    steps = last.iteration - first.iteration
    return {"ms": 1e3 * (last.at - first.at) / steps, "steps": steps, "first_step_at": lines[0].at}


def run(command: list[str], folder: Path, *, threads: int, warm_up: int) -> dict[str, Any]:
    """Run its train.py, or bench.py, to the end.

    Raises:
        TurnFailed: it ended with an error, or printed no times.
    """
    began = time.time()
    with started(command, folder, threads) as process:
        assert process.stdout is not None
        lines, texts = read_lines(line.decode(errors="replace").rstrip("\n") for line in process.stdout)
        code = process.wait()
    if code != 0:
        raise TurnFailed(f"{command[2]}: its process ended with exit code {code}: {last_words(chr(10).join(texts))}")
    bench = [float(match[1]) for match in map(_BENCH.match, texts) if match]
    if bench:
        return {"ms": bench[-1], "steps": 20, "first_step_at": None, "began": began}
    return timing(lines, warm_up) | {"began": began}
