"""A micro-batch that does not fit is cut smaller; each step keeps its tokens and its loss."""

import json
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from minigpt.config.schema import ModelConfig, OptimizerConfig, TrainConfig, TrainerConfig
from minigpt.faults import UserFault
from minigpt.machine import memory
from minigpt.machine.choices import Choices
from minigpt.machine.memory import try_loss, update_bytes
from minigpt.model.gpt import GPT

CHOICES = Choices("cpu", 1, "fp32", False, "explicit", micro_batch=12, accumulate=2, validation_batch=4, threads=1)


def wrapped(error):
    """As a compiler raises it."""
    outer = RuntimeError("backend='inductor' raised")
    outer.__cause__ = error
    return outer


@pytest.fixture
def gpt():
    return GPT(ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8), 31)


def room_for(limit, monkeypatch, error):
    real = memory.next_token_loss
    tried = []

    def loss(gpt, tokens, targets):
        tried.append(len(tokens))
        if len(tokens) > limit:
            raise error
        return real(gpt, tokens, targets)

    monkeypatch.setattr(memory, "next_token_loss", loss)
    return tried


def batch(size):
    tokens = torch.arange(size * 8).view(size, 8) % 31
    return tokens, (tokens + 1) % 31


def test_the_trial_leaves_room_for_the_averages_of_the_first_update(gpt, monkeypatch):
    """The optimizer takes two numbers a parameter only then, long after the trial."""
    real, held = torch.empty_like, []

    def empty_like(tensor):
        made = real(tensor)
        held.append(weakref.ref(made))
        return made

    monkeypatch.setattr(memory.torch, "empty_like", empty_like)
    alive = []
    loss = memory.next_token_loss
    monkeypatch.setattr(
        memory, "next_token_loss", lambda *a: alive.append(sum(each() is not None for each in held)) or loss(*a)
    )
    try_loss(gpt, CHOICES, batch)
    assert alive == [2 * len(list(gpt.parameters()))]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"),
        wrapped(torch.OutOfMemoryError("CUDA out of memory")),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_next_smaller_divisor_that_fits_is_taken_and_said(gpt, monkeypatch, capsys, error, compiled):
    tried = room_for(5, monkeypatch, error)
    monkeypatch.setattr(memory, "compiled_loss", lambda *_: memory.next_token_loss)
    choices, _ = try_loss(gpt, replace(CHOICES, compile=compiled), batch)
    assert choices.compile == compiled
    said = [line for line in capsys.readouterr().out.splitlines() if "Compiling" not in line]
    assert (choices.micro_batch, choices.accumulate) == (4, 6)
    assert tried == [12, 8, 6, 4]
    assert len(said) == 3
    assert "micro-batch of 12 does not fit" in said[0]
    assert all(parameter.grad is None for parameter in gpt.parameters())


def test_what_fits_is_kept(gpt, capsys):
    assert try_loss(gpt, CHOICES, batch)[0] == CHOICES
    assert capsys.readouterr().out == ""


def test_nothing_fits_is_a_fault_with_remedies(gpt, monkeypatch):
    room_for(0, monkeypatch, MemoryError())
    with pytest.raises(UserFault, match="checkpoint_activations=true"):
        try_loss(gpt, CHOICES, batch)


