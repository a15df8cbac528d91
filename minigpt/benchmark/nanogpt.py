"""nanoGPT beside minigpt: its train.py runs unchanged and is timed by its output; its model must give our losses."""

import importlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minigpt.benchmark.bench import Bench, Measurement
from minigpt.benchmark.measurement import run
from minigpt.benchmark.sampling import speed, writer_of
from minigpt.benchmark.settings import WARM_UP
from minigpt.benchmark.steps import new_model, set_up, shortest_loop
from minigpt.config.schema import ModelConfig
from minigpt.faults import UserFault
from minigpt.rundir.rows import read_rows
from minigpt.training.run import train

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


# --- nanoGPT's programs ---


def contenders(bench: Bench) -> dict[str, Callable[[], Measurement]]:
    """Return runs of nanoGPT's train.py, plain and compiled; on a GPU compiled only, and for 124m its bench.py, too."""
    folder, checkout = bench.folder / "nanogpt", Path(bench.plan.config.nanogpt or "")
    folder.mkdir()
    (folder / "checkout").symlink_to(checkout)  # a path without "=", which nanoGPT's settings can't hold
    (folder / "configurator.py").symlink_to(checkout / "configurator.py")
    bench.measure("nanogpt.write_data", place=str(folder / "data" / "made"))
    cuda = bench.choices["device"] == "cuda"
    commands = {} if cuda else {"nanoGPT": train_command(bench, compiled=False)}
    commands["nanoGPT compiled"] = train_command(bench, compiled=True)
    if cuda and bench.plan.config.preset == "124m" and (checkout / "bench.py").is_file():
        model = bench.plan.config.model
        sizes = f"--batch_size={bench.choices['micro_batch']} --block_size={model.block_size} --bias={model.bias}"
        commands["nanoGPT bench.py"] = ["bench.py", *sizes.split(), "--real_data=False", "--compile=True"]
    return {name: partial(run_program, bench, command) for name, command in commands.items()}


def write_data(words: Sequence[str], place: str) -> dict[str, Any]:
    """Write our tokens as nanoGPT's train.py reads them: {train,val}.bin and meta.pkl."""
    _, prepared, _ = set_up(words)
    data = Path(place)
    data.mkdir(parents=True)
    for name, split in (("train", prepared.train), ("val", prepared.val)):
        split.tokens(0, len(split)).astype("<u2").tofile(data / f"{name}.bin")
    V = prepared.tokenizer.vocab_size
    if V < 50257:  # without the file nanoGPT takes GPT-2's size
        # {"vocab_size": V} as a pickle (protocol 0: a dictionary, a text, a number, set).
        (data / "meta.pkl").write_bytes(f"(dVvocab_size\nI{V}\ns.".encode())
    return {}


def train_command(bench: Bench, *, compiled: bool) -> list[str]:
    """Return the command for nanoGPT's train.py with our run's settings, and enough lines to time the steps."""
    choices, config = bench.choices, bench.plan.config
    steps = config.steps or 0
    model, optimizer, total = config.model, config.optimizer, WARM_UP + steps
    bf16 = choices["device"] == "cuda" and choices["precision"] == "bf16"
    settings = f"""
        --dataset=made --out_dir=out --always_save_checkpoint=False --eval_interval=1000000 --eval_iters=1
        --device={choices["device"]} --dtype={"bfloat16" if bf16 else "float32"} --compile={compiled}
        --batch_size={choices["micro_batch"]} --gradient_accumulation_steps={choices["accumulate"]}
        --block_size={model.block_size} --n_layer={model.n_layer} --n_head={model.n_head} --n_embd={model.n_embd}
        --dropout={float(model.dropout)} --bias={model.bias} --weight_decay={float(optimizer.weight_decay)}
        --learning_rate={float(optimizer.lr)} --min_lr={float(optimizer.lr * config.schedule.final_lr_fraction)}
        --beta1={float(optimizer.beta1)} --beta2={float(optimizer.beta2)} --grad_clip={float(optimizer.grad_clip)}
        --warmup_iters={config.schedule.warmup_steps} --lr_decay_iters={total} --max_iters={total}
        --log_interval={10 if steps >= 20 else 1}
    """
    return ["train.py", *settings.split()]


def run_program(bench: Bench, command: Sequence[str]) -> Measurement:
    """Run nanoGPT's train.py, or bench.py, to the end.

    Raises:
        UserFault: the program ended with an error, or printed no times.
    """
    program, *settings = command
    typed = [sys.executable, "-u", f"checkout/{program}", *settings]
    began, tokens = time.time(), bench.plan.config.batch_tokens
    lines = run(program, typed, bench.folder / "nanogpt", bench.choices["threads"])
    if program == "bench.py":
        (ms,) = (float(match[1]) for _, text in lines if (match := re.match(r"time per iteration: ([\d.]+)ms", text)))
        return {"ms": ms, "tokens": tokens}
    return timing([(at - began, text) for at, text in lines]) | {"tokens": tokens}


