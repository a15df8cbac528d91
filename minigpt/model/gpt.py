"""The GPT: token ids in, logits out. Read from top to bottom.

    tokens -> token embeddings + position embeddings -> n_layer blocks -> final norm -> logits

A block adds to the stream of vectors what attention reads from earlier tokens, then what an MLP computes from each
token alone. Shapes: B batch, T length, C width (n_embd), V vocabulary.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.dropout import Dropout
from minigpt.attention.layers import ATTENTION, KNOW_POSITIONS, Angles, Mask, Store
from minigpt.attention.masks import Documents
from minigpt.attention.norms import RMSNorm
from minigpt.attention.rotary import Llama3Scaling
from minigpt.config.schema import ModelConfig
from minigpt.model.cache import KVCache
from minigpt.model.induction import add_induction_head


def relu_squared(x: Tensor) -> Tensor:
    """Return max(x, 0)^2. Source: So et al. 2021, "Primer"."""
    return F.relu(x).square()


# The choices of a block's parts, by the names that the config gives them.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu_squared": relu_squared,
}
NORMS: dict[str, Callable[..., nn.Module]] = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": lambda width, eps, bias: RMSNorm(width, eps),  # which never has a bias
}


class MLP(nn.Module):
    """Two layers on each token: widen to n_hidden (or 4 C), apply the activation, narrow. (B, T, C) -> (B, T, C)."""

    def __init__(self, n_embd: int, n_hidden: int | None = None, *, activation: str, dropout: float, bias: bool):
        super().__init__()
        n_hidden = n_hidden or 4 * n_embd
        self.up = nn.Linear(n_embd, n_hidden, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.down = nn.Linear(n_hidden, n_embd, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.activation(self.up(x))))


class SwiGLU(nn.Module):
    """An MLP with a gate: the widened vector is multiplied by the SiLU of a second projection.

    Its width is n_hidden; the default, 2/3 of 4 C rounded up to a multiple of 32, has about as many parameters as MLP.

    Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """

    def __init__(self, n_embd: int, n_hidden: int | None = None, *, activation: str, dropout: float, bias: bool):
        super().__init__()
        n_hidden = n_hidden or math.ceil(8 * n_embd / 3 / 32) * 32
        self.gate = nn.Linear(n_embd, n_hidden, bias=bias)
        self.up = nn.Linear(n_embd, n_hidden, bias=bias)
        self.down = nn.Linear(n_hidden, n_embd, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(F.silu(self.gate(x)) * self.up(x)))


# The MLP that goes with each activation: a constructor from n_embd, n_hidden and MLP's keywords.
MLPS: dict[str, Callable[..., nn.Module]] = dict.fromkeys(ACTIVATIONS, MLP) | {"swiglu": SwiGLU}


class Block(nn.Module):
    """Attention, then MLP, each on a normalised copy of the stream and added back to it (pre-norm)."""

    def __init__(self, config: ModelConfig, kernel: str):
        super().__init__()
        C, dropout, bias = config.n_embd, config.dropout, config.bias
        self.norm_1 = norm_of(config)
        self.attention = ATTENTION[config.attention](
            C,
            config.n_head,
            n_kv_head=config.n_kv_head or None,
            head_dim=config.head_dim or None,
            rope_theta=config.rope_theta,
            rope_scaling=rope_scaling_of(config),
            qk_norm=qk_norm_of(config),
            norm_eps=config.norm_eps,
            bias=bias not in (False, "none"),
            out_bias=bias in (True, "all", "attention"),
            dropout=dropout,
            kernel=kernel,
        )
        self.norm_2 = norm_of(config)
        self.mlp = MLPS[config.activation](
            C, config.n_hidden or None, activation=config.activation, dropout=dropout, bias=bias in (True, "all")
        )

    def forward(self, x: Tensor, mask: Mask = None, cache: Store | None = None, angles: Angles | None = None) -> Tensor:
        x = x + self.attention(self.norm_1(x), mask, cache, angles)
        return x + self.mlp(self.norm_2(x))


def norm_of(config: ModelConfig) -> nn.Module:
    """Return a norm of the stream, as the config chooses it."""
    return NORMS[config.norm](config.n_embd, eps=config.norm_eps, bias=config.bias in (True, "all"))


def qk_norm_of(config: ModelConfig) -> str | None:
    """Return the norm of queries and keys; "auto" is a layer norm with rotary positions, and none without."""
    auto = "layernorm" if config.attention == "rotary" else "none"
    chosen = auto if config.qk_norm == "auto" else config.qk_norm
    return None if chosen == "none" else chosen


def rope_scaling_of(config: ModelConfig) -> Llama3Scaling | None:
    """Return the config's scaling of rotary frequencies, if any."""
    if config.rope_scaling == "none":
        return None
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    return Llama3Scaling(config.rope_factor, low, high, config.rope_original_context)


