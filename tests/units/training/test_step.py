"""What belongs to an optimizer step around its loss: clipping by the norm that is known on the host."""

import json

import lightning as L
import pytest
import torch
from lightning import Trainer as Lightning
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.training.step import LanguageModel
from minigpt.verify import compare_runs
from tests.promises.test_stop_and_guard import poison

CHOICES = Choices("cpu", 1, "fp32", False, "explicit", micro_batch=12, accumulate=2, validation_batch=4, threads=1)


def gradients_after_clipping(module_of, size, limit):
    """Those of torch's own clipping, and ours."""
    gpt = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8), 31)
    generator = torch.Generator().manual_seed(5)
    for parameter in gpt.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=generator)
    config = TrainConfig()
    config.optimizer.grad_clip = limit
    module = module_of(gpt, config, CHOICES)
    module.micro_batches = [(torch.tensor(2.0), None, 0.0), (torch.tensor(4.0), None, 0.0)]
    theirs = [torch.nn.Parameter(torch.zeros_like(parameter)) for parameter in gpt.parameters()]
    for parameter, copy in zip(gpt.parameters(), theirs, strict=True):
        copy.grad = parameter.grad.clone()
    if limit:
        torch.nn.utils.clip_grad_norm_(theirs, limit)
    module.configure_gradient_clipping(torch.optim.SGD(gpt.parameters()))
    result = module.result_of(module.pending[-1])
    return [copy.grad for copy in theirs], [parameter.grad for parameter in gpt.parameters()], result


def test_a_long_gradient_is_shortened_as_torch_does_it(module_of):
    theirs, ours, result = gradients_after_clipping(module_of, 1.0, limit=0.7)
    for expected, got in zip(theirs, ours, strict=True):
        torch.testing.assert_close(got, expected)
    length = torch.cat([gradient.flatten() for gradient in ours]).norm().item()
    assert length == pytest.approx(0.7, rel=1e-5)
    assert result.grad_norm > 10
    assert result.loss == 3.0


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_a_short_gradient_or_one_without_a_limit_keeps_its_bits(module_of, limit):
    theirs, ours, _ = gradients_after_clipping(module_of, 1e-3, limit)
    assert all(torch.equal(expected, got) for expected, got in zip(theirs, ours, strict=True))


class Reads(TorchFunctionMode):
    """Notes each call that hands a tensor's numbers to Python."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    def __torch_function__(self, function, types, arguments=(), options=None):
        if getattr(function, "__name__", "") in ("tolist", "cpu", "numpy"):
            self.events.append("wait")
        return function(*arguments, **options or {})


class Scalars(TorchDispatchMode):
    """Notes each operation inside torch whose result the host must wait for: item(), if tensor:, nonzero()."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        if operation.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal"):
            self.events.append("wait")
        return operation(*arguments, **options or {})


def decide_late(monkeypatch):
    """As on a GPU: the device decides on a step, and the host reads its numbers when the next one is queued."""
    real = LanguageModel.__init__

    def init(self, *arguments, **options):
        real(self, *arguments, **options)
        self.reads_one_step_late = not self.config.guard.spike_zscore

    monkeypatch.setattr(LanguageModel, "__init__", init)


def test_the_host_waits_once_a_step_when_the_next_ones_work_is_queued(run, monkeypatch):
    decide_late(monkeypatch)
    events = []

    class Note(L.Callback):
        def on_before_optimizer_step(self, *_):
            events.append("gradients")

    settings = ["trainer.max_steps=9", "validate.every_steps=0", "logger.every_steps=1", "optimizer=muon"]
    real = Lightning.fit
    monkeypatch.setattr(Lightning, "fit", lambda *a, **k: watched(events, real, *a, **k))
    run(*settings, callbacks=[Note()])
    each = "".join("g" if event == "gradients" else "w" for event in events).split("g")[1:]
    assert each[:8] == ["", *["w"] * 7], each  # the first step's numbers come when the second one's update is queued
    assert [row["step"] for row in run.rows()] == list(range(1, 10))


def watched(events, function, *arguments, **options):
    with Reads(events), Scalars(events):
        return function(*arguments, **options)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_that_the_device_decides_on_has_the_bytes_of_the_hosts(run, monkeypatch, tmp_path, optimizer):
    """With accumulation, dropout, clipped and unclipped gradients, a bad batch, a roll-back, saves and samples."""
    settings = [
        "trainer.max_steps=14", "checkpoint.every_steps=3", "samples.every_steps=5", "samples.max_new_tokens=4",
        "trainer.micro_batch=4", "model.dropout=0.1", "guard.max_skips=1", "optimizer.grad_clip=0.9",
        f"optimizer={optimizer}", "logger.every_steps=1",
    ]  # fmt: skip
    poison(monkeypatch, {3, 7, 8})
    run(*settings)
    assert [event["event"] for event in run.events()].count("rolled_back") == 1
    whole, skips = run.path.rename(tmp_path / "whole"), skipped(run, tmp_path / "whole")
    decide_late(monkeypatch)
    run(*settings)
    assert compare_runs(whole, run.path)[1] == []
    assert skipped(run, run.path) == skips


def skipped(run, path):
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return [(event["event"], event.get("step")) for event in events if event["event"] in ("skipped", "rolled_back")]
