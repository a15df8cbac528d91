"""The losses of trained models on the same windows of the same text."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.checkpoint.load import load_checkpoint
from minigpt.compare.sides import Run
from minigpt.data.batch import document_end
from minigpt.data.chat.packing import ConversationSplit
from minigpt.data.text import Split
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.evaluate import token_losses, unpredicted_places, windows_at_once

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Windows:
    """The windows on which models are compared."""

    sizes: Array  # tokens (or bytes), (windows,)
    window: int  # the size of a whole one
    in_bytes: bool
    left_out: NDArray[np.int64]  # places of tokens that one of the models does not predict: they count for none

    @property
    def unit(self) -> str:
        """The unit of losses / sizes."""
        return "bits per byte" if self.in_bytes else "nats per token"


@dataclass(frozen=True)
class Scores(Windows):
    """Each run's loss summed over each window."""

    losses: dict[str, Array]  # a run's weights -> nats (or bits) of each window, (windows,)


def common_windows(texts: Sequence[tuple[Split, int]], ends: Sequence[int | None] = ()) -> Windows:
    """Return windows of one text, as long as the longest context.

    With one tokenizer these are windows of tokens, and losses are in nats per token. With several they are windows of
    bytes, a token belongs to the window of its last byte, and losses are in bits per byte.

    Args:
        texts: the text as each model's tokens, and the model's context length.
        ends: for each model the token after a document, if it keeps documents apart.

    Raises:
        UserFault: a model keeps documents apart, and the models have several tokenizers.
    """
    first = texts[0][0]
    if any(isinstance(split, ConversationSplit) for split, _ in texts):
        raise UserFault(
            "runs of data=chat predict answers alone, and compare is for texts. Compare their val/loss yourself"
        )
    in_bytes = any(split.fingerprint != first.fingerprint for split, _ in texts)
    end = next((end for end in ends if end is not None), None)
    if in_bytes and end is not None:
        raise UserFault(
            "with data.mask_documents=true no document's first token is predicted, and tokenizers cut it to different "
            "lengths. Compare runs of one tokenizer, or of data.mask_documents=false"
        )
    left_out = unpredicted_places(first, end)[1:]
    longest = [block_size * (split.bytes / len(split) if in_bytes else 1) for split, block_size in texts]
    window = math.ceil(max(longest))
    total = first.bytes if in_bytes else len(first) - 1
    sizes = np.full(-(-total // window), float(window))
    sizes[-1] = total - window * (len(sizes) - 1)
    sizes -= np.bincount((left_out - 1) // window, minlength=len(sizes))
    return Windows(sizes, window, in_bytes, left_out)


def by_window(windows: Windows, split: Split, tokenizer: Tokenizer, losses: Iterable[NDArray[Any]]) -> Array:
    """Return the sum of a split's losses over each window; they come in pieces, in the order of the tokens."""
    lengths = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
    sums = np.zeros(len(windows.sizes))
    position, offset = 1, int(lengths[split.tokens(0, 1)].sum())  # of the next token, of the bytes before it
    for piece in losses:
        first, last = np.searchsorted(windows.left_out, [position, position + len(piece)])
        if last > first:
            piece = piece.copy()
            piece[windows.left_out[first:last] - position] = 0.0
        if windows.in_bytes:
            ends = offset + np.cumsum(lengths[split.tokens(position, position + len(piece))])
            offset = int(ends[-1])
            places = np.clip((ends - 1) // windows.window, 0, len(sums) - 1)  # normalised text may be longer
        else:
            places = (np.arange(position, position + len(piece)) - 1) // windows.window
        sums += np.bincount(places, weights=piece, minlength=len(sums))
        position += len(piece)
    return sums / math.log(2) if windows.in_bytes else sums


def score(runs: Sequence[Run], *, device: str, say: Callable[[str], object] = print) -> Scores:
    """Score runs with the same validation text on the same windows of it."""
    ends = [document_end(run.config.data, run.tokenizer) for run in runs]
    windows = common_windows([(run.val, run.config.model.block_size) for run in runs], ends)
    losses = {}
    for number, (run, end) in enumerate(zip(runs, ends, strict=True), 1):
        say(f"Scoring {number}/{len(runs)}  {run.path}, {run.checkpoint.name}: {len(run.val) - 1:,} tokens")
        model, block_size = load_checkpoint(run.checkpoint).model.to(torch.device(device)), run.config.model.block_size
        batch = windows_at_once(block_size, run.tokenizer.vocab_size)
        pieces = token_losses(
            model, run.val, block_size=block_size, batch=batch, device=device, precision="fp32", document_end=end
        )
        losses[run.weights_sha256] = by_window(
            windows, run.val, run.tokenizer, (piece.double().numpy() for piece in pieces)
        )
    return Scores(**vars(windows), losses=losses)
