"""nanoGPT beside us: its own train.py is run as it is, and timed from the lines it prints."""

import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.benchmark.bench import Bench
from minigpt.benchmark.measurement import MeasurementFailed, failure, started
from minigpt.benchmark.tokens import chunks

_ITERATION = re.compile(r"^iter (\d+): loss \S+, time")
_BENCH = re.compile(r"^time per iteration: ([\d.]+)ms")


def contenders(bench: Bench, checkout: Path) -> dict[str, Callable[[int], dict[str, Any]]]:
    """nanoGPT as shipped and compiled; on a GPU compiled, and its bench.py where its size is that one's."""
    lay_out(bench, checkout)
    cuda = bench.choices["device"] == "cuda"
    commands = {} if cuda else {"nanoGPT": train_command(bench, compiled=False)}
    commands["nanoGPT compiled"] = train_command(bench, compiled=True)
    if cuda and bench.plan.config.preset == "124m" and (checkout / "bench.py").is_file():
        sizes = f"--batch_size={bench.choices['micro_batch']} --block_size={bench.plan.config.model.block_size}"
        bias = f"--bias={bench.plan.config.model.bias}"
        commands["nanoGPT bench.py"] = ["bench.py", *f"{sizes} {bias} --real_data=False --compile=True".split()]
    return {name: partial(run, bench, command) for name, command in commands.items()}


def lay_out(bench: Bench, checkout: Path) -> None:
    """A working folder for its train.py: data/made/{train,val}.bin and meta.pkl, and links to the checkout."""
    folder, prepared = bench.folder / "nanogpt", bench.prepared
    data = folder / "data" / "made"
    data.mkdir(parents=True, exist_ok=True)
    for name, split in (("train", prepared.train), ("val", prepared.val)):
        with open(data / f"{name}.bin", "wb") as file:
            for tokens in chunks(split):
                file.write(tokens.astype("<u2").tobytes())
    V = prepared.tokenizer.vocab_size
    if V < 50257:  # GPT-2's is what it takes when there is no such file
        # {"vocab_size": V} as the pickle that it reads (protocol 0: a dictionary, a text, a number, set).
        (data / "meta.pkl").write_bytes(f"(dVvocab_size\nI{V}\ns.".encode())
    (folder / "checkout").symlink_to(checkout)  # a path without "=", which its settings can't hold
    (folder / "configurator.py").symlink_to(checkout / "configurator.py")


def train_command(bench: Bench, *, compiled: bool) -> list[str]:
    """Its own train.py with the settings of our run, and lines often enough to time the steps after the warm-up."""
    preset, choices, config = bench.plan.preset, bench.choices, bench.plan.config
    model, optimizer, every = config.model, config.optimizer, 10 if preset.steps >= 20 else 1
    last = sum(-(-steps // every) * every for steps in (preset.warm_up, preset.steps))
    bf16 = choices["device"] == "cuda" and choices["precision"] == "bf16"
    settings = f"""
        --dataset=made --out_dir=out --always_save_checkpoint=False --eval_interval=1000000 --eval_iters=1
        --device={choices["device"]} --dtype={"bfloat16" if bf16 else "float32"} --compile={compiled}
        --batch_size={choices["micro_batch"]} --gradient_accumulation_steps={choices["accumulate"]}
        --block_size={model.block_size} --n_layer={model.n_layer} --n_head={model.n_head} --n_embd={model.n_embd}
        --dropout={float(model.dropout)} --bias={model.bias} --weight_decay={float(optimizer.weight_decay)}
        --learning_rate={float(optimizer.lr)} --min_lr={float(optimizer.lr * config.schedule.final_lr_fraction)}
        --beta1={float(optimizer.beta1)} --beta2={float(optimizer.beta2)} --grad_clip={float(optimizer.grad_clip)}
        --warmup_iters={config.schedule.warmup_steps} --lr_decay_iters={last} --max_iters={last} --log_interval={every}
    """
    return ["train.py", *settings.split()]


def run(bench: Bench, command: list[str], _: int = 0) -> dict[str, Any]:
    """Run its train.py, or bench.py, to the end.

    Raises:
        MeasurementFailed: it ended with an error, or printed no times.
    """
    began = time.time()
    program, *settings = command
    typed = [sys.executable, "-u", f"checkout/{program}", *settings]
    with started(typed, bench.folder / "nanogpt", bench.choices["threads"]) as process:
        assert process.stdout is not None
        arrivals = read_lines(line.decode(errors="replace") for line in process.stdout)
        code = process.wait()
    if code != 0:
        raise MeasurementFailed(failure(program, code, "".join(text for text, _ in arrivals)))
    bench_times = [float(match[1]) for text, _ in arrivals if (match := _BENCH.match(text))]
    if bench_times:
        return {"ms": bench_times[-1], "steps": 20, "first_step_at": None, "began": began}
    return timing(arrivals, bench.plan.preset.warm_up) | {"began": began}


def read_lines(lines: Iterable[str], now: Callable[[], float] = time.time) -> list[tuple[str, float]]:
    """Each line of its output, with the moment when it came."""
    return [(text, now()) for text in lines]


def timing(arrivals: list[tuple[str, float]], warm_up: int) -> dict[str, Any]:
    """Milliseconds per step between the first line `iter N: ...` at or after the warm-up and the last.

    Raises:
        MeasurementFailed: there are not two such lines.
    """
    found = [(int(match[1]), at) for text, at in arrivals if (match := _ITERATION.match(text))]
    timed = [(iteration, at) for iteration, at in found if iteration >= warm_up]
    if len(timed) < 2:
        raise MeasurementFailed(
            f"nanoGPT printed {len(timed)} lines `iter N: ...` after iteration {warm_up}; 2 are needed"
        )
    (first, began), (last, ended) = timed[0], timed[-1]
    return {"ms": 1e3 * (ended - began) / (last - first), "steps": last - first, "first_step_at": found[0][1]}
