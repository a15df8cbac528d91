"""Tokens per second of sampling, with the code of minigpt sample, at several batch sizes."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from minigpt.benchmark.bench import Bench, Measurement, Section
from minigpt.benchmark.steps import new_model, set_up
from minigpt.config.schema import ModelConfig
from minigpt.data.text import Split
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.native.decoder import round_to_int8
from minigpt.sampling.sample import DTYPES, choose_decoder
from minigpt.sampling.write import write

BATCHES = (1, 8, 32)
PROMPT = 16  # tokens, at most
MIN_SECONDS = 0.3  # of one measurement, at least

Writer = Callable[[list[list[int]], int], int]  # (prompts, new tokens) -> tokens written


def sampling(bench: Bench) -> Section:
    """Measure all writers at all batch sizes; nanoGPT only at 1, as it computes the whole text again for each token."""
    config = bench.plan.config
    jobs = {("minigpt", precision): "sampling.sample" for precision in ("fp32", "bf16", "int8")}
    if config.huggingface:
        jobs |= {("Hugging Face", precision): "huggingface.sample" for precision in ("fp32", "bf16")}
    contenders = {
        f"{writer} {precision}, batch {batch}": partial(bench.measure, job, precision=precision, batch=batch)
        for batch in BATCHES
        for (writer, precision), job in jobs.items()
    }
    if config.nanogpt:
        precision = "bf16" if bench.choices["device"] == "cuda" else "fp32"
        nanogpt = partial(bench.measure, "nanogpt.sample", precision=precision, batch=1, checkout=config.nanogpt)
        contenders[f"nanoGPT {precision}, batch 1"] = nanogpt
    found, notes = bench.in_turn({name: partial(go, new=config.new_tokens) for name, go in contenders.items()})
    about = (
        f"A step is a token of each text. Prompts of {PROMPT} tokens, {config.new_tokens} new ones each, within the "
        f"context of {bench.plan.config.model.block_size}; temperature 0.8; new weights. The first token is not in the "
        "speed, unless it takes most of the time. Times as long as minigpt in the same precision."
    )
    ours = lambda name: f"minigpt {' '.join(name.split()[-3:])}"  # noqa: E731
    return bench.section("Sampling", found, [about, *notes], baseline=ours)


def sample(words: Sequence[str], precision: str, batch: int, new: int) -> Measurement:
    """Time what minigpt sample does between reading a checkpoint and printing."""
    config, prepared, choices = set_up(words)
    torch.set_float32_matmul_precision("highest")  # torch's default, which minigpt sample does not change
    gpt = new_model(config, choices, prepared.tokenizer.vocab_size).to(choices.device, DTYPES[precision]).eval()
    if precision == "int8":
        round_to_int8(gpt)
    decoder = choose_decoder(gpt, "auto", precision)

    def writer(prompts: list[list[int]], new: int) -> int:
        options = SamplingOptions(max_new_tokens=new, seed=config.seed)
        texts = write(gpt, prepared.tokenizer, prompts, options, decoder=decoder)
        return sum(len(text.written) for text in texts)

    return speed(writer, config.model, prepared.val, batch=batch, new=new)


def writer_of(generate: Callable[[Tensor, int], Tensor], device: str) -> Writer:
    """Return a Writer for a function (prompts (B, T), new tokens) -> texts (B, T + new)."""

    def writer(prompts: list[list[int]], new: int) -> int:
        ids = torch.tensor(prompts, device=device)
        return len(generate(ids, new).flatten().tolist()) - ids.numel()  # the list waits for the device

    return writer


def speed(writer: Writer, sizes: ModelConfig, text: Split, *, batch: int, new: int) -> Measurement:
    """Return the ms per new token of `batch` texts after the first of each, and the seconds until all have their first.

    If the first token takes most of the time, the rest would be noise: then all tokens and all time count.
    """
    length = min(PROMPT, sizes.block_size // 4)
    new = min(new, sizes.block_size - length)  # within the context, where each step is like the other
    prompts = [text.tokens(100 * row, 100 * row + length).tolist() for row in range(batch)]
    written = writer(prompts, 2)  # makes what is made once, such as a cache or compiled code
    assert written == 2 * batch, f"{written} tokens were written where {2 * batch} were wanted"
    first, whole = _seconds(lambda: writer(prompts, 1)), _seconds(lambda: writer(prompts, new))
    ms = 1e3 * (whole / new if first > whole / 2 else (whole - first) / (new - 1))
    return {"ms": ms, "tokens": batch, "first": first}


def _seconds(do: Callable[[], int]) -> float:
    """Return the median time of as many calls as take `MIN_SECONDS`."""
    times: list[float] = []
    while sum(times) < MIN_SECONDS:
        began = time.perf_counter()
        do()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
