"""`minigpt demo`: train a GPT on text that every machine has, beside an n-gram model that it must beat."""

import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.roles import default_run_dir
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.data.prepare import Prepared, prepare
from minigpt.faults import FINISHED
from minigpt.invocation import typed
from minigpt.report.page import write_report
from minigpt.report.record import best_row, number, read_mapping, read_record
from minigpt.rundir.files import write_json
from minigpt.sampling.command import sample
from minigpt.training.run import train

BASELINE = "order-3 byte n-gram"
_PIECE = 1 << 20  # bytes of validation text scored at a time


def demo(config: TrainConfig) -> int:
    """Train, then show what came out. A finished run is shown again, an unfinished one goes on.

    Args:
        config: composed and checked.

    Returns:
        What `train` returns.
    """
    code = train(config)
    if code != FINISHED or os.environ.get("LOCAL_RANK", "0") != "0":
        return code
    run = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    print(f"\n{comparison(run, measure_baseline(run, prepared))}\n")
    # Another text than the default may hold anything: its sample starts from nothing.
    # No blank at the end of the prompt: to BPE it belongs to the next word.
    prompt, next_prompt = ("def", "class") if config.data.name == "stdlib" else ("", "...")
    print(f"{f'--- a sample that starts with {prompt!r} ' if prompt else '--- a sample ':-<65}")
    sample(SampleConfig(checkpoint=str(run), prompt=[prompt], max_new_tokens=160, temperature=0.7, top_k=50))
    print("-" * 65)
    print(f"\nLoss picture  {run / 'loss.png'}\nThe whole run {run / 'report.html'}")
    print(f'Now you       {typed("sample")} checkpoint={shlex.quote(str(run))} prompt="{next_prompt}"')
    return code


def measure_baseline(run: Path, prepared: Prepared) -> float:
    """Return the n-gram model's bits per byte on the run's validation split, measured once and kept in baseline.json.

    When it was measured, the run's report is drawn again with it.
    """
    kept = read_mapping(run / "baseline.json")
    bits = number(kept.get("bits_per_byte"))
    if bits is not None and kept.get("fingerprint") == prepared.fingerprint:
        return bits
    splits = (prepared.train, prepared.val)
    train_text, val_text = (prepared.tokenizer.decode_bytes(split.tokens(0, len(split))) for split in splits)
    bits = ngram_bits_per_byte(train_text, val_text)
    facts = {"name": BASELINE, "bits_per_byte": bits, "fingerprint": prepared.fingerprint}
    write_json(run / "baseline.json", facts)
    try:
        write_report(run)
    except Exception as error:
        print(f"The report could not be drawn: {type(error).__name__}: {error}")
    return bits


def comparison(run: Path, baseline: float) -> str:
    """Return the sentence that compares the run's best validation with the n-gram model, whichever is better."""
    best: dict[str, Any] = best_row(read_record(run).rows) or {}
    bits = number(best.get("val/bits_per_byte"))
    if bits is None:
        return f"{BASELINE} {baseline:.3f} bits per byte; the GPT has not been validated yet."
    figures = f"validation {bits:.3f} bits per byte; {BASELINE} {baseline:.3f}: lower is better, "
    if bits < baseline:
        return f"{figures}the GPT wins by {1 - bits / baseline:.0%}."
    return f"{figures}so the n-gram model is still ahead. The GPT needs more steps: trainer.max_steps=N"


def ngram_bits_per_byte(train: bytes, val: bytes, order: int = 3) -> float:
    """Return the bits per byte of `val` under a model of `train` whose contexts are up to `order` bytes long.

    A neural model that doesn't beat it has learned nothing but local statistics. Counts of the training text are
    smoothed by interpolated Witten-Bell: a context hands the lower order as much weight as it has seen different
    bytes follow it,

        P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h)),

    with c counts, T(h) the number of different bytes seen after h, and h' the context h without its oldest byte;
    below the empty context, all 256 bytes are equally likely. At the start of `val` the contexts are as long as the
    bytes before them. Source: Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language
    Modeling", section 2.6.

    Args:
        train: text to count.
        val: text to predict, at least a byte.
        order: 0 to 3 bytes of context; a context and its next byte fit 32 bits.
    """
    tables = [_table(train, length) for length in range(order + 1)]
    bits = 0.0
    for start in range(0, len(val), _PIECE):
        before = min(start, order)
        probabilities = _probabilities(tables, val[start - before : start + _PIECE])
        bits -= float(np.log2(probabilities[before:]).sum())
    return bits / len(val)


def _table(train: bytes, length: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Different grams of `length` context bytes and the byte after them, in order, and their counts."""
    grams = np.sort(_grams(train, length))
    first = np.flatnonzero(np.diff(grams, prepend=~grams[:1]))
    return grams[first], np.diff(first, append=len(grams))


def _grams(text: bytes, length: int) -> NDArray[np.uint32]:
    """Each byte that has `length` bytes before it, with them, as one number: oldest byte highest."""
    data = np.frombuffer(text, dtype=np.uint8)
    grams = np.zeros(max(0, len(data) - length), dtype=np.uint32)
    for place in range(length + 1):
        grams = (grams << np.uint32(8)) | data[place : place + len(grams)]
    return grams


def _probabilities(tables: list[tuple[NDArray[np.uint32], NDArray[np.int64]]], text: bytes) -> NDArray[np.float64]:
    """P of each byte of `text` given those before it, (len(text),)."""
    p = np.full(len(text), 1 / 256)
    for length, (seen, counts) in enumerate(tables):
        grams = _grams(text, length)
        total = np.concatenate([[0], np.cumsum(counts)])
        place = np.minimum(np.searchsorted(seen, grams), max(0, len(seen) - 1))
        count = np.where(seen[place] == grams, counts[place], 0) if len(seen) else np.zeros(len(grams))
        low = np.searchsorted(seen, grams & ~np.uint32(255))
        high = np.searchsorted(seen, grams | np.uint32(255), side="right")
        kinds = high - low
        weight = np.maximum(total[high] - total[low] + kinds, 1)  # an unseen context leaves the lower order as it is
        p[length:] = np.where(kinds > 0, (count + kinds * p[length:]) / weight, p[length:])
    return p
