"""Automatic choices: pure functions of config and hardware."""

from dataclasses import replace

import pytest
import torch

from minigpt.config.schema import ModelConfig, TrainConfig, TrainerConfig
from minigpt.machine import hardware
from minigpt.machine.choices import choose
from minigpt.machine.hardware import Hardware, peak_flops

CPU = Hardware("cpu", "x86_64 CPU", cores=2, bf16=True, memory_bytes=8 << 30)
H200 = Hardware("cuda", "NVIDIA H200", cores=16, bf16=True, memory_bytes=140 << 30)


def test_what_is_left_to_us_follows_from_the_hardware():
    config = TrainConfig(batch_tokens=2048, model=ModelConfig(block_size=64))
    on_cpu, on_gpu = choose(config, CPU, 65), choose(config, H200, 65)
    assert (on_cpu.precision, on_cpu.compile, on_cpu.attention_kernel, on_cpu.threads) == ("bf16", False, "explicit", 2)
    assert (on_gpu.precision, on_gpu.compile, on_gpu.attention_kernel) == ("bf16", True, "fused")
    slow = Hardware("cpu", "old CPU", cores=2, bf16=False, memory_bytes=8 << 30)
    assert choose(config, slow, 65).precision == "fp32"


def test_a_cpu_compiles_only_where_the_run_is_long_enough():
    config = TrainConfig(batch_tokens=8192, model=ModelConfig(n_layer=6, n_embd=384, block_size=256))
    for trainer, wanted in (
        (TrainerConfig(max_steps=1800), True),
        (TrainerConfig(max_steps=1800, compile="off"), False),
        (TrainerConfig(max_steps=500), False),
        (TrainerConfig(max_steps=500, max_tokens=10**8), True),
        (TrainerConfig(max_steps=None, max_tokens=10**6), False),
        (TrainerConfig(max_steps=None, max_minutes=60.0), False),
    ):
        assert choose(replace(config, trainer=trainer), CPU, 65).compile == wanted
    dropped = replace(config, model=replace(config.model, dropout=0.2), trainer=TrainerConfig(max_steps=1800))
    assert not choose(dropped, CPU, 65).compile
    apple = Hardware("mps", "Apple arm64", cores=8, bf16=False, memory_bytes=8 << 30)
    assert not choose(replace(config, trainer=TrainerConfig(max_steps=10**6)), apple, 65).compile


def test_fp32_products_go_where_they_are_fast_only_if_they_stay_exact(monkeypatch):
    config = TrainConfig(batch_tokens=2048, model=ModelConfig(block_size=64))
    assert choose(config, replace(CPU, onednn_fp32=True), 65).float32_products == "medium"
    assert choose(config, CPU, 65).float32_products == "highest"
    for vendor, exact, wanted in (("AuthenticAMD", True, True), ("AuthenticAMD", False, False), ("Intel", True, False)):
        monkeypatch.setattr(hardware, "_cpu_fact", lambda key, vendor=vendor: vendor)
        monkeypatch.setattr(hardware, "medium_is_exact", lambda exact=exact: exact)
        assert hardware.probe("cpu").onednn_fp32 == wanted


def test_the_trial_of_products_tells_rounding_from_none_and_leaves_no_trace():
    before = torch.get_float32_matmul_precision()
    assert hardware.medium_is_exact() == (relative_error("medium") < 1e-6)
    assert relative_error("highest") < 1e-6
    assert torch.get_float32_matmul_precision() == before


def relative_error(precision: str) -> float:
    a, b = torch.randn(300, 200, generator=torch.Generator().manual_seed(3)), torch.ones(200, 100) / 3
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        return float((a @ b - a.double() @ b.double()).norm() / (a.double() @ b.double()).norm())
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_the_config_says_is_kept():
    trainer = TrainerConfig(precision="fp32", compile="off", attention_kernel="explicit", threads=1, micro_batch=4)
    choices = choose(TrainConfig(batch_tokens=2048, model=ModelConfig(block_size=64), trainer=trainer), H200, 65)
    assert (choices.precision, choices.compile, choices.attention_kernel) == ("fp32", False, "explicit")
    assert (choices.threads, choices.micro_batch, choices.accumulate) == (1, 4, 8)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_layout_always_makes_up_the_step(devices):
    config = TrainConfig(batch_tokens=96 * 64, model=ModelConfig(block_size=64), trainer=TrainerConfig(devices=devices))
    for memory in (1 << 20, 1 << 24, 1 << 34):
        choices = choose(config, Hardware("cpu", "", 2, False, memory), 65)
        assert devices * choices.accumulate * choices.micro_batch == 96


def test_peaks_of_real_chips_and_none_for_unknown_ones():
    assert peak_flops(H200, "bf16") == 989.4e12
    assert peak_flops(Hardware("cuda", "NVIDIA GeForce RTX 4090", 8, True, 1), "bf16") == 165.2e12
    assert peak_flops(Hardware("cuda", "Some New Chip", 8, True, 1), "bf16") is None
    assert peak_flops(CPU, "bf16") is None
