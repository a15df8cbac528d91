"""LoRA: the weights of a model are frozen, and low-rank matrices beside them are trained.

    y = W x + alpha / r B A x

W (rows, columns) is frozen. A (r, columns) begins random and B (rows, r) as zeros, so at first y = W x. gpt.py and
attention/ don't know of LoRA. Merged into W, B A leaves a plain model again.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import AdapterConfig
from minigpt.model.gpt import GPT

MARK = ".adapter."  # in the names of its parameters


@dataclass(frozen=True)
class Place:
    """A matrix of a block: a layer's weight, or some rows of a weight that stacks several matrices."""

    layer: str  # blocks.0.attention.qkv
    part: int  # its number among the stacked ones
    first: int  # its first row in the layer's weight
    rows: int


@dataclass(frozen=True)
class Adapter:
    """The trained matrices of LoRA, apart from the model.

    Attributes:
        rank: r.
        alpha: the product B A is scaled by alpha / r.
        pairs: A (r, columns) and B (rows, r) of each place.
        base: hash of the model's own weights (checkpoint/adapters.py); "" if it isn't known.
        tokenizer: hash of the tokenizer it was trained with; "" if it isn't known.
    """

    rank: int
    alpha: float
    pairs: Mapping[Place, tuple[Tensor, Tensor]]
    base: str = ""
    tokenizer: str = ""


def places(gpt: GPT, targets: str = "all") -> Iterator[Place]:
    """Yield the matrices of the blocks that `adapter.targets` names.

    Queries, keys and values are one matrix in a model with GPT-2's attention, as in GPT-2, and three in any other.
    """
    wanted = {word.strip() for word in targets.split(",")}
    for layer, module in gpt.blocks.named_modules(prefix="blocks"):
        if not isinstance(module, nn.Linear):
            continue
        word, sizes = layer.rpartition(".")[2], [module.out_features]
        if word == "qkv" and gpt.config.attention != "softmax":
            attention: Any = gpt.get_submodule(layer.rpartition(".")[0])
            sizes = [heads * attention.head_dim for heads in (attention.n_head, *[attention.n_kv_head] * 2)]
        for part, rows in enumerate(sizes):
            if wanted & {"all", word, word[part] if len(sizes) > 1 else word}:
                yield Place(layer, part, sum(sizes[:part]), rows)


class LoRA(nn.Module):
    """The term added to a layer's output: alpha / r B A x, in the rows of some of its parts.

    Args:
        layer: nn.Linear, (..., columns) -> (..., all rows).
        of: the layer's places that have an adapter, in their order.
        rank: r.
        alpha: of the factor alpha / r.
    """

    def __init__(self, layer: nn.Linear, of: list[Place], *, rank: int, alpha: float):
        super().__init__()
        self.places, self.rank, self.alpha, self.rows = of, rank, alpha, layer.out_features
        self.A = nn.ParameterList(layer.weight.new_empty(rank, layer.in_features) for _ in of)
        self.B = nn.ParameterList(layer.weight.new_zeros(place.rows, rank) for place in of)
        for A in self.A:
            nn.init.kaiming_uniform_(A, a=5**0.5)  # as peft does: uniform, up to 1 / sqrt(columns)

    def learned(self) -> Iterator[tuple[Place, Tensor, Tensor]]:
        """Yield each place with its A and B."""
        yield from zip(self.places, self.A, self.B, strict=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the term of each input: (..., columns) -> (..., all rows)."""
        pieces: list[Tensor] = []  # of the output (list[Tensor]() would break a compiled graph)
        row = 0  # where the next one begins
        for place, A, B in self.learned():
            piece = F.linear(self.alpha / self.rank * F.linear(x, A), B)
            pieces += [F.pad(piece, (place.first - row, 0)) if place.first > row else piece]
            row = place.first + place.rows
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
        return F.pad(whole, (0, self.rows - row)) if row < self.rows else whole


class NewRows(nn.Module):
    """The rows of a vocabulary table that learn beside an adapter: those of tokens that the base model lacks."""

    def __init__(self, table: nn.Parameter, tokens: range):
        super().__init__()
        self.tokens = tokens
        self.rows = nn.Parameter(table[tokens.start : tokens.stop].detach().clone())

    def forward(self, table: Tensor) -> Tensor:
        """Return the table (padded V, C) with these rows in their places."""
        return torch.cat([table[: self.tokens.start], self.rows, table[self.tokens.stop :]])


def _learn_rows(layer: Any, tokens: range) -> None:
    """Let some rows of an embedding or output layer learn: each use then assembles the weight."""
    layer.adapter = NewRows(layer.weight, tokens)
    weight = property(lambda layer: layer.adapter(layer._parameters["weight"]))
    layer.__class__ = type(type(layer).__name__, (type(layer),), {"weight": weight})


def put_on(gpt: GPT, config: AdapterConfig, new_tokens: range = range(0)) -> None:
    """Freeze a model and put an adapter beside its matrices; an untrained adapter adds zero.

    The embeddings of `new_tokens` also learn.
    """
    gpt.requires_grad_(False)
    for table in (gpt.token_embedding, gpt.output):
        if new_tokens and table is not None:
            _learn_rows(table, new_tokens)
    for name, of in groupby([*places(gpt, config.targets)], key=lambda place: place.layer):
        layer: Any = gpt.get_submodule(name)
        layer.adapter = LoRA(layer, [*of], rank=config.rank, alpha=config.alpha)
        layer.register_forward_hook(lambda layer, inputs, output: output + layer.adapter(inputs[0]))


def base_of(gpt: GPT) -> dict[str, Tensor]:
    """Return a model's weights without its adapter, but with the trained rows of new tokens."""
    weights = {name: tensor for name, tensor in gpt.state_dict().items() if MARK not in name}
    for name, layer in (("token_embedding", gpt.token_embedding), ("output", gpt.output)):
        if layer is not None and hasattr(layer, "adapter"):
            weights[f"{name}.weight"] = layer.weight.detach()
    return weights


def adapter_of(gpt: GPT) -> Adapter | None:
    """Return the adapter that a model has on: its tensors, not copies."""
    layers = [module for module in gpt.modules() if isinstance(module, LoRA)]
    pairs = {place: (A.detach(), B.detach()) for layer in layers for place, A, B in layer.learned()}
    return Adapter(layers[0].rank, layers[0].alpha, pairs) if layers else None


@torch.no_grad()
def merge(gpt: GPT, adapter: Adapter) -> None:
    """Add an adapter to a model's weights, each sum rounded once: W <- W + alpha / r B A."""
    for place, (A, B) in adapter.pairs.items():
        rows = gpt.get_parameter(f"{place.layer}.weight")[place.first : place.first + place.rows]
        change = B.to(rows.device, torch.float64) @ A.to(rows.device, torch.float64)
        rows.copy_(rows.double() + adapter.alpha / adapter.rank * change)


def share(model: GPT, below: GPT) -> None:
    """Let `model` use the memory of `below` for each parameter that is equal in both."""
    shared = dict(below.named_parameters())
    for name, parameter in [*model.named_parameters()]:
        if name in shared and torch.equal(parameter, shared[name]):
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, shared[name])
