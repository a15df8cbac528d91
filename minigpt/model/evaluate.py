"""The loss on a whole split: every token of it predicted once, on a fixed grid."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from minigpt.attention.masks import Documents, find_documents
from minigpt.model.loss import autocast

if TYPE_CHECKING:  # anything with these attributes will do
    from minigpt.data.chat.packing import Split

MAX_LOGITS = 1 << 26  # at one time
MAX_WINDOWS = 64
CHUNK_TOKENS = 1 << 20


@dataclass(frozen=True)
class Score:
    """How well a model predicts a split."""

    nats: float  # summed over the predicted tokens
    tokens: int  # predicted tokens (the first of each document has no context)
    bytes: int  # of text that they stand for

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / math.log(2) / max(self.bytes, 1)


def mean_score(scores: Mapping[str, Score], shares: Mapping[str, float]) -> Score:
    """Return the score of a text in which each source has its share of the tokens."""
    tokens = sum(score.tokens for score in scores.values())
    nats = sum(shares[name] * score.loss for name, score in scores.items())
    n_bytes = sum(shares[name] * score.bytes / score.tokens for name, score in scores.items())
    return Score(tokens * nats, tokens, round(tokens * n_bytes))


def windows_at_once(block_size: int, vocab_size: int) -> int:
    """Return how many windows fit into one forward pass on any machine."""
    return min(MAX_WINDOWS, max(1, MAX_LOGITS // (block_size * vocab_size)))


def grid_batches(
    split: "Split", block_size: int, batch: int, stride: int | None = None
) -> Iterator[tuple[Tensor, int]]:
    """Yield the split's windows: (n, block_size + 1) tokens each time, then the shorter tail alone.

    Side by side: window w predicts tokens w * block_size + 1 .. (w + 1) * block_size. With a stride below block_size
    they overlap: one begins every `stride` tokens, and its first block_size - stride tokens are only read again.

    Also yields how many of the last tokens of each window are predicted.
    """
    stride = stride or block_size
    shared, predicted = block_size - stride, len(split) - 1
    whole = max(0, (predicted - shared) // stride)
    alone = min(whole, 1) if shared else 0  # the first window has nothing before it: all of it is predicted
    batches = [(0, alone, block_size)] * alone
    batches += [(first, min(first + batch, whole), stride) for first in range(alone, whole, batch)]
    for first, last, new in batches:
        starts = np.arange(first, last, dtype=np.int64) * stride
        yield torch.from_numpy(split.windows(starts, block_size + 1)), new
    start = whole * stride  # the tail's window reads the tokens shared with the window before it, too
    done = start + shared if whole else 0
    if predicted > done:
        tail = split.windows(np.array([start], dtype=np.int64), predicted - start + 1)
        yield torch.from_numpy(tail), predicted - done


def unpredicted_places(split: "Split", document_end: int | None) -> NDArray[np.int64]:
    """Return the places of the tokens that are not predicted: the split's first, and what follows a `document_end`.

    In conversations they are all tokens outside the answers.
    """
    if (answers := getattr(split, "answers", None)) is not None:
        return np.flatnonzero(~answers)
    places = [np.zeros(1, dtype=np.int64)]
    for start in range(0, len(split) - 1 if document_end is not None else 0, CHUNK_TOKENS):
        piece = split.tokens(start, min(start + CHUNK_TOKENS, len(split) - 1))
        places.append(np.flatnonzero(piece == document_end) + start + 1)
    return np.concatenate(places)


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss (n,) of each target (n,), of logits (n, V)."""
    return F.cross_entropy(logits, targets, reduction="none")


def nats_and_right(logits: Tensor, targets: Tensor, alike: Tensor | None = None) -> Tensor:
    """Return, for logits (n, V), each target's loss and whether it is the most likely token: (n, 2).

    Where the target is one of the tokens `alike` (k,), the most likely one may be any of these.
    """
    likeliest = logits.argmax(-1)
    right = likeliest == targets
    if alike is not None:
        right |= torch.isin(targets, alike) & torch.isin(likeliest, alike)
    return torch.stack([nats(logits, targets), right.float()], dim=-1)


