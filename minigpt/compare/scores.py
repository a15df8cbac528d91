"""The losses of trained models on the same windows of the same text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.checkpoint.load import load_checkpoint
from minigpt.compare.sides import Run
from minigpt.model.evaluate import token_losses

MAX_LOGITS = 1 << 26  # at one time
MAX_WINDOWS = 64

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Each run's loss summed over each window, and how large the windows are."""

    losses: dict[str, Array]  # a run's weights -> nats (or bits) of each window, (windows,)
    sizes: Array  # tokens (or bytes), (windows,)
    window: int  # the size of a whole one
    unit: str  # of losses / sizes


def score(runs: Sequence[Run], *, device: str, say: Callable[[str], object] = print) -> Scores:
    """Score runs with the same validation text on the same windows of it: as long as the longest context.

    With one tokenizer these are windows of tokens, and losses are in nats per token. With several they are windows of
    bytes, a token lies where its last byte does, and losses are in bits per byte.
    """
    first = runs[0]
    in_bytes = any(run.val.fingerprint != first.val.fingerprint for run in runs)
    longest = [run.config.model.block_size * (run.val.bytes / len(run.val) if in_bytes else 1) for run in runs]
    window = math.ceil(max(longest))
    total = first.val.bytes if in_bytes else len(first.val) - 1
    sizes = np.full(-(-total // window), float(window))
    sizes[-1] = total - window * (len(sizes) - 1)
    losses = {}
    for number, run in enumerate(runs, 1):
        say(f"Scoring {number}/{len(runs)}  {run.path}, {run.checkpoint.name}: {len(run.val) - 1:,} tokens")
        losses[run.weights] = _window_losses(run, device, window=window, windows=len(sizes), in_bytes=in_bytes)
    return Scores(losses, sizes, window, "bits per byte" if in_bytes else "nats per token")


def _window_losses(run: Run, device: str, *, window: int, windows: int, in_bytes: bool) -> Array:
    loaded = load_checkpoint(run.checkpoint)
    block_size = run.config.model.block_size
    batch = min(MAX_WINDOWS, max(1, MAX_LOGITS // (block_size * run.tokenizer.vocab_size)))
    lengths = np.array([len(run.tokenizer.token_bytes(token)) for token in range(run.tokenizer.vocab_size)])
    sums = np.zeros(windows)
    position, offset = 1, int(lengths[run.val.tokens(0, 1)].sum())  # of the next token, of the bytes before it
    options: dict[str, Any] = {"block_size": block_size, "batch": batch, "device": device, "precision": "fp32"}
    for losses in token_losses(loaded.model.to(torch.device(device)), run.val, **options):
        tokens = run.val.tokens(position, position + len(losses))
        if in_bytes:
            ends = offset + np.cumsum(lengths[tokens])
            offset = int(ends[-1])
            places = np.maximum(ends - 1, 0) // window
        else:
            places = (np.arange(position, position + len(losses)) - 1) // window
        sums += np.bincount(places, weights=losses.double().numpy(), minlength=windows)
        position += len(losses)
    return sums / math.log(2) if in_bytes else sums