def test_other_errors_are_not_taken_for_missing_memory(gpt, monkeypatch):
    room_for(0, monkeypatch, RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        try_loss(gpt, CHOICES, batch)


def test_a_run_that_does_not_fit_goes_on_with_less_and_keeps_the_choice(run, monkeypatch, capsys):
    run("batch_tokens=96", "schedule=constant")
    plain = run.rows()
    run.path = run.folder / "small"
    with monkeypatch.context() as patch:
        patch.setattr(memory, "SURE_SHARE", 0)
        room_for(5, patch, MemoryError())
        run("batch_tokens=96", "schedule=constant", "trainer.max_steps=3")
    assert "does not fit" in capsys.readouterr().out
    assert json.loads((run.path / "choices.json").read_text())["micro_batch"] == 4
    run("batch_tokens=96", "schedule=constant")  # continued where memory would suffice: the choice stays
    assert json.loads((run.path / "choices.json").read_text())["micro_batch"] == 4
    assert [row["train/loss"] for row in run.rows()][-1] == pytest.approx(plain[-1]["train/loss"], abs=1e-5)


def test_a_run_that_needs_a_small_part_of_the_memory_begins_without_a_trial(run, monkeypatch):
    sizes = []
    monkeypatch.setattr(memory, "fits", lambda gpt, choices, *_: not sizes.append(choices.micro_batch))
    run("trainer.max_steps=1")
    assert sizes == []
    monkeypatch.setattr(memory, "SURE_SHARE", 0)
    run("trainer.max_steps=2")
    assert sizes == [8]


def test_the_trial_makes_room_for_the_optimizer_and_its_update(gpt, monkeypatch):
    """The averages are there while the backward pass runs, and the update's own memory after it."""
    asked, empty_like, empty = [], torch.empty_like, torch.empty

    def note(kind, make):
        return lambda *arguments, **options: asked.append(kind) or make(*arguments, **options)

    monkeypatch.setattr(torch, "empty_like", note("average", empty_like))
    monkeypatch.setattr(torch, "empty", note("update", empty))
    gpt.register_forward_hook(lambda *_: asked.append("forward"))
    memory.fits(gpt, CHOICES, batch, memory.next_token_loss, update_bytes=1000)
    averages = 2 * len(list(gpt.parameters()))
    assert asked == ["average"] * averages + ["forward", "update"]


def test_muon_takes_memory_for_its_update(gpt):
    config = TrainConfig(model=gpt.config)
    assert update_bytes(config, gpt, "bf16") == 0
    matrices = sum(parameter.numel() for parameter in gpt.blocks.parameters() if parameter.dim() == 2)
    config = replace(config, optimizer=OptimizerConfig(name="muon"))
    assert [update_bytes(config, gpt, precision) for precision in ("bf16", "fp32")] == [20 * matrices, 27 * matrices]
    config = replace(config, trainer=TrainerConfig(strategy="fsdp", devices=4))  # each device makes its share
    assert update_bytes(config, gpt, "bf16") == 5 * matrices


def test_a_compiler_that_fails_leaves_choices_without_it(gpt, monkeypatch, capsys):
    def broken(gpt, tokens, targets):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(memory, "compiled_loss", lambda *_: broken)
    choices, loss = try_loss(gpt, replace(CHOICES, compile=True), batch)
    assert not choices.compile
    assert loss is memory.next_token_loss
    assert "torch.compile does not work here (RuntimeError: no compiler here)" in capsys.readouterr().out


def test_a_failed_compile_is_kept_as_none(run, monkeypatch):
    """Finding 26: choices.json said that the run was compiled."""

    def broken(gpt, tokens, targets):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(memory, "compiled_loss", lambda *_: broken)
    run("trainer.compile=on", "trainer.max_steps=1")
    assert json.loads((run.path / "choices.json").read_text())["compile"] is False


@pytest.mark.parametrize("works", [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_compiler_that_fails_on_one_rank_is_used_on_none(gpt, monkeypatch, capsys, works, rank):
    """Else choices.json, which rank 0 writes, would say what only rank 0 does."""
    told = [f"{micro_batch} {compiles}" for micro_batch, compiles in zip((12, 8), works, strict=True)]

    def gather(text):
        assert text == told[rank]
        return told

    mine = replace(CHOICES, compile=works[rank], micro_batch=(12, 8)[rank], accumulate=(2, 3)[rank])
    compiled = object()
    loss = compiled if works[rank] else memory.next_token_loss
    monkeypatch.setattr(memory, "try_loss", lambda *_, **__: (mine, loss))
    choices, used = memory.fit_to_memory(
        gpt,
        TrainConfig(),
        replace(CHOICES, compile=True),
        hardware=SimpleNamespace(memory_bytes=8 << 30),
        prepared=SimpleNamespace(train=None),
        processes=SimpleNamespace(gather=gather),
    )
    assert choices == replace(CHOICES, compile=all(works), micro_batch=8, accumulate=3)
    assert used is (compiled if all(works) else memory.next_token_loss)
    assert ("does not work on every rank" in capsys.readouterr().out) == (works[rank] and not all(works))


def test_a_run_with_the_loss_in_chunks_learns_what_one_without_learns(run):
    """Through the whole training: tokens, micro-batches, rows."""
    run("trainer.precision=fp64", "trainer.micro_batch=4")
    plain = run.rows()
    run.path = run.folder / "chunks"
    run("trainer.precision=fp64", "trainer.micro_batch=4", "trainer.loss_chunk=10")
    assert json.loads((run.path / "choices.json").read_text())["loss_chunk"] == 10
    for one, other in zip(run.rows(), plain, strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], abs=1e-12)
        assert one["train/grad_norm"] == pytest.approx(other["train/grad_norm"], abs=1e-12)
