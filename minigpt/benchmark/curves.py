"""The same weights and batches through our Trainer and through nanoGPT's model: do the losses agree?"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minigpt.benchmark.steps import batches_of, new_model, settle
from minigpt.config.compose import compose
from minigpt.data.batch import MicroBatches
from minigpt.rundir.rows import read_rows
from minigpt.training.run import train

# Our parameters -> nanoGPT's.
NAMES = {
    "token_embedding.": "transformer.wte.",
    "position_embedding.": "transformer.wpe.",
    "blocks.": "transformer.h.",
    ".norm_1.": ".ln_1.",
    ".norm_2.": ".ln_2.",
    ".attention.qkv.": ".attn.c_attn.",
    ".attention.out.": ".attn.c_proj.",
    ".mlp.up.": ".mlp.c_fc.",
    ".mlp.down.": ".mlp.c_proj.",
    "final_norm.": "transformer.ln_f.",
}


def nanogpt_name(name: str) -> str:
    """What nanoGPT calls a parameter of ours."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def ours(task: dict[str, Any]) -> dict[str, Any]:
    """Losses of each step of train(), and the weights it began with in nanoGPT's names.

    Args:
        task: arguments (of scripts/train.py, with logger.every_steps=1), and weights, a file to write.
    """
    config = compose("train", task["arguments"])
    prepared, choices = settle(config)
    save_file(_to_nanogpt(new_model(config, choices, prepared.tokenizer.vocab_size).state_dict()), task["weights"])
    assert train(config) == 0
    rows = read_rows(Path(str(config.run.dir)) / "metrics.jsonl")
    return {"losses": [row["train/loss"] for row in rows], "lr": [row["lr"] for row in rows]}


def _to_nanogpt(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {nanogpt_name(name): weight.float().cpu().contiguous() for name, weight in weights.items()}


def nanogpt(task: dict[str, Any]) -> dict[str, Any]:
    """Losses of nanoGPT's model and optimizer from those weights, on our batches, with our learning rates.

    Args:
        task: arguments (as `ours`), checkout, weights, lr (of each step).
    """
    config = compose("train", task["arguments"])
    prepared, choices = settle(config)
    V = prepared.tokenizer.vocab_size
    model = load_model(Path(task["checkout"]), config.model, V)
    weights = load_file(task["weights"])
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:V]  # ours is padded
    missing, strange = model.load_state_dict(weights, strict=False)
    assert not strange, strange
    assert all(name == "lm_head.weight" or name.endswith(".attn.bias") for name in missing), missing  # tied; a mask
    model.to(choices.device).train()
    settings = config.optimizer
    optimizer = model.configure_optimizers(
        settings.weight_decay, settings.lr, (settings.beta1, settings.beta2), choices.device
    )
    return {"losses": _losses(model, optimizer, batches_of(config, prepared, choices), task["lr"], config, choices)}


def load_model(checkout: Path, sizes: Any, vocab_size: int) -> Any:
    """A GPT of the checkout's model.py, with these sizes."""
    sys.path.insert(0, str(checkout))
    module = importlib.import_module("model")
    config = module.GPTConfig(
        block_size=sizes.block_size,
        vocab_size=vocab_size,
        n_layer=sizes.n_layer,
        n_head=sizes.n_head,
        n_embd=sizes.n_embd,
        dropout=sizes.dropout,
        bias=sizes.bias,
    )
    return module.GPT(config)


def _losses(model: Any, optimizer: Any, batches: MicroBatches, rates: list[float], config: Any, choices: Any) -> list:
    """The shortest loop: what nanoGPT's train.py does, without its printing."""
    bf16 = choices.device == "cuda" and choices.precision == "bf16"  # on a CPU it is always fp32
    losses = []
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        total = 0.0
        for part in range(choices.accumulate):
            batch = batches[step * choices.accumulate + part].to(choices.device)
            with torch.autocast(choices.device, torch.bfloat16, enabled=bf16):
                loss = model(batch.tokens, batch.targets)[1] / choices.accumulate
            loss.backward()
            total += loss.item()
        if config.optimizer.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    return losses