class GPT(nn.Module):
    """A decoder-only transformer that predicts the next token at every position.

    Args:
        config: sizes and choices.
        vocab_size: V, the tokenizer's. Inside, the embedding table is padded to a multiple of 64 rows,
            which matrix products prefer; the logits are cut back to V.
        kernel: how attention is computed, "explicit" or "fused": the same numbers.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, *, kernel: str = "fused"):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        padded_vocab_size = math.ceil(vocab_size / 64) * 64
        self.token_embedding = nn.Embedding(padded_vocab_size, config.n_embd)  # tied: the output layer, too
        learned = config.attention not in KNOW_POSITIONS
        self.position_embedding = nn.Embedding(config.block_size, config.n_embd) if learned else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, kernel) for _ in range(config.n_layer))
        self.final_norm = norm_of(config)
        self.output = None if config.tied else nn.Linear(config.n_embd, padded_vocab_size, bias=False)
        self.init_weights()
        if config.init == "induction" and config.n_layer > 1:
            add_induction_head(self)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the weights as GPT-2 does.

        Matrices and embeddings are normal with deviation 0.02, biases 0. The two projections of a block
        that write into the stream are scaled down by sqrt(2 n_layer), the number of such writes, so that
        the stream's size does not grow with depth.
        """
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.n_layer))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        documents: Documents | None = None,
        readout: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the logits of the next token at every position.

        Args:
            tokens: (B, T) ids.
            cache: keys and values of earlier tokens; these T are appended.
            documents: the documents in the sequences, given instead of a cache: positions restart in each
                document, and no token attends to another document.
            readout: computes the result from hidden (B, T, C) and the output layer's weight (padded V, C), so that not
                all logits need to exist. It runs inside forward, where FSDP has gathered the weights.

        Returns:
            (B, T, V), or what `readout` returns.

        Raises:
            ValueError: if sequence and cache together are longer than block_size.
        """
        hidden = self.hidden(tokens, cache=cache, documents=documents)
        return self.logits(hidden) if readout is None else readout(hidden, self.output_weight)

    def new_cache(self, rows: int) -> KVCache:
        """Return an empty KV cache in the model's dtype and on its device."""
        attention: Any = self.blocks[0].attention
        sizes = (len(self.blocks), rows, attention.n_kv_head, self.config.block_size, attention.head_dim)
        return KVCache(*sizes, like=self.token_embedding.weight)

    @property
    def output_weight(self) -> Tensor:
        """The weight of the output layer, (padded V, C)."""
        return (self.token_embedding if self.output is None else self.output).weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the output layer, which is the token embedding if tied: (..., C) -> (..., V)."""
        return F.linear(hidden, self.output_weight)[..., : self.vocab_size]

    def hidden(self, tokens: Tensor, *, cache: KVCache | None = None, documents: Documents | None = None) -> Tensor:
        """Compute `forward` without the output layer, (B, T, C), for callers that need logits at few positions."""
        T = tokens.shape[1]
        past = 0 if cache is None else cache.longest
        if past + T > self.config.block_size:
            wanted = f"at most block_size={self.config.block_size}"
            remedy = "keep the last ones, or train with a larger model.block_size"
            raise ValueError(f"GPT: got {past + T} tokens; wanted {wanted}: {remedy}")
        positions = None if cache is None else cache.positions(T)  # None: 0 .. T - 1
        attention: Any = self.blocks[0].attention
        hiding: Mask = None
        if cache is not None and cache.uniform_length is None:
            hiding = cache.mask(T)  # rows of different lengths
        if documents is not None:
            positions = documents.positions
            hiding = attention.document_mask(documents, self.token_embedding.weight)
        x = self.token_embedding(tokens)  # (B, T, C)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(T, device=tokens.device) if positions is None else positions)
        turns = None
        if self.position_embedding is None and positions is not None:
            turns = attention.angles(positions, x.dtype)  # (B, T, 1, D/2)
        x = self.dropout(x)
        for layer, block in enumerate(self.blocks):
            if self.config.checkpoint_activations and self.training and cache is None:
                x = torch.utils.checkpoint.checkpoint(block, x, hiding, None, turns, use_reentrant=False)
            else:
                x = block(x, hiding, None if cache is None else partial(cache.append, layer), turns)
        if cache is not None:
            cache.advance(T)
        return self.final_norm(x)


def empty_gpt(config: ModelConfig, vocab_size: int, *, kernel: str = "fused", device: str = "cpu") -> GPT:
    """Return a GPT with uninitialised weights: drawing them takes seconds for a large model.

    `device="meta"` gives names and shapes only, at no cost in memory; other arguments as for `GPT`.
    """
    with torch.device(device), _Unfilled():
        gpt = GPT(replace(config, init="normal"), vocab_size, kernel=kernel)
    gpt.config = config
    return gpt


class _Unfilled(torch.overrides.TorchFunctionMode):
    """Skips the functions of torch.nn.init: on the meta device they would import torch's compiler, which takes 1 s."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if getattr(function, "__module__", "") == "torch.nn.init" else function(*args, **kwargs)
