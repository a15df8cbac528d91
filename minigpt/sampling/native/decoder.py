"""Fast sampling on the CPU: the GPT's step for one new token per row as a single call of decode.cpp.

`native_decoder` decides whether it can be used for a model. The plain model computes the same numbers with the same
cache.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model.cache import KVCache
from minigpt.model.gpt import GPT, qk_norm_of
from minigpt.sampling.native.library import NoNativeCode, library

MAX_ROWS = 32  # a larger batch is matrix products, which torch's own kernels do as well
MAX_THREADS = 16  # the threads wait for each other seven times per layer
STEP = 64  # inputs are padded to a multiple of so many values (decode.cpp)
ATTENTIONS = ("softmax", "rotary")
ACTIVATIONS = {"gelu_tanh": 0, "gelu": 1, "relu_squared": 2, "swiglu": 3}
NORMS = {None: 0, "layernorm": 1, "rmsnorm": 2}
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # relative, in the trial; bf16: the plain model's own error
# Settings of ModelConfig that decode.cpp supports. The rest follows from the weights' shapes and the table of angles.
WORDS = {"activation": ACTIVATIONS, "attention": ATTENTIONS, "norm": NORMS, "qk_norm": ("auto", "none", *NORMS)}


class NativeDecoder:
    """A GPT's step for one token per row. It reads the model's weights as they are when it is made.

    With int8 it stores them in 8 bits; `round_to_int8` must have rounded those of the model.
    """

    @torch.no_grad()
    def __init__(self, model: GPT, *, int8: bool = False):
        self.step = library().minigpt_step
        self.config, self.vocab_size, self.dtype = model.config, model.vocab_size, model.token_embedding.weight.dtype
        self.weights = torch.int8 if int8 else self.dtype
        self.kept: list[Tensor] = []  # tensors at the addresses
        layers: list[int] = []
        for block in model.blocks:
            parts: Any = dict(block.named_modules())
            for name in ("norm_1", "attention.qkv", "attention.out", "norm_2", "mlp.up", "mlp.down"):
                layers += self.addresses(parts[name])
            layers += self.addresses(parts["mlp.gate"]) if "mlp.gate" in parts else [0, 0, 0]
            weights = dict(block.named_parameters())
            layers += self.vectors(*(weights.get(f"attention.qk_norm.{name}_weight") for name in "qk"))
        position = None if model.position_embedding is None else model.position_embedding.weight
        attention: Any = model.blocks[0].attention
        turns = None
        if attention.rotary:  # (block_size, D): cosines, then sines
            turns = torch.cat(attention.angles(torch.arange(self.config.block_size), torch.float32), dim=-1)[:, 0]
        token = self.matrix(model.token_embedding.weight)
        whole = [*token, *self.vectors(position, turns), *self.addresses(model.final_norm)]
        whole += self.addresses(model.output) if model.output else [*token, 0]
        self.model = torch.tensor([*whole, self.keep(torch.tensor(layers))])
        self.sizes = [len(model.blocks), attention.n_head, attention.n_kv_head, attention.head_dim, self.config.n_embd]
        self.sizes += [model.blocks[0].mlp.down.in_features, self.vocab_size]  # type: ignore[union-attr]

    def keep(self, tensor: Tensor) -> int:
        """Return a tensor's address; the tensor lives as long as this decoder."""
        self.kept.append(tensor.contiguous())
        return self.kept[-1].data_ptr()

    def addresses(self, module: nn.Module) -> list[int]:
        """Return where decode.cpp finds a norm's weight and bias, or a linear layer's weight, scale and bias."""
        first = self.matrix if isinstance(module, nn.Linear) else self.vectors
        return [*first(module.weight), *self.vectors(getattr(module, "bias", None))]  # type: ignore[arg-type]

    def vectors(self, *tensors: Tensor | None) -> list[int]:
        """Return the addresses of tensors in fp32, 0 for None."""
        return [0 if tensor is None else self.keep(tensor.float()) for tensor in tensors]

    def matrix(self, weight: Tensor) -> list[int]:
        """Return the addresses of a matrix, its rows padded to STEP, and of its scales."""
        scale = None
        if self.weights == torch.int8:
            weight, scale = to_int8(weight)
        padding = -weight.shape[1] % STEP
        return [self.keep(F.pad(weight, (0, padding)) if padding else weight), *self.vectors(scale)]

    def __call__(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Append one token per row, (B, 1), to the cache, and return the logits after it, (B, V) in fp32.

        The cache has B rows, the model's dtype, and room for one more column. A row's numbers do not depend on its
        neighbours.
        """
        B = tokens.shape[0]
        assert tokens.shape == (len(cache.lengths), 1), tokens.shape
        assert cache.longest < self.config.block_size, "the cache is full"
        cache.reserve(cache.longest + 1)
        assert cache.keys.is_contiguous(), "keys and values are a block of memory"
        tokens, logits = tokens.contiguous(), torch.empty(B, self.vocab_size)
        tensors = (self.described(cache), self.model, tokens, cache.on_device, cache.keys, cache.values, logits)
        known = self.step(*(tensor.data_ptr() for tensor in tensors), B)
        assert known, f"a token outside 0 .. {self.vocab_size - 1}: {tokens.tolist()}"
        cache.advance(1)
        return logits

    def described(self, cache: KVCache) -> Tensor:
        """Return the struct Sizes of decode.cpp: fifteen int64, and a double stored in the eight bytes of another."""
        config = self.config
        columns = cache.keys.shape[3]
        numbers = [*self.sizes, columns, cache.keys.shape[1], DTYPES[self.weights], DTYPES[cache.keys.dtype]]
        numbers += [ACTIVATIONS[config.activation], NORMS[config.norm], NORMS[qk_norm_of(config)]]
        numbers += [min(torch.get_num_threads(), MAX_THREADS)]
        eps = torch.tensor([config.norm_eps], dtype=torch.float64).view(torch.int64)
        return torch.cat([torch.tensor(numbers), eps])


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix (N, K) to int8 numbers (N, K) from -127 to 127 and a scale per row, (N,) fp32: number * scale.

    A matrix that was rounded before is represented exactly.
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
    """Return a decoder after a trial: its logits must agree with those of the model.

    Raises:
        NoNativeCode: decode.cpp can't be built here, does not support this model, or disagrees with it.
    """
    if reason := why_not(model):
        raise NoNativeCode(reason)
    decoder = NativeDecoder(model, int8=int8)
    if not (apart := difference(decoder, model)) <= TOLERANCE[decoder.dtype]:
        raise NoNativeCode(f"decode.cpp and the model differ by {apart:.1e} of the logits")
    return decoder


def why_not(model: GPT) -> str:
    """Return why decode.cpp can't compute this model; "" if it can. It supports all but linear attention."""
    weight, config = model.token_embedding.weight, model.config
    if weight.device.type != "cpu" or weight.dtype not in TOLERANCE:
        return f"decode.cpp is for the CPU, in fp32, bf16 or int8; got {weight.device.type} and {weight.dtype}"
    for name, known in WORDS.items():
        if (value := getattr(config, name)) not in known:
            return f"decode.cpp does not know model.{name}={value}"
    return ""


@torch.inference_mode()
def difference(decoder: NativeDecoder, model: GPT) -> float:
    """Return how far decoder and model are apart on a few tokens, relative to the spread of the logits."""
    T = min(4, model.config.block_size)
    tokens = torch.arange(T)[None] * 7919 % model.vocab_size
    wanted = model(tokens)[0].float()
    cache = model.new_cache(1)
    got = torch.cat([decoder(tokens[:, t : t + 1], cache) for t in range(T)])
    return float((got - wanted).norm() / (wanted - wanted.mean()).norm())
