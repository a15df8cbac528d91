"""One token after another, fast, on the CPU: the GPT's step for one new token per row as a single call of decode.cpp.

`native_decoder` decides whether a model can have it. The plain model is its readable twin: same cache, same numbers.
"""

import ctypes
import dataclasses
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.rotary import rotate
from minigpt.config.schema import ModelConfig
from minigpt.model.cache import KVCache
from minigpt.model.empty import empty_gpt
from minigpt.model.gpt import GPT, qk_norm_of
from minigpt.sampling.native.library import NoNativeCode, library

MAX_ROWS = 32  # a larger batch is matrix products, which torch's own kernels do as well
MAX_THREADS = 16  # they wait for each other seven times per layer
STEP = 64  # inputs are padded to so many values (decode.cpp)
# Fields of ModelConfig that decode.cpp follows; any other must have its default, which is GPT-2's.
KNOWN = {"n_layer", "n_head", "n_embd", "block_size", "dropout", "bias", "checkpoint_activations"}
KNOWN |= {"activation", "attention", "qk_norm"}
ATTENTIONS = {"softmax", "rotary"}
ACTIVATIONS = {"gelu_tanh": 0, "gelu": 1, "relu_squared": 2}
QK_NORMS = {None: 0, "layernorm": 1}
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # of the trial, relative; bf16's is the plain model's own error


