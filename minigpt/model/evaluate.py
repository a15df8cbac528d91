"""The loss on a whole split: every token of it predicted once, on a fixed grid."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.masks import Documents, find_documents
from minigpt.model.loss import autocast

if TYPE_CHECKING:
    from minigpt.data.chat.packing import Split

MAX_LOGITS = 1 << 26  # at one time
MAX_WINDOWS = 64
Measure = Callable[[Tensor, Tensor], Tensor]  # of logits (n, V) and targets (n,): a row for each target


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
    """Return the mean score of several sources, weighted by their shares of the tokens."""
    tokens = sum(score.tokens for score in scores.values())
    nats = sum(shares[name] * score.loss for name, score in scores.items())
    n_bytes = sum(shares[name] * score.bytes / score.tokens for name, score in scores.items())
    return Score(tokens * nats, tokens, round(tokens * n_bytes))


def windows_at_once(block_size: int, vocab_size: int) -> int:
    """Return how many windows fit into one forward pass on any machine."""
    return min(MAX_WINDOWS, max(1, MAX_LOGITS // (block_size * vocab_size)))


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss (n,) of each target (n,), of logits (n, V)."""
    return F.cross_entropy(logits, targets, reduction="none")


def nats_and_right(logits: Tensor, targets: Tensor, alike: Tensor | None = None) -> Tensor:
    """Return, for logits (n, V), each target's loss and whether it is the most likely token: (n, 2).

    If the target is one of the tokens `alike` (k,), it counts as right when the most likely token is any of them.
    """
    likeliest = logits.argmax(-1)
    right = likeliest == targets
    if alike is not None:
        right |= torch.isin(targets, alike) & torch.isin(likeliest, alike)
    return torch.stack([nats(logits, targets), right.float()], dim=-1)


def measure_pass(model: nn.Module, tokens: Tensor, targets: Tensor, measure: Measure = nats, **options: Any) -> Tensor:
    """Apply `measure` to the targets and the logits that predict them: the logits of the last positions.

    A window with more than MAX_LOGITS logits is computed and measured in pieces.

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


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
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
    measure: Measure = nats,
    together: bool = False,
) -> Iterator[Tensor]:
    """Yield the loss of each token in nats, in the order of the split.

    Args:
        model: (B, T) tokens -> (B, T, V) logits; it is in eval mode until the iteration ends.
        split: tokens.
        block_size: T of the grid.
        batch: windows per forward pass.
        device: the model's.
        precision: "fp32", "bf16", "fp16" or "fp64".
        rank, world_size: this process scores every world_size-th batch; the scores of all ranks add up.
        stride: tokens from a window to the next; None: block_size, side by side.
        document_end: the token after each document, if attention stays within a document. The loss of the token
            that follows it is 0.
        measure: computes the values to yield, losses by default, from logits (n, V) and targets (n,).
        together: whether a forward pass needs all ranks (sharded weights): then all ranks run equally many.

    Yields:
        (n,) on the device, for each forward pass; of conversations only the tokens that the assistant wrote.
    """
    was_training = model.training
    model.eval()
    number, tokens = -1, torch.zeros(1, 2, dtype=torch.int64)
    for number, (windows, new, counted) in enumerate(split.scored_windows(block_size, batch, stride)):
        tokens = torch.from_numpy(windows)
        if number % world_size != rank:
            continue
        apart = {}
        if document_end is not None:
            documents = find_documents(tokens[:, :-1], document_end)
            apart = {"documents": Documents(*(upload(part, device) for part in documents))}
        chosen = None if counted is None else upload(torch.from_numpy(np.flatnonzero(counted)), device)
        tokens = upload(tokens, device)
        with autocast(torch.device(device).type, precision):
            measured = measure_pass(model, tokens[:, :-1], tokens[:, -new:], measure, **apart)
        if document_end is not None:
            measured[tokens[:, -new - 1 : -1].flatten() == document_end] = 0.0
        yield measured if chosen is None else measured[chosen]
    if together and rank > number % world_size:
        with autocast(torch.device(device).type, precision):
            model(tokens[:1, :-1].to(device))
    model.train(was_training)


def evaluate(model: nn.Module, split: "Split", *, block_size: int, document_end: int | None, **options: Any) -> Score:
    """Score the whole split, tail included, weighted by tokens.

    Args:
        model: left in the mode it came in.
        split, block_size, document_end, **options: as for `token_losses`.

    Returns:
        The score; its nats are those of this rank's share, summed in fp64.
    """
    nats: Tensor | float = 0.0  # summed on the device and read once
    for losses in token_losses(model, split, block_size=block_size, document_end=document_end, **options):
        nats = nats + (losses.cpu() if losses.device.type == "mps" else losses).double().sum()  # MPS has no fp64
    return Score(float(nats), *split.predicted(block_size, document_end))
