"""Tokens per second of sampling, by the way that scripts/sample.py goes, at several batch sizes."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.benchmark.curves import load_model
from minigpt.benchmark.steps import new_model, settle
from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.checkpoint.pack import CONFIG, MODEL, STATE, TOKENIZER, copy_tensors, pack_tensors, to_json
from minigpt.checkpoint.store import list_checkpoints, write_checkpoint
from minigpt.config.compose import compose
from minigpt.config.convert import to_dict
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.data.prepare import Prepared
from minigpt.model.counting import flops_per_token
from minigpt.model.gpt import GPT
from minigpt.sampling.command import DTYPES, choose_decoder, load
from minigpt.sampling.native.decoder import NativeDecoder
from minigpt.sampling.write import write
from minigpt.training.state import RunState

BATCHES = (1, 8, 32)
PRECISIONS = ("fp32", "bf16", "int8")
PROMPT = 16  # tokens, at most
MIN_SECONDS = 0.3  # of one measurement, at least
PATIENCE = {"cpu": 2e12}  # FLOPs of one call of nanoGPT's generate, at most
PATIENCE_ELSEWHERE = 2e14

Writer = Callable[[list[list[int]], int], int]  # (prompts, new tokens) -> tokens written


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """One round: all writers at all batch sizes, one after the other.

    Args:
        task: arguments (of scripts/train.py), checkpoints (a folder: of new weights if it is empty), new (tokens),
            checkout (of nanoGPT, or None), huggingface.

    Returns:
        prompt, new (tokens), native (the precisions in which a token's step is native code), left_out (in words), and
        rows: [writer, batch, tokens/s, seconds to the first token].
    """
    config = compose("train", task["arguments"])
    prepared, choices = settle(config)
    torch.set_float32_matmul_precision("highest")  # scripts/sample.py leaves it so
    folder = Path(task["checkpoints"])
    if not list_checkpoints(folder):
        write_new(folder, new_model(config, choices, prepared.tokenizer.vocab_size), config, prepared)
    length, new = lengths(config.model.block_size, task["new"])
    writers, native = our_writers(list_checkpoints(folder)[-1], choices.device, config.seed)
    left_out: list[str] = []
    writers |= other_writers(config, prepared, choices.device, task=task, left_out=left_out)
    rows = []
    for batch in BATCHES:
        prompts = [prepared.val.tokens(100 * row, 100 * row + length).tolist() for row in range(batch)]
        for name, writer in list(writers.items()):
            if name.startswith("nanoGPT") and too_long(config, choices.device, batch, (length, new)):
                left_out.append(f"{name} at batch {batch}: it computes the whole text again for each token")
                continue
            try:
                rows.append([name, batch, *speed(writer, prompts, new)])
            except Exception as fault:
                if name.startswith("minigpt"):
                    raise
                left_out.append(f"{name} from batch {batch} on: {reason(fault)}")
                del writers[name]
    return {"prompt": length, "new": new, "native": native, "left_out": left_out, "rows": rows}


def reason(fault: Exception) -> str:
    """What went wrong with another's writer, on one line."""
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:300]