class Sizes(ctypes.Structure):
    """What decode.cpp calls Sizes."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("layers", "heads", "width", "vocabulary", "block", "weights", "cache")),
        ("activation", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("qk_norm", ctypes.c_int64),
        ("eps", ctypes.c_double),
    ]


class NativeDecoder:
    """A GPT's step for one token per row. It reads the model's weights as they are when it is made.

    Args:
        model: on the CPU, in fp32 or bf16; see `why_not`.
        int8: keep the weights in 8 bits: the model's must have been rounded by `round_to_int8`.

    Raises:
        NoNativeCode: decode.cpp can't be built here.
    """

    def __init__(self, model: GPT, *, int8: bool = False):
        self.step = library().minigpt_step
        self.config, self.vocab_size, self.dtype = model.config, model.vocab_size, model.token_embedding.weight.dtype
        self.weights = torch.int8 if int8 else self.dtype
        self.kept: list[Tensor] = []  # what the pointers point to
        self.named = {name: parameter.detach() for name, parameter in model.named_parameters()}
        layers = []
        for block in (f"blocks.{layer}" for layer in range(self.config.n_layer)):
            layers += [*self.norm(f"{block}.norm_1")]
            layers += [*self.linear(f"{block}.attention.qkv"), *self.linear(f"{block}.attention.out")]
            layers += [*self.norm(f"{block}.norm_2")]
            layers += [*self.linear(f"{block}.mlp.up"), *self.linear(f"{block}.mlp.down")]
        self.layers = (ctypes.c_void_p * len(layers))(*layers)
        whole = [*self.matrix("token_embedding.weight"), self.vector("position_embedding.weight")]
        whole += [self.keep(angles(self.config)) if self.config.attention == "rotary" else None]
        whole += [*self.norm("final_norm"), ctypes.addressof(self.layers)]
        self.model = (ctypes.c_void_p * len(whole))(*whole)
        self.eps = model.final_norm.eps
        self.scratch = torch.empty(0)

    def keep(self, tensor: Tensor) -> int:
        """A tensor's address, for as long as this decoder lives."""
        self.kept.append(tensor.contiguous())
        return self.kept[-1].data_ptr()

    def vector(self, name: str) -> int | None:
        """A parameter's address, in fp32; None if the model has none of this name."""
        return self.keep(self.named[name].float()) if name in self.named else None

    def norm(self, name: str) -> tuple[int | None, int | None]:
        """A norm's weight and bias."""
        return self.vector(f"{name}.weight"), self.vector(f"{name}.bias")

    def linear(self, name: str) -> tuple[int | None, ...]:
        """A layer's weight, scale and bias."""
        return *self.matrix(f"{name}.weight"), self.vector(f"{name}.bias")

    def matrix(self, name: str) -> tuple[int, int | None]:
        """A matrix's address, rows padded to STEP, and its scale's. Not copied if nothing needs to change."""
        weight, scale = self.named[name], None
        if self.weights == torch.int8:
            weight, scale = to_int8(weight)
        return self.keep(F.pad(weight, (0, -weight.shape[1] % STEP))), None if scale is None else self.keep(scale)

    def __call__(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits after one more token per row, which the cache then holds.

        Args:
            tokens: (B, 1) ids.
            cache: of B rows, in the model's dtype, with room for one more column.

        Returns:
            (B, V), fp32.
        """
        B, config = tokens.shape[0], self.config
        assert tokens.shape == (B, 1), tokens.shape
        assert tokens.dtype == torch.int64, tokens.dtype
        assert cache.longest < config.block_size, "the cache is full"
        assert cache.keys.shape[1] == cache.values.shape[1] == B, cache.keys.shape
        assert cache.keys.is_contiguous(), "keys and values are a block of memory"
        tokens = tokens.contiguous()
        room = B * (2 * padded(config.n_embd) + 3 * config.n_embd + padded(4 * config.n_embd))
        if self.scratch.numel() != room:
            self.scratch = torch.zeros(room)
            self.sizes = self.sizes_for(cache)
        lengths = torch.tensor(cache.lengths)
        logits = torch.empty(B, self.vocab_size)
        known = self.step(
            ctypes.addressof(self.sizes),
            ctypes.addressof(self.model),
            tokens.data_ptr(),
            lengths.data_ptr(),
            B,
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            logits.data_ptr(),
            self.scratch.data_ptr(),
        )
        assert known, f"a token outside 0 .. {self.vocab_size - 1}: {tokens.tolist()}"
        cache.advance(1)
        return logits

    def sizes_for(self, cache: KVCache) -> Sizes:
        """The numbers of a call."""
        config = self.config
        return Sizes(
            layers=config.n_layer,
            heads=config.n_head,
            width=config.n_embd,
            vocabulary=self.vocab_size,
            block=cache.block_size,
            weights=DTYPES[self.weights],
            cache=DTYPES[cache.keys.dtype],
            activation=ACTIVATIONS[config.activation],
            threads=min(torch.get_num_threads(), MAX_THREADS),
            qk_norm=QK_NORMS[qk_norm_of(config)],
            eps=self.eps,
        )


def angles(config: ModelConfig) -> Tensor:
    """(block_size, D): how far rotary attention turns at each position, cosines, then sines."""
    half = config.n_embd // config.n_head // 2
    along = torch.cat([torch.ones(half), torch.zeros(half)])
    return rotate(along.expand(config.block_size, -1), torch.arange(config.block_size))


def padded(n: int) -> int:
    """n, rounded up as decode.cpp does."""
    return math.ceil(n / STEP) * STEP


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (N, K) as whole numbers from -127 to 127 and one scale per row: weight = number * scale.

    Returns:
        (N, K) int8 and (N,) fp32. What came out of it once is represented exactly.
    """
    scale = weight.float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


@torch.no_grad()
def round_to_int8(model: GPT) -> None:
    """Round every matrix that a token's step reads whole to 8 bits (see `to_int8`), in place.

    Biases, norms and position embeddings stay as they are.
    """
    linears = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    for weight in (*linears, model.token_embedding.weight):
        numbers, scale = to_int8(weight)
        weight.copy_(numbers * scale[:, None])


def native_decoder(model: GPT, *, int8: bool = False) -> NativeDecoder:
    """A decoder that was seen to agree with its model.

    Args:
        model: any, in eval mode.
        int8: as for `NativeDecoder`.

    Raises:
        NoNativeCode: decode.cpp can't be built here, does not know this kind of model, or does not agree with it.
    """
    if reason := why_not(model):
        raise NoNativeCode(reason)
    decoder = NativeDecoder(model, int8=int8)
    if not (apart := difference(decoder, model)) <= TOLERANCE[decoder.dtype]:
        raise NoNativeCode(f"decode.cpp and the model differ by {apart:.1e} of the logits")
    return decoder


def why_not(model: GPT) -> str:
    """Why decode.cpp can't compute this model; empty if it can. It knows GPT-2's architecture and a few variants."""
    weight, config = model.token_embedding.weight, model.config
    if weight.device.type != "cpu" or weight.dtype not in TOLERANCE:
        return f"decode.cpp is for the CPU, in fp32, bf16 or int8; got {weight.device.type} and {weight.dtype}"
    for field in dataclasses.fields(ModelConfig):
        if field.name not in KNOWN and getattr(config, field.name) != field.default:
            return f"decode.cpp does not know model.{field.name}={getattr(config, field.name)}"
    for name, known in (
        ("activation", ACTIVATIONS),
        ("attention", ATTENTIONS),
        ("qk_norm", {"auto", "none", "layernorm"}),
    ):
        if getattr(config, name) not in known:
            return f"decode.cpp does not know model.{name}={getattr(config, name)}"
    plain = empty_gpt(ModelConfig(**{name: getattr(config, name) for name in KNOWN}), model.vocab_size, device="meta")
    if shapes(model) != shapes(plain):
        return "decode.cpp does not know this model's parameters"
    return ""


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Every parameter's and buffer's shape by name."""
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@torch.inference_mode()
def difference(decoder: NativeDecoder, model: GPT) -> float:
    """How far decoder and model are apart on a few tokens, relative to the spread of the logits."""
    T = min(4, model.config.block_size)
    tokens = torch.arange(T)[None] * 7919 % model.vocab_size
    wanted = model(tokens)[0].float()
    cache = KVCache.for_config(model.config, 1, like=model.token_embedding.weight)
    got = torch.cat([decoder(tokens[:, t : t + 1], cache) for t in range(T)])
    return float((got - wanted).norm() / (wanted - wanted.mean()).norm())
