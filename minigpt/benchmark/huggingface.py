"""Hugging Face's GPT-2 of the same size, as a comparison; transformers is no dependency of minigpt."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minigpt.benchmark.sampling import speed, writer_of
from minigpt.benchmark.steps import set_up, shortest_loop
from minigpt.config.schema import ModelConfig
from minigpt.training.optimizer import adamw


def train(words: Sequence[str], bf16: bool) -> dict[str, Any]:
    """Time GPT2LMHeadModel with fused AdamW, clipping and sdpa attention in the shortest loop.

    Its layers always have biases, and it computes the loss itself.
    """
    config, prepared, choices = set_up(words)
    gpt = new_model(config.model, prepared.tokenizer.vocab_size).to(choices.device).train()

    def loss_of(tokens: Tensor, _: Tensor) -> Tensor:
        with torch.autocast(choices.device, torch.bfloat16, enabled=bf16):
            return gpt(input_ids=tokens, labels=tokens).loss  # it shifts the labels itself

    return shortest_loop(config, prepared, choices, loss_of, adamw(config.optimizer, gpt, "fp32"))


def sample(words: Sequence[str], precision: str, batch: int, new: int) -> dict[str, Any]:
    """Time the model's `generate` with the KV cache."""
    config, prepared, choices = set_up(words)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    gpt = new_model(config.model, prepared.tokenizer.vocab_size).to(choices.device, dtype).eval()
    options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "pad_token_id": 0}

    def generate(ids: Tensor, new: int) -> Tensor:
        return gpt.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, **options)

    return speed(writer_of(generate, choices.device), config.model, prepared.val, batch=batch, new=new)


def new_model(sizes: ModelConfig, vocab_size: int) -> Any:
    """Return a GPT2LMHeadModel of these sizes, without special tokens."""
    transformers: Any = importlib.import_module("transformers")  # by name: mypy must not need it
    config = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=sizes.block_size,
        n_embd=sizes.n_embd,
        n_layer=sizes.n_layer,
        n_head=sizes.n_head,
        activation_function="gelu" if sizes.activation == "gelu" else "gelu_new",
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes.dropout),
    )
    return transformers.GPT2LMHeadModel(config)
