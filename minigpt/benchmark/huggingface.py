"""Hugging Face's GPT-2 of the same size, as a comparison; transformers is no dependency of minigpt."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minigpt.benchmark.steps import Stopwatch, settle, shortest_loop
from minigpt.config.schema import ModelConfig


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Time GPT2LMHeadModel with fused AdamW, clipping and sdpa attention in the shortest loop.

    Its layers always have biases. The logits are given to the loss that it computes itself.

    Args:
        task: config, warm_up, bf16 (autocast or not).
    """
    config, prepared, choices = settle(task)
    gpt = new_model(config.model, prepared.tokenizer.vocab_size).to(choices.device).train()
    own = config.optimizer
    optimizer = torch.optim.AdamW(
        gpt.parameters(), lr=own.lr, betas=(own.beta1, own.beta2), weight_decay=own.weight_decay, fused=True
    )

    def loss_of(tokens: Tensor, _: Tensor) -> Tensor:
        with torch.autocast(choices.device, torch.bfloat16, enabled=bool(task["bf16"])):
            return gpt(input_ids=tokens, labels=tokens).loss  # it shifts them itself

    stopwatch = Stopwatch(task["warm_up"])
    shortest_loop(config, prepared, choices, loss_of, optimizer, stopwatch=stopwatch)
    return stopwatch.result()


def new_model(sizes: ModelConfig, vocab_size: int) -> Any:
    """A GPT2LMHeadModel of these sizes; no token of it is special."""
    transformers: Any = importlib.import_module("transformers")  # by name: mypy must not need it
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes.dropout)
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
        **dropout,
    )
    return transformers.GPT2LMHeadModel(config)


def generating(model: Any) -> Callable[[Tensor, int], Tensor]:
    """Its generate with the KV cache: (prompts (B, T), new tokens) -> texts (B, T + new)."""
    options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "pad_token_id": 0}
    return lambda ids, new: model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, **options
    )
