"""minigpt benchmark: tokens per second and MFU of training and sampling, as tables."""

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from minigpt.benchmark.presets import PRESETS, WARM_UP, text_words
from minigpt.config.commands import BenchmarkConfig
from minigpt.config.compose import compose
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import FINISHED
from minigpt.files import read_json
from minigpt.machine.hardware import Hardware, find_device, peak_flops
from minigpt.model.counting import flops_per_token
from minigpt.model.gpt import GPT
from minigpt.rundir.rows import read_rows
from minigpt.rundir.run_directory import environment
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.native.decoder import round_to_int8
from minigpt.sampling.sample import DTYPES, choose_decoder
from minigpt.sampling.write import write
from minigpt.screen import table, tell
from minigpt.training.run import train

PROMPT = 16  # tokens, at most
MIN_SECONDS = 0.3  # of one measurement of sampling

HEAD = ("", "ms/step", "tokens/s", "MFU")
Measurement = dict[str, Any]  # name, ms of a step (sampling: of a token of each text), tokens_per_second, mfu


def benchmark(config: BenchmarkConfig, words: Sequence[str]) -> None:
    """Measure the parts that `what` names, and print a table of each."""
    preset, measured = PRESETS[config.preset], dict[str, list[Measurement]]()
    on_cpu = find_device(config).device == "cpu"  # before the facts, which name a GPU that is in use
    precisions = ("fp32", "bf16", "int8")[: 3 if on_cpu else 2]  # 8-bit weights are the native decoder's
    facts = {"date": time.strftime("%Y-%m-%d %H:%M:%S %Z"), **environment(), "settings": " ".join(words)}
    tell("\n".join(f"{name:<12}{value}" for name, value in facts.items()))
    with tempfile.TemporaryDirectory(prefix="minigpt-benchmark-", ignore_cleanup_errors=True) as folder:
        words = [*words, *text_words(Path(folder), preset.vocab_size)]
        for part in dict.fromkeys(config.what.split(",")):
            measured[part] = []
            for number in range(config.rounds):
                if part == "training":
                    run = Path(folder, f"run-{number}")
                    measured[part].append(training(words, config.steps or preset.steps, preset.vocab_size, run))
                else:
                    measured[part] += sampling(words, config.new_tokens or preset.new_tokens, precisions)
            rows = [HEAD, *describe(measured[part])]
            tell(f"\n{part}, {config.preset}: median (lowest to highest) of {config.rounds}\n{table(rows)}")


def describe(measurements: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return a row for each name: medians with their ends."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(measurement["name"] for measurement in measurements):
        same = [measurement for measurement in measurements if measurement["name"] == name]
        values = {key: [measurement[key] for measurement in same] for key in ("ms", "tokens_per_second", "mfu")}
        ms = " to ".join(f"{end(values['ms']):,.4g}" for end in (min, max))
        speed, mfu = statistics.median(values["tokens_per_second"]), statistics.median(values["mfu"])
        rows.append((name, f"{statistics.median(values['ms']):,.4g} ({ms})", f"{speed:,.0f}", f"{mfu:.2%}"))
    return rows


def training(words: Sequence[str], steps: int, vocab_size: int, run: Path) -> Measurement:
    """Time a complete training, with its rows, screen and saves, after `WARM_UP` steps."""
    length = [f"trainer.max_steps={WARM_UP + steps}", f"logger.every_steps={min(WARM_UP, steps)}", f"run.dir={run}"]
    config = compose("train", [*words, *length])
    with contextlib.redirect_stdout(io.StringIO()):
        code = train(config)
    if code != FINISHED:  # a signal stopped it, and half a measurement is none
        raise KeyboardInterrupt
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["step"] >= WARM_UP and "seconds" in row]
    ms = 1e3 * (rows[-1]["seconds"] - rows[0]["seconds"]) / (rows[-1]["step"] - rows[0]["step"])
    choices, speed = read_json(run / "choices.json"), 1e3 * config.batch_tokens / ms
    name = f"{choices['precision']}{', compiled' * choices['compile']}"
    mfu = speed * flops_per_token(config.model, vocab_size) / peak_of(find_device(config), choices["precision"])
    return {"name": name, "ms": ms, "tokens_per_second": speed, "mfu": mfu, "choices": choices}


def sampling(
    words: Sequence[str], new_tokens: int, precisions: Sequence[str], batches: Sequence[int] = (1, 8, 32)
) -> list[Measurement]:
    """Time what `minigpt sample` does between reading a checkpoint and printing, with new weights."""
    config = compose("train", list(words))
    with contextlib.redirect_stdout(io.StringIO()):
        prepared = prepare(config.data, config.tokenizer)
    hardware = find_device(config)
    length = min(PROMPT, config.model.block_size // 4)
    new_tokens = min(new_tokens, config.model.block_size - length)  # within the context, where all steps are alike
    measurements = []
    for precision in precisions:
        gpt = GPT(config.model, prepared.tokenizer.vocab_size).to(hardware.device, DTYPES[precision]).eval()
        if precision == "int8":
            round_to_int8(gpt)
        flops = 2 * sum(parameter.numel() for parameter in gpt.parameters())
        peak = peak_of(hardware, "bf16" if precision == "bf16" else "fp32")
        writer = partial(write, gpt, prepared.tokenizer, decoder=choose_decoder(gpt, "auto", precision))
        for batch in batches:
            prompts = [prepared.val.tokens(100 * row, 100 * row + length).tolist() for row in range(batch)]
            ms = ms_per_token(partial(writer, prompts), new_tokens)
            speed = 1e3 * batch / ms
            facts = {"ms": ms, "tokens_per_second": speed, "mfu": speed * flops / peak}
            measurements.append({"name": f"{precision}, batch {batch}", **facts})
    return measurements


def ms_per_token(write_texts: Callable[[SamplingOptions], object], new_tokens: int) -> float:
    """Return the milliseconds for a token of each text that `write_texts` writes.

    The first token does not count, unless it takes most of the time.
    """
    write_texts(SamplingOptions(max_new_tokens=2))  # what is made once, such as a cache or compiled code
    options = [SamplingOptions(max_new_tokens=count) for count in (1, new_tokens)]
    first, whole = (_median_time(partial(write_texts, each)) for each in options)
    return 1e3 * (whole / new_tokens if first > whole / 2 else (whole - first) / (new_tokens - 1))


def peak_of(hardware: Hardware, precision: str) -> float:
    """Return the device's FLOP/s by its data sheet; of others, such as CPUs, what a large product reaches here."""
    if (known := peak_flops(hardware, precision)) is not None:
        return known
    a, b = (torch.randn(1024, 1024, device=hardware.device, dtype=DTYPES[precision]) for _ in range(2))
    return 2 * 1024**3 / _median_time(lambda: (a @ b).sum().item())


def _median_time(call: Callable[[], object]) -> float:
    """Return the median seconds of as many calls as take `MIN_SECONDS`."""
    times: list[float] = []
    while sum(times) < MIN_SECONDS:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