def timing(lines: Sequence[tuple[float, str]]) -> Measurement:
    """Return the milliseconds per step between the first line `iter N: ...` at or after the warm-up and the last one.

    Raises:
        UserFault: there are fewer than two such lines.
    """
    found = [(int(match[1]), at) for at, text in lines if (match := re.match(r"iter (\d+): loss \S+, time", text))]
    timed = [(step, at) for step, at in found if step >= WARM_UP]
    if len(timed) < 2:
        raise UserFault(f"nanoGPT printed {len(timed)} lines `iter N: ...` from step {WARM_UP} on; 2 are needed")
    (first, began), (last, ended) = timed[0], timed[-1]
    return {"ms": 1e3 * (ended - began) / (last - first), "first": found[0][1]}


# --- nanoGPT's model ---


def compare_curves(bench: Bench) -> tuple[bool, str]:
    """Return whether our training and nanoGPT's model have the same losses, and a sentence about it.

    Both begin with the same weights, and train on the same batches at the same learning rates.
    """
    # nanoGPT's own warm-up: if the rate is high too early, any rounding grows to tenths of a nat, not only bf16's.
    slow = ("logger.every_steps=1", "schedule.warmup_steps=100")
    words = bench.words(*slow, steps=bench.plan.config.curve_steps)
    task = {"words": words, "weights": str(bench.folder / "begin.safetensors")}
    ours = bench.measure("nanogpt.our_curve", **task)
    theirs = bench.measure("nanogpt.their_curve", checkout=bench.plan.config.nanogpt, rates=ours["rates"], **task)
    return agreement(ours["losses"], theirs["losses"], bench.choices["precision"])


def agreement(ours: Sequence[float], theirs: Sequence[float], precision: str) -> tuple[bool, str]:
    """Return whether two curves agree within the limit of the precision, and a sentence about it. NaN never agrees."""
    limit = 1e-3 if precision in ("fp32", "fp64") else 2e-2  # nats
    difference = float(np.abs(np.subtract(ours, theirs)).max()) if len(ours) == len(theirs) > 0 else float("nan")
    holds = difference <= limit
    return holds, (
        f"{len(ours)} steps from the same weights and batches {'agree' if holds else 'do NOT agree'} with nanoGPT's "
        f"(its model.py and AdamW, as shipped): largest difference {difference:.2g} nats, limit {limit:g}"
    )


def our_curve(words: Sequence[str], weights: str) -> dict[str, Any]:
    """Return each step's loss and learning rate in train(); write its first weights to a file, with nanoGPT's names."""
    config, prepared, choices = set_up(words)
    state = new_model(config, choices, prepared.tokenizer.vocab_size).state_dict()
    save_file({nanogpt_name(name): each.float().cpu().contiguous() for name, each in state.items()}, weights)
    assert train(config) == 0
    rows = read_rows(Path(str(config.run.dir)) / "metrics.jsonl")
    return {"losses": [row["train/loss"] for row in rows], "rates": [row["lr"] for row in rows]}


def their_curve(words: Sequence[str], weights: str, checkout: str, rates: Sequence[float]) -> dict[str, Any]:
    """Return the losses of nanoGPT's model and optimizer from those weights, on our batches, at our learning rates."""
    config, prepared, choices = set_up(words)
    V = prepared.tokenizer.vocab_size
    model = load_model(checkout, config.model, V)
    state = load_file(weights)
    state["transformer.wte.weight"] = state["transformer.wte.weight"][:V]  # without the rows that pad ours
    missing, strange = model.load_state_dict(state, strict=False)
    assert not strange, strange
    assert all(name == "lm_head.weight" or name.endswith(".attn.bias") for name in missing), missing  # tied; masks
    model.to(choices.device).train()
    own = config.optimizer
    optimizer = model.configure_optimizers(own.weight_decay, own.lr, (own.beta1, own.beta2), choices.device)
    bf16 = choices.device == "cuda" and choices.precision == "bf16"  # on a CPU nanoGPT is always in fp32

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(choices.device, torch.bfloat16, enabled=bf16):
            return model(tokens, targets)[1]

    return shortest_loop(config, prepared, choices, loss_of, optimizer, rates=rates)


def nanogpt_name(name: str) -> str:
    """Return nanoGPT's name of one of our parameters."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def load_model(checkout: str, sizes: ModelConfig, vocab_size: int) -> Any:
    """Return a GPT of the checkout's model.py, with these sizes."""
    sys.path.insert(0, checkout)
    module = importlib.import_module("model")
    names = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")
    return module.GPT(module.GPTConfig(vocab_size=vocab_size, **{name: getattr(sizes, name) for name in names}))


def sample(words: Sequence[str], precision: str, batch: int, new: int, checkout: str) -> Measurement:
    """Time nanoGPT's `generate`, which computes the whole text again for each token."""
    config, prepared, choices = set_up(words)
    model = load_model(checkout, config.model, prepared.tokenizer.vocab_size).to(choices.device).eval()

    def generate(ids: Tensor, new: int) -> Tensor:
        with torch.autocast(choices.device, torch.bfloat16, enabled=precision == "bf16"):
            return model.generate(ids, new, temperature=0.8)

    return speed(writer_of(generate, choices.device), config.model, prepared.val, batch=batch, new=new)
