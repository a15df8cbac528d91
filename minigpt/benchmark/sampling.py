"""Tokens per second of sampling, by the way that minigpt sample goes, at several batch sizes."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.benchmark.agreement import load_model
from minigpt.benchmark.bench import Bench, Section
from minigpt.benchmark.steps import new_model, settle
from minigpt.benchmark.table import counted, ratios, short, spread
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.model.gpt import GPT
from minigpt.sampling.command import DTYPES, choose_decoder
from minigpt.sampling.native.decoder import round_to_int8
from minigpt.sampling.write import write

BATCHES = (1, 8, 32)
PROMPT = 16  # tokens, at most
MIN_SECONDS = 0.3  # of one measurement, at least
HEADS = ["writer", "tokens/s", "min", "max", "ms a step", "first token, ms"]

Writer = Callable[[list[list[int]], int], int]  # (prompts, new tokens) -> tokens written


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Measure one round: each writer at all batch sizes, nanoGPT at 1: it computes the whole text again for each token.

    Args:
        task: config, new (tokens), checkout (of nanoGPT, or None), huggingface.

    Returns:
        prompt, new (tokens), left_out (sentences), and rows: [writer, batch, tokens/s, seconds to the first token].
    """
    config, prepared, choices = settle(task)
    torch.set_float32_matmul_precision("highest")  # minigpt sample leaves it so
    length = min(PROMPT, config.model.block_size // 4)
    new = min(task["new"], config.model.block_size - length)  # within the context, where each step is like the other
    writers: dict[str, Callable[[], Writer]] = {}
    for precision in ("fp32", "bf16", "int8"):
        options = SampleConfig(seed=config.seed, device=choices.device, precision=precision)  # type: ignore[arg-type]
        gpt = partial(new_model, config, choices, prepared.tokenizer.vocab_size)
        writers[f"minigpt {precision}"] = partial(our_writer, gpt, prepared.tokenizer, options)
    writers |= other_writers(config, prepared.tokenizer.vocab_size, choices.device, task)
    rows: list[list[Any]] = []
    left_out = []
    for name, make in writers.items():
        try:
            writer = make()
            for batch in BATCHES[:1] if name.startswith("nanoGPT") else BATCHES:
                prompts = [prepared.val.tokens(100 * row, 100 * row + length).tolist() for row in range(batch)]
                rows.append([name, batch, *speed(writer, prompts, new)])
        except Exception as fault:
            if name.startswith("minigpt"):
                raise
            left_out.append(f"{name}: " + " ".join(f"{type(fault).__name__}: {fault}".split())[:300])
    return {"prompt": length, "new": new, "left_out": left_out, "rows": rows}


def speed(writer: Writer, prompts: list[list[int]], new: int) -> tuple[float, float]:
    """(tokens/s after the first of each text, seconds until all have their first).

    Where the first takes most of the time, what is left without it would be noise: then all tokens and all time count.
    """
    writer(prompts, 2)  # what is made once, such as a cache or compiled code
    first = _seconds(lambda: writer(prompts, 1))[0]
    seconds, tokens = _seconds(lambda: writer(prompts, new))
    if first > seconds / 2:
        return tokens / seconds, first
    return (tokens - len(prompts)) / (seconds - first), first


def _seconds(do: Callable[[], int]) -> tuple[float, int]:
    """Median over as many calls as take `MIN_SECONDS`, and what a call returned."""
    times: list[float] = []
    result = 0
    while sum(times) < MIN_SECONDS:
        began = time.perf_counter()
        result = do()
        times.append(time.perf_counter() - began)
    return statistics.median(times), result


def our_writer(new_gpt: Callable[[], GPT], tokenizer: Tokenizer, options: SampleConfig) -> Writer:
    """What minigpt sample does between reading a checkpoint and printing."""
    gpt = new_gpt().to(options.device, DTYPES[options.precision]).eval()
    if options.precision == "int8":
        round_to_int8(gpt)
    decoder = choose_decoder(options, gpt)

    def writer(prompts: list[list[int]], new: int) -> int:
        samples = write(gpt, tokenizer, prompts, replace(options, max_new_tokens=new), decoder=decoder)
        return sum(len(sample.tokens) for sample in samples)

    return writer


def other_writers(config: TrainConfig, vocab_size: int, device: str, task: dict[str, Any]) -> dict[str, Any]:
    """What makes the writers it is compared with, where they are asked for: new weights of the same sizes."""

    def nanogpt() -> Writer:
        model = load_model(Path(task["checkout"]), config.model, vocab_size).to(device).eval()
        return other_writer(lambda ids, new: model.generate(ids, new, temperature=0.8), device, device == "cuda")

    def huggingface(dtype: torch.dtype) -> Writer:
        from minigpt.benchmark.huggingface import generating, new_model

        return other_writer(generating(new_model(config.model, vocab_size).to(device, dtype).eval()), device, False)

    found: dict[str, Callable[[], Writer]] = {}
    if task["checkout"]:
        found[f"nanoGPT {'bf16' if device == 'cuda' else 'fp32'}"] = nanogpt
    if task["huggingface"]:
        found["Hugging Face fp32"] = lambda: huggingface(torch.float32)
        found["Hugging Face bf16"] = lambda: huggingface(torch.bfloat16)
    return found


def other_writer(generate: Callable[[Tensor, int], Tensor], device: str, bf16: bool) -> Writer:
    """A writer from (prompts (B, T), new tokens) -> texts (B, T + new), counted by what it gave back."""

    def writer(prompts: list[list[int]], new: int) -> int:
        ids = torch.tensor(prompts, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            written = generate(ids, new)
        return len(written.flatten().tolist()) - ids.numel()  # the list waits for the device

    return writer


def sampling(bench: Bench) -> Section:
    """Measure all writers, a process per round."""
    plan, rounds = bench.plan, bench.plan.config.rounds
    checkout = str(plan.nanogpt) if plan.nanogpt else None
    task = {"config": bench.training(), "new": plan.preset.new_tokens, "checkout": checkout}
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    left_out: dict[str, None] = {}  # in order, each once
    for number in range(rounds):
        result = bench.measure("sampling.measure", **task, huggingface=plan.config.huggingface)
        left_out |= dict.fromkeys(result["left_out"])
        for name, batch, tokens_per_second, first in result["rows"]:
            found.setdefault((batch, name), []).append((tokens_per_second, first))
            bench.tell(number, f"sampling: {name} {short(tokens_per_second)} tokens/s at batch {batch}")
    found = {
        key: pairs for key, pairs in sorted(found.items(), key=lambda item: item[0][0]) if len(pairs) == rounds
    }  # who failed once is out
    rows, speeds = [], {}
    for (batch, name), pairs in found.items():
        each, first = spread([pair[0] for pair in pairs]), statistics.median(pair[1] for pair in pairs)
        cells = [*map(short, (each.median, each.low, each.high)), f"{1e3 * batch / each.median:,.3f}"]
        rows.append([f"{name}, batch {batch}", *cells, f"{1e3 * first:,.1f}"])
        if batch == 1:
            speeds[name] = [pair[0] for pair in pairs]
    parts = [f"{name} {short(spread(own).median)}" for name, own in speeds.items()]
    for name, others in speeds.items():
        ours = f"minigpt {name.split()[-1]}"  # in the same precision
        parts += [f"{ours} over {name} {ratios(speeds[ours], others).text()}"] if name != ours else []
    note = (
        f"Prompts of {result['prompt']} tokens, {result['new']} new ones each, all within the context of "
        f"{plan.config.model.block_size}; temperature 0.8. tokens/s are those of all texts after their first "
        f"token (with it, where it takes most of the time). Medians and ends of {counted(rounds, 'round')}; the "
        "weights are new."
    )
    note = "\n".join([note, *(f"Left out: {each}." for each in left_out)])
    summary = f"sampling {plan.config.preset} at batch 1, tokens/s: {'; '.join(parts)}"
    return Section("Sampling", HEADS, rows, note, summary)
