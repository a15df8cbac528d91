"""Automatic choices: pure functions of config and hardware."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minigpt.config.schema import ModelConfig, TrainConfig, TrainerConfig
from minigpt.model.gpt import GPT
from minigpt.training.hardware import Hardware, choose, flops_per_token, peak_flops

CPU = Hardware("cpu", "x86_64 CPU", cores=2, bf16=True, memory_bytes=8 << 30)
H200 = Hardware("cuda", "NVIDIA H200", cores=16, bf16=True, memory_bytes=140 << 30)


def test_what_is_left_to_us_follows_from_the_hardware():
    config = TrainConfig(batch_tokens=2048, model=ModelConfig(block_size=64))
    on_cpu, on_gpu = choose(config, CPU, 65), choose(config, H200, 65)
    assert (on_cpu.precision, on_cpu.compile, on_cpu.attention_kernel, on_cpu.threads) == ("bf16", False, "explicit", 2)
    assert (on_gpu.precision, on_gpu.compile, on_gpu.attention_kernel) == ("bf16", True, "fused")
    slow = Hardware("cpu", "old CPU", cores=2, bf16=False, memory_bytes=8 << 30)
    assert choose(config, slow, 65).precision == "fp32"


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


def test_flops_per_token_agree_with_torchs_counter():
    model_config = ModelConfig(n_layer=3, n_head=2, n_embd=64, block_size=48)
    config, vocab_size = TrainConfig(model=model_config), 192
    gpt = GPT(model_config, vocab_size, kernel="explicit")
    with FlopCounterMode(display=False) as counter:
        gpt(torch.zeros(2, 48, dtype=torch.int64)).sum().backward()
    assert counter.get_total_flops() / (2 * 48) == pytest.approx(flops_per_token(config, vocab_size), rel=0.01)
