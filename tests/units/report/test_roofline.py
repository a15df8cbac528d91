"""The bound of the speed is arithmetic on published numbers, and nothing measured passes it."""

from dataclasses import replace

import pytest

from minigpt.config.compose import compose
from minigpt.machine.choices import choose
from minigpt.machine.hardware import Hardware
from minigpt.report.plan import most_tokens_per_second

H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 16, True, 80 * 10**9)


def bound(*words, hardware=H100):
    config = compose("train", ["experiment=gpt2_124m", "data=stdlib", *words])
    return most_tokens_per_second(config, choose(config, hardware, 50257), hardware, 50257)


def test_gpt2_on_one_card_and_on_eight():
    # By hand: 12 layers, width 768, context 1024, 50,304 rows; AdamW reads 16 bytes a weight and writes 12.
    C, V, T, step = 768, 50304, 1024, 524_288
    products = 6 * (12 * 12 * C * C + V * C) + 6 * 12 * C * T
    update = 28 * 124_475_904 / 3.36e12
    assert bound() == pytest.approx(step / (step * products / 989.4e12 + update), rel=1e-4)
    on_eight = step / (step / 8 * products / 989.4e12 + update)
    assert bound("trainer.devices=8", "trainer=ddp") == pytest.approx(on_eight, rel=1e-4)


def test_published_speeds_stay_below_it():
    assert bound() > 475_000  # llm.c and modded-nanogpt, tokens/s of one of eight H100
    a100 = replace(H100, name="NVIDIA A100-SXM4-80GB")
    assert bound(hardware=a100) > 218_000  # llm.c, of one of eight A100


def test_frozen_matrices_get_no_gradient_and_other_devices_no_bound():
    assert bound("adapter=lora", "init.from=.") > 1.3 * bound()
    assert bound(hardware=Hardware("cpu", "H100", 2, True, 10**10)) is None
    assert bound(hardware=replace(H100, name="Some GPU")) is None
