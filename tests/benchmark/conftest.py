"""Something that looks like a checkout of nanoGPT, written from its description, and a tiny benchmark."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from minigpt.benchmark import bench as bench_module
from minigpt.benchmark import tokens
from minigpt.benchmark.bench import Bench
from minigpt.benchmark.measurement import do
from minigpt.benchmark.settings import read_plans
from minigpt.benchmark.tokens import write_text
from minigpt.faults import UserFault

TINY = [
    "preset=c0",
    "model.n_layer=1",
    "model.n_head=2",
    "model.n_embd=16",
    "model.block_size=8",
    "batch_tokens=32",
    "trainer.micro_batch=4",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
]

# The parts of a GPT under nanoGPT's names.
MODEL = """
import math
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

@dataclass
class GPTConfig:
    block_size: int; vocab_size: int; n_layer: int; n_head: int; n_embd: int; dropout: float; bias: bool

class Norm(nn.Module):
    def __init__(self, C, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))
        self.bias = nn.Parameter(torch.zeros(C)) if bias else None
    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.H = c.n_head
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.H, C // self.H).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)
    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = Norm(c.n_embd, c.bias), Norm(c.n_embd, c.bias)
        self.attn, self.mlp = Attention(c), MLP(c)
    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))

class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(c.vocab_size, c.n_embd), wpe=nn.Embedding(c.block_size, c.n_embd),
            h=nn.ModuleList([Block(c) for _ in range(c.n_layer)]), ln_f=Norm(c.n_embd, c.bias)))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
    def forward(self, ids, targets):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        parts = [p for p in self.parameters()]
        groups = [dict(params=[p for p in parts if p.dim() >= 2], weight_decay=weight_decay),
                  dict(params=[p for p in parts if p.dim() < 2], weight_decay=0.0)]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)
"""

# Prints the lines of a training run, after looking at its settings and its data as nanoGPT does.
TRAIN = """
import os, pickle, sys
assert os.path.exists('configurator.py')
settings = dict(word[2:].split('=') for word in sys.argv[1:])
assert pickle.load(open(os.path.join('data', settings['dataset'], 'meta.pkl'), 'rb')) == {'vocab_size': 65}
assert os.path.getsize(os.path.join('data', settings['dataset'], 'train.bin')) > 1000
if settings['compile'] == 'True':
    sys.exit('no compiler here')
print('step 0: train loss 4.2874, val loss 4.2823')
for n in range(0, int(settings['max_iters']) + 1, int(settings['log_interval'])):
    print(f'iter {n}: loss 4.2, time 3.00ms, mfu -100.00%')
"""


@pytest.fixture(autouse=True)
def small_and_alone(monkeypatch):
    """Texts so short that a validation of the whole split takes no time; signals are handled as before afterwards."""
    monkeypatch.setattr(tokens, "COUNTS", {65: 60_000, 50257: 2_000})
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The folder."""
    folder = tmp_path / "a=checkout"
    folder.mkdir()
    for name, text in (("model.py", MODEL), ("train.py", TRAIN), ("configurator.py", "")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def plans_of():
    """Arguments -> plans whose measurements take no time."""
    common = ["rounds=1", "steps=2", "curve_steps=14", "new_tokens=4"]
    return lambda *arguments: read_plans([*TINY, *common, *arguments])


@pytest.fixture
def bench_of(tmp_path, plans_of):
    """Arguments -> a tiny benchmark whose text is made, and what is known of its choices."""

    def make(*arguments, **choices):
        (plan,) = plans_of(*arguments)
        write_text(tmp_path / "text.txt", plan.vocab_size)
        known = {"device": "cpu", "threads": 1, "precision": "fp32", "compile": False, "micro_batch": 4}
        return Bench(plan, tmp_path, {**known, "accumulate": 1, **choices})

    return make


@pytest.fixture
def words(bench_of):
    """Changed settings -> the command line of a training of the tiny benchmark."""
    return bench_of().words


@pytest.fixture
def rows():
    """The rows of the metrics.jsonl of the run that a command line makes."""
    place = lambda words: next(Path(word.removeprefix("run.dir=")) for word in words if word.startswith("run.dir="))  # noqa: E731
    return lambda words: [json.loads(line) for line in (place(words) / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def at_once(monkeypatch):
    """Every measurement is made in this process, with nothing but JSON going in and out."""

    def measure(folder, job, *, threads=0, **task):
        began = time.time()
        try:
            result = json.loads(json.dumps(do(job, json.loads(json.dumps(task)))))
        except Exception as fault:
            raise UserFault(f"{job}: {type(fault).__name__}: {fault}") from fault
        return result | ({"first": result["first_at"] - began} if "first_at" in result else {})

    monkeypatch.setattr(bench_module, "measure", measure)
    monkeypatch.setattr(sys, "path", list(sys.path))  # of nanoGPT's model.py
    monkeypatch.delitem(sys.modules, "model", raising=False)
    yield measure
    sys.modules.pop("model", None)