def lengths(block_size: int, new: int) -> tuple[int, int]:
    """(prompt, new tokens): all of it stays within the context, where each step is like the other."""
    length = min(PROMPT, block_size // 4)
    return length, min(new, block_size - length)


def too_long(config: TrainConfig, device: str, batch: int, sizes: tuple[int, int]) -> bool:
    """Whether nanoGPT, which computes the whole text again for each token, would take minutes."""
    length, new = sizes
    forward = flops_per_token(config.model, 1) / 3  # only the last place goes through its output layer
    return batch * new * (length + new / 2) * forward > PATIENCE.get(device, PATIENCE_ELSEWHERE)


def speed(writer: Writer, prompts: list[list[int]], new: int) -> tuple[float, float]:
    """(tokens/s after the first of each text, seconds until all have their first).

    Where the first takes most of the time, what is left without it would be noise: then all tokens and all time count.
    """
    writer(prompts, 2)  # what is made once, such as a cache or compiled code
    first = _seconds(lambda: writer(prompts, 1))[0]
    whole, tokens = _seconds(lambda: writer(prompts, new))
    if first > whole / 2:
        return tokens / whole, first
    return (tokens - len(prompts)) / (whole - first), first


def _seconds(do: Callable[[], int]) -> tuple[float, int]:
    """Median over as many calls as take `MIN_SECONDS`, and what a call returned."""
    times: list[float] = []
    result = 0
    while sum(times) < MIN_SECONDS:
        began = time.perf_counter()
        result = do()
        times.append(time.perf_counter() - began)
    return statistics.median(times), result


def write_new(folder: Path, gpt: GPT, config: TrainConfig, prepared: Prepared) -> Path:
    """A checkpoint of weights that were never trained, without the optimizer's averages."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Sequence[bytes | memoryview]] = {
        MODEL: pack_tensors(copy_tensors(gpt.state_dict(), {})),
        STATE: [to_json(asdict(RunState()))],
        CONFIG: [to_json(to_dict(config))],
        TOKENIZER: [to_json(prepared.tokenizer.to_json())],
    }
    return write_checkpoint(folder, 0, files, {})


def our_writers(checkpoint: Path, device: str, seed: int) -> tuple[dict[str, Writer], list[str]]:
    """Ours in each precision, and the precisions in which a token's step is native code."""
    writers, native = {}, []
    for precision in PRECISIONS:
        options = SampleConfig(checkpoint=str(checkpoint), seed=seed, device=device, precision=precision)  # type: ignore[arg-type]
        loaded = load(options)
        decoder = choose_decoder(options, loaded.model)
        writers[f"minigpt {precision}"] = our_writer(loaded, options, decoder)
        native += [precision] if decoder is not None else []
    return writers, native


def our_writer(loaded: LoadedCheckpoint, options: SampleConfig, decoder: NativeDecoder | None) -> Writer:
    """What scripts/sample.py does between reading a checkpoint and printing."""

    def writer(prompts: list[list[int]], new: int) -> int:
        settings = replace(options, max_new_tokens=new)
        texts = write(loaded.model, loaded.tokenizer, prompts, settings, decoder=decoder)
        return sum(len(text.sample.tokens) for text in texts)

    return writer


def other_writers(
    config: TrainConfig, prepared: Prepared, device: str, *, task: dict[str, Any], left_out: list[str]
) -> dict[str, Writer]:
    """Those it is compared with, where they are asked for and work here: new weights of the same sizes."""
    V = prepared.tokenizer.vocab_size

    def nanogpt() -> Writer:
        return nanogpt_writer(load_model(Path(task["checkout"]), config.model, V).to(device).eval(), device)

    def huggingface(dtype: torch.dtype) -> Writer:
        from minigpt.benchmark import huggingface

        return huggingface_writer(huggingface.new_model(config.model, V).to(device, dtype).eval(), device)

    makers: dict[str, Callable[[], Writer]] = {}
    if task["checkout"]:
        makers[f"nanoGPT {'bf16' if device == 'cuda' else 'fp32'}"] = nanogpt
    if task["huggingface"]:
        makers |= {f"Hugging Face {name}": partial(huggingface, DTYPES[name]) for name in ("fp32", "bf16")}
    writers = {}
    for name, make in makers.items():
        try:
            writers[name] = make()
        except Exception as fault:
            left_out.append(f"{name}: {reason(fault)}")
    return writers


def nanogpt_writer(model: Any, device: str) -> Writer:
    """nanoGPT's own generate as its sample.py calls it, with the temperature of ours."""

    def writer(prompts: list[list[int]], new: int) -> int:
        ids = torch.tensor(prompts, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            written: Tensor = model.generate(ids, new, temperature=0.8)
        written.tolist()  # waits for the device
        return math.prod(written.shape) - math.prod(ids.shape)

    return writer


def huggingface_writer(model: Any, device: str) -> Writer:
    """Hugging Face's generate with its KV cache, with the temperature of ours."""

    def writer(prompts: list[list[int]], new: int) -> int:
        ids = torch.tensor(prompts, device=device)
        options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": new, "min_new_tokens": new}
        written: Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
        written.tolist()
        return math.prod(written.shape) - math.prod(ids.shape)

    return writer
