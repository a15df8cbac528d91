"""The first pass: a micro-batch that does not fit is halved, and a compiler that fails is not needed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.model.loss import next_token_loss
from minigpt.ranks.group import Processes
from minigpt.training import first_pass as module
from minigpt.training.first_pass import explained_out_of_memory, first_pass

CHOICES = Choices("cpu", 1, "fp32", True, "explicit", micro_batch=12, accumulate=1, validation_batch=4, threads=1)
MODEL = ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=4)


class Text:
    """Zeros, as a split."""

    def window_starts(self, number, *, sequences, **_):
        return np.zeros(sequences, dtype=np.int64)

    def windows(self, starts, length):
        return np.zeros((len(starts), length), dtype=np.int64)

    def weights(self, starts, length):
        return None


def pass_with(monkeypatch, loss, processes=None):
    monkeypatch.setattr(torch, "compile", lambda plain, **options: loss)
    prepared = SimpleNamespace(train=Text(), tokenizer=None)
    gpt = GPT(MODEL, 31)
    config = TrainConfig(model=MODEL)
    job = SimpleNamespace(config=config, prepared=prepared, processes=processes or Processes())
    fitting, used = first_pass(gpt, job, CHOICES)
    assert all(parameter.grad is None for parameter in gpt.parameters())
    return fitting, used


def limited(limit, tried):
    def loss(gpt, tokens, targets):
        tried.append(len(tokens))
        if len(tokens) > limit:
            raise RuntimeError("CUDA out of memory")
        return next_token_loss(gpt, tokens, targets)

    return loss


def test_the_micro_batch_is_halved_until_it_fits_and_the_step_keeps_its_tokens(monkeypatch, capsys):
    tried = []
    fitting, _ = pass_with(monkeypatch, limited(4, tried))
    assert tried == [12, 6, 3]
    assert (fitting.micro_batch, fitting.accumulate, fitting.compile) == (3, 4, True)
    assert "out of memory: continuing with micro-batches of 3" in capsys.readouterr().out
    with pytest.raises(UserFault, match="not even one sequence fits"):
        pass_with(monkeypatch, limited(0, []))


def test_all_ranks_take_the_smallest_micro_batch(monkeypatch):
    processes = SimpleNamespace(gather=lambda text: [text, "2"])
    fitting, _ = pass_with(monkeypatch, limited(12, []), processes)
    assert (fitting.micro_batch, fitting.accumulate) == (2, 6)


def test_a_compiler_that_fails_is_done_without(monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no C++ compiler found")

    fitting, used = pass_with(monkeypatch, broken)
    assert (fitting.compile, used) == (False, next_token_loss)
    assert "torch.compile does not work here (RuntimeError: no C++ compiler found)" in capsys.readouterr().out


def test_an_error_of_the_group_is_not_taken_for_one_of_the_compiler(monkeypatch):
    def lost(gpt):
        raise RuntimeError("NCCL error: remote process exited")

    monkeypatch.setattr(module.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lost)
    with pytest.raises(RuntimeError, match="NCCL error"):
        pass_with(monkeypatch, limited(12, []))


def test_memory_that_runs_out_later_is_named_with_what_to_type():
    named = pytest.raises(UserFault, match=r"Add trainer\.micro_batch=6; the steps stay the same")
    with named, explained_out_of_memory(CHOICES):
        raise torch.OutOfMemoryError("CUDA out of memory")
    of_480 = replace(CHOICES, micro_batch=15, accumulate=32)  # 7 does not divide 480
    with pytest.raises(UserFault, match=r"Add trainer\.micro_batch=6;"), explained_out_of_memory(of_480):
        raise MemoryError
    with pytest.raises(UserFault, match="Use a smaller"), explained_out_of_memory(replace(CHOICES, micro_batch=1)):
        raise MemoryError
    with pytest.raises(ZeroDivisionError), explained_out_of_memory(CHOICES):
        raise ZeroDivisionError
