"""Hugging Face's GPT-2 of the same size in a plain loop, as a comparison; transformers is no dependency of minigpt."""

from typing import Any

import torch

from minigpt.benchmark.steps import Watch, batches_of, settle
from minigpt.config.compose import compose
from minigpt.config.schema import ModelConfig


def train(task: dict[str, Any]) -> dict[str, Any]:
    """A loop around GPT2LMHeadModel: fused AdamW, clipping, sdpa attention.

    Its layers always have biases. The logits are given to the loss it computes itself.

    Args:
        task: arguments (of scripts/train.py), warm_up, bf16 (autocast or not).
    """
    config = compose("train", task["arguments"])
    prepared, choices = settle(config)
    gpt = new_model(config.model, prepared.tokenizer.vocab_size).to(choices.device).train()
    rates = config.optimizer
    optimizer = torch.optim.AdamW(
        gpt.parameters(), lr=rates.lr, betas=(rates.beta1, rates.beta2), weight_decay=rates.weight_decay, fused=True
    )
    batches, watch = batches_of(config, prepared, choices), Watch()
    total = config.trainer.max_steps or 0
    for step in range(total):
        for part in range(choices.accumulate):
            tokens = batches[step * choices.accumulate + part].tokens.to(choices.device)
            with torch.autocast(choices.device, torch.bfloat16, enabled=bool(task["bf16"])):
                loss = gpt(input_ids=tokens, labels=tokens).loss / choices.accumulate  # it shifts them itself
            loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), rates.grad_clip)
        if choices.device == "cuda" and step in (task["warm_up"], total - 1):
            torch.cuda.synchronize()
        watch.tick()
        optimizer.step()
        optimizer.zero_grad()
    return watch.result(task["warm_up"])


def new_model(sizes: ModelConfig, vocab_size: int) -> Any:
    """A GPT2LMHeadModel of these sizes; no token of it is special."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=sizes.block_size,
        n_embd=sizes.n_embd,
        n_layer=sizes.n_layer,
        n_head=sizes.n_head,
        activation_function="gelu" if sizes.activation == "gelu" else "gelu_new",
        resid_pdrop=sizes.dropout,
        embd_pdrop=sizes.dropout,
        attn_pdrop=sizes.dropout,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)