def measure_pass(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    measure: Callable[[Tensor, Tensor], Tensor] = nats,
    **options: Any,
) -> Tensor:
    """Return what `measure` makes of the targets and the logits that predict them, those of the last positions.

    Where a single window has more than MAX_LOGITS logits, they are made and measured in pieces.

    Args:
        model: (B, T) tokens -> (B, T, V) logits; only a GPT, whose V is known, is measured in pieces.
        tokens: (B, T).
        targets: (B, T or less).
        measure: logits (n, V) and targets (n,) -> (n, ...), each row from its own logits and target.
        **options: for the model.

    Returns:
        (n, ...), n = all targets.
    """
    V = getattr(model, "vocab_size", 1)
    if tokens.shape[1] * V <= MAX_LOGITS:
        return measure(model(tokens, **options)[:, -targets.shape[1] :].flatten(0, 1), targets.flatten())

    def pieces(hidden: Tensor, table: Tensor) -> Tensor:
        size = max(1, MAX_LOGITS // V)
        rows = hidden[:, -targets.shape[1] :].flatten(0, 1)
        parts = zip(rows.split(size), targets.flatten().split(size), strict=True)
        return torch.cat([measure(F.linear(part, table)[:, :V], wanted) for part, wanted in parts])

    return model(tokens, readout=pieces, **options)


def _sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; a GPU takes it from page-locked memory, so that the host does not wait."""
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@torch.no_grad()
def token_losses(
    model: nn.Module,
    split: "Split",
    *,
    block_size: int,
    batch: int,
    device: torch.device | str,
    precision: str,
    rank: int = 0,
    world_size: int = 1,
    stride: int | None = None,
    document_end: int | None = None,
    measure: Callable[[Tensor, Tensor], Tensor] = nats,
    together: bool = False,
) -> Iterator[Tensor]:
    """Yield the loss of each token in nats, in the order of the split.

    Args:
        model: (B, T) tokens -> (B, T, V) logits; it is in eval mode until the iteration ends.
        split: tokens.
        block_size: T of the grid.
        batch: windows per forward pass.
        device: the model's.
        precision: "fp32", "bf16" or "fp64".
        rank: of this process, which scores every world_size-th batch: the scores of all ranks add up.
        world_size: number of processes.
        stride: tokens from a window to the next; None: block_size, side by side.
        document_end: the token after each document, if no document is to see another. The loss of the token that
            follows it is 0.
        measure: logits (n, V) and targets (n,) to what is yielded, in place of the losses.
        together: whether a forward pass needs all ranks (sharded weights): then each rank makes the same number.

    Yields:
        (n,) on the device, for each forward pass; of conversations only the tokens that the assistant wrote.
    """
    was_training = model.training
    model.eval()
    number, windows = -1, torch.zeros(1, 2, dtype=torch.int64)
    packed = getattr(split, "packed_batches", None)  # of conversations: their own windows, and what is learned there
    batches = packed(block_size, batch) if packed else grid_batches(split, block_size, batch, stride)
    for number, (windows, new) in enumerate(batches):
        if number % world_size != rank:
            continue
        apart = {}
        if document_end is not None:
            documents = find_documents(windows[:, :-1], document_end)
            apart = {"documents": Documents(*(_sent(part, device) for part in documents))}
        windows, learned = _sent(windows, device), None
        if packed:
            learned, new = _sent(new.flatten().nonzero()[:, 0], device), block_size
        with autocast(torch.device(device).type, precision):
            measured = measure_pass(model, windows[:, :-1], windows[:, -new:], measure, **apart)
        if document_end is not None:
            measured[windows[:, -new - 1 : -1].flatten() == document_end] = 0.0
        yield measured if learned is None else measured[learned]
    if together and rank > number % world_size:
        with autocast(torch.device(device).type, precision):
            model(windows[:1, :-1].to(device))
    model.train(was_training)


def evaluate(model: nn.Module, split: "Split", *, token_bytes: Callable[[int], bytes], **options: Any) -> Score:
    """Score the whole split, tail included, weighted by tokens.

    Args:
        model: left in the mode it came in.
        split: tokens.
        token_bytes: the text of a token.
        **options: as for `token_losses`.

    Returns:
        The score of this rank's share; nats summed in fp64.
    """

    def text_bytes(tokens: NDArray[Any]) -> int:
        different, counts = np.unique(tokens, return_counts=True)
        return sum(len(token_bytes(int(token))) * int(count) for token, count in zip(different, counts, strict=True))

    learned_tokens = getattr(split, "learned_tokens", None)  # of conversations
    if learned_tokens is not None:
        n_bytes, left_out = text_bytes(learned_tokens(options["block_size"])), 0
    else:
        places = unpredicted_places(split, options.get("document_end"))
        n_bytes, left_out = split.bytes - text_bytes(split.windows(places, 1)), len(places) - 1
    nats: Tensor | float = 0.0  # summed on the device and read once
    predicted = 0 if options.get("rank") else -left_out
    for losses in token_losses(model, split, **options):
        nats = nats + (losses.cpu() if losses.device.type == "mps" else losses).double().sum()  # MPS has no fp64
        predicted += losses.numel()
    return Score(float(nats), predicted, n_bytes)
