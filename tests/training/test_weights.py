"""Weights of tokens: the loss of an optimizer step is the weighted mean over all its tokens, wherever they lie."""

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from minigpt.training.run_state import RunState
from safetensors.torch import load_file, save_file

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.batch import Batch, MicroBatches
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.model.loss import weighted_loss_sum
from minigpt.ranks.signals import Signals
from minigpt.training.finish import StopRequests
from minigpt.training.lightning_engine import build_trainer, quiet_lightning
from minigpt.training.optimizer import build_optimizer
from minigpt.training.step import LanguageModel

V, T, WINDOWS = 13, 5, 24  # windows in a step
CHOICES = Choices("cpu", 1, "fp64", False, "explicit", micro_batch=4, accumulate=6, validation_batch=4, threads=1)


class WeightedText:
    """A text of which some tokens count more and some not at all: a split as MicroBatches wants it."""

    def __init__(self):
        generator = np.random.default_rng(5)
        self.tokens = generator.integers(0, V, 400)
        self.counts = generator.choice([0.0, 0.25, 1.0, 3.0], 400).astype(np.float32)
        self.counts[:200] *= 7  # so that micro-batches differ much in weight

    def __len__(self):
        return len(self.tokens)

    def windows(self, starts, length):
        return self.tokens[starts[:, None] + np.arange(length)]

    def weights(self, starts, length):
        return self.counts[starts[:, None] + np.arange(length)]


class KeepResult:
    """Stands where StepEnd stands."""

    def __init__(self):
        self.requests = StopRequests(Signals(), None, None)
        self.results = []
        self.stop_reason = None

    def begin(self, module):
        pass

    end = save = begin

    def __call__(self, module, result, *, is_newest):
        self.results.append(result)
        module.state.step += 1


def new_gpt():
    torch.manual_seed(3)
    return GPT(ModelConfig(n_layer=1, n_head=2, n_embd=6, block_size=T), V).double()


def one_step(batches, choices, *, strategy="auto", devices=1):
    """(loss, gradients) of an optimizer step that the Trainer makes."""
    config = TrainConfig(model=ModelConfig(n_layer=1, n_head=2, n_embd=6, block_size=T))
    config.optimizer.grad_clip = 0.0
    config.trainer.strategy, config.trainer.devices = strategy, devices
    quiet_lightning()
    gpt = new_gpt()
    module = LanguageModel(gpt, config, choices, optimizer=build_optimizer(config.optimizer, gpt), state=RunState())
    module.step_end = KeepResult()
    build_trainer(config, choices, total_steps=1, callbacks=[]).fit(module, batches)
    (result,) = module.step_end.results
    return result.loss, {name: parameter.grad for name, parameter in module.gpt.named_parameters()}


def one_large_batch(batch):
    """The same, by hand."""
    gpt = new_gpt()
    weights = torch.ones_like(batch.tokens) if batch.weights is None else batch.weights
    loss = weighted_loss_sum(gpt, batch.tokens, batch.targets, weights.double()) / weights.double().sum()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in gpt.named_parameters()}


def micro_batches(choices, **ranks):
    return MicroBatches(
        WeightedText(), seed=2, block_size=T, micro_batch=choices.micro_batch, accumulate=choices.accumulate, **ranks
    )


def agree(got, wanted):
    assert got[0] == pytest.approx(wanted[0], rel=1e-12)
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("micro_batch", [24, 4, 1])
def test_micro_batches_of_unequal_weight_make_the_step_of_one_large_batch(micro_batch):
    whole = micro_batches(replace(CHOICES, micro_batch=WINDOWS, accumulate=1))[0]
    choices = replace(CHOICES, micro_batch=micro_batch, accumulate=WINDOWS // micro_batch)
    agree(one_step(micro_batches(choices), choices), one_large_batch(whole))


def test_micro_batches_of_unequal_size_make_the_step_of_one_large_batch():
    tokens, targets = (torch.randint(0, V, (6, T), generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    parts = [Batch(tokens[rows], targets[rows]) for rows in (slice(0, 4), slice(4, 5), slice(5, 6))]
    choices = replace(CHOICES, micro_batch=4, accumulate=3)
    stream = torch.utils.data.DataLoader(parts, batch_size=None, collate_fn=lambda batch: batch)
    agree(one_step(stream, choices), one_large_batch(Batch(tokens, targets)))


RANK = """
import runpy, sys
from pathlib import Path
rank = runpy.run_path(sys.argv[1])
rank["be_a_rank"](Path(sys.argv[2]))
"""


def test_ranks_of_unequal_weight_make_the_step_of_one_large_batch(tmp_path, monkeypatch):
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    other = subprocess.Popen([sys.executable, "-c", RANK, __file__, str(tmp_path)], env=os.environ | place)
    for name, text in {**place, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, text)
    be_a_rank(tmp_path)
    assert other.wait(60) == 0
    wanted = one_large_batch(micro_batches(replace(CHOICES, micro_batch=WINDOWS, accumulate=1))[0])
    for rank in range(2):
        tensors = load_file(tmp_path / f"rank-{rank}.safetensors")
        agree((tensors.pop("loss").item(), tensors), wanted)


def be_a_rank(folder: Path) -> None:
    """One of two processes: half of each micro-batch, three of them a step."""
    rank = int(os.environ["RANK"])
    patience, meet = timedelta(seconds=60), f"file://{folder}/meet"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=patience)
    choices = replace(CHOICES, devices=2, micro_batch=4, accumulate=3)
    batches = micro_batches(choices, rank=rank, world_size=2)
    loss, gradients = one_step(batches, choices, strategy="ddp", devices=2)
    save_file({"loss": torch.tensor(loss, dtype=torch.float64), **gradients}, folder / f"rank-{rank}.safetensors")
    torch.distributed.destroy_process_group()
