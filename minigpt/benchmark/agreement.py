"""Whether our training and nanoGPT's model give the same losses: a speed-up that changes the mathematics is none."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minigpt.benchmark.steps import Stopwatch, new_model, settle, shortest_loop
from minigpt.rundir.rows import read_rows
from minigpt.training.run import train

LIMITS = {"fp32": 1e-3, "fp64": 1e-3, "bf16": 2e-2}  # nats; largest difference of two equal curves, by our precision

NAMES = {  # our parameters -> nanoGPT's
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


@dataclass(frozen=True)
class Agreement:
    """Two loss curves compared."""

    difference: float  # largest, in nats
    limit: float
    steps: int

    @property
    def holds(self) -> bool:
        """Whether the two train the same thing. NaN does not."""
        return self.difference <= self.limit

    @property
    def sentence(self) -> str:
        """The comparison's outcome."""
        verdict = "agree" if self.holds else "do NOT agree"
        return (
            f"{self.steps} steps from the same weights and batches {verdict} with nanoGPT's (its model.py "
            f"and AdamW, as shipped): largest difference {self.difference:.2g} nats, limit {self.limit:g}"
        )


def compare(ours: list[float], theirs: list[float], precision: str) -> Agreement:
    """Compare two curves step by step. Curves of different lengths never agree."""
    differences = [abs(one - other) for one, other in zip(ours, theirs, strict=False)]
    finite = len(ours) == len(theirs) > 0 and all(each == each for each in differences)  # NaN is not itself
    return Agreement(max(differences) if finite else float("nan"), LIMITS.get(precision, 2e-2), len(differences))


def nanogpt_name(name: str) -> str:
    """What nanoGPT calls a parameter of ours."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def our_curve(task: dict[str, Any]) -> dict[str, Any]:
    """Losses of each step of train(), and the weights it began with in nanoGPT's names.

    Args:
        task: config (with run.dir and logger.every_steps=1), and weights, a file to write.
    """
    config, prepared, choices = settle(task)
    weights = new_model(config, choices, prepared.tokenizer.vocab_size).state_dict()
    save_file({nanogpt_name(name): each.float().cpu().contiguous() for name, each in weights.items()}, task["weights"])
    assert train(config) == 0
    rows = read_rows(Path(str(config.run.dir)) / "metrics.jsonl")
    return {"losses": [row["train/loss"] for row in rows], "lr": [row["lr"] for row in rows]}


def nanogpt_curve(task: dict[str, Any]) -> dict[str, Any]:
    """Losses of nanoGPT's model and optimizer from those weights, on our batches, with our learning rates.

    Args:
        task: config, checkout, weights, lr (of each step).
    """
    config, prepared, choices = settle(task)
    V = prepared.tokenizer.vocab_size
    model = load_model(Path(task["checkout"]), config.model, V)
    weights = load_file(task["weights"])
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:V]  # ours is padded
    missing, strange = model.load_state_dict(weights, strict=False)
    assert not strange, strange
    assert all(name == "lm_head.weight" or name.endswith(".attn.bias") for name in missing), missing  # tied; a mask
    model.to(choices.device).train()
    own = config.optimizer
    optimizer = model.configure_optimizers(own.weight_decay, own.lr, (own.beta1, own.beta2), choices.device)
    bf16 = choices.device == "cuda" and choices.precision == "bf16"  # on a CPU it is always fp32

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(choices.device, torch.bfloat16, enabled=bf16):
            return model(tokens, targets)[1]

    watch = Stopwatch(0)
    return {"losses": shortest_loop(config, prepared, choices, loss_of, optimizer, stopwatch=watch, rates=task["lr"])}


def load_model(checkout: Path, sizes: Any, vocab_size: int) -> Any:
    """A GPT of the checkout's model.py, with these sizes."""
    sys.path.insert(0, str(checkout))
    module = importlib.import_module("model")
    names = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")
    return module.GPT(module.GPTConfig(vocab_size=vocab_size, **{name: getattr(sizes, name) for name in names}))
