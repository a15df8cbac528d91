"""What a GPT's sizes are, and how many floating-point operations a token of training takes."""

from dataclasses import dataclass, replace

from minigpt.config.schema import AdapterConfig, ModelConfig
from minigpt.model.gpt import empty_gpt
from minigpt.model.lora import put_on


@dataclass(frozen=True)
class Sizes:
    """The numbers in a model's weights, with the padding of its embedding table."""

    all: int
    block: int
    block_matrices: int  # of them in matrices
    output: int  # the output layer's weight
    learning: int  # all, or an adapter's
    learning_matrices: int  # of the blocks


def sizes_of(config: ModelConfig, vocab_size: int, adapter: AdapterConfig | None = None) -> Sizes:
    """Return a model's sizes, from a model of one layer without storage."""
    shallow = empty_gpt(replace(config, n_layer=1), vocab_size, device="meta")
    numbers = sum(weight.numel() for weight in shallow.parameters())
    block = sum(weight.numel() for weight in shallow.blocks.parameters())
    matrices = sum(weight.numel() for weight in shallow.blocks.parameters() if weight.dim() == 2)
    every = numbers + (config.n_layer - 1) * block
    learning, learning_matrices = every, config.n_layer * matrices
    if adapter is not None and adapter.name != "none":
        put_on(shallow, adapter)
        learning = config.n_layer * sum(weight.numel() for weight in shallow.parameters() if weight.requires_grad)
        learning_matrices, every = learning, every + learning
    return Sizes(every, block, matrices, shallow.output_weight.numel(), learning, learning_matrices)


def attention_width(config: ModelConfig) -> int:
    """Return the width of all heads together."""
    return config.n_head * (config.head_dim or config.n_embd // config.n_head)


def flops_per_token(config: ModelConfig, vocab_size: int) -> float:
    """Return the floating-point operations per token of a training step: matrix products, forward and backward.

    6 for each number in a matrix, and 12 for each number of a query and each token it is compared with; linear
    attention compares within chunks of 64 tokens and keeps a state as wide as a head. What `checkpoint_activations`
    computes twice counts once, as is usual for MFU, and masked scores count like others.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    sizes, width = sizes_of(config, vocab_size), attention_width(config)
    compared = config.block_size
    if config.attention == "linear":
        compared = min(64, compared) + width // config.n_head
    matrices = config.n_layer * sizes.block_matrices + sizes.output
    return 6.0 * matrices + 12.0 * config.n_layer * width * compared
