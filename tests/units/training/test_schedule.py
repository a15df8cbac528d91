"""The learning rate over a run, against values worked out by hand and against nanoGPT's formula."""

import math

import pytest

from minigpt.config.schema import ScheduleConfig
from minigpt.training.optimizer import lr_factor


def factor(step, total=2000, **options):
    return lr_factor(step, step / total, total, ScheduleConfig(**options))


def nanogpt(step, warmup=100, total=2000, peak=1e-3, low=1e-4):
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (total - warmup)
    return low + 0.5 * (1 + math.cos(math.pi * ratio)) * (peak - low)


@pytest.mark.parametrize("step", [0, 1, 99, 100, 101, 777, 1999])
def test_cosine_is_nanogpts(step):
    assert 1e-3 * factor(step) == pytest.approx(nanogpt(step), rel=1e-12)


def test_linear_wsd_and_constant_by_hand():
    plain = {"warmup_steps": 0, "final_lr_fraction": 0.2}
    assert factor(1000, name="linear", **plain) == pytest.approx(0.6)
    assert factor(1000, name="constant", **plain) == 1.0
    assert factor(1399, name="wsd", decay_fraction=0.3, **plain) == pytest.approx(1.0)
    assert factor(1700, name="wsd", decay_fraction=0.3, **plain) == pytest.approx(0.6)
    assert factor(2000, name="wsd", decay_fraction=0.3, **plain) == pytest.approx(0.2)


def test_a_run_limited_by_minutes_follows_the_clock():
    config = ScheduleConfig(name="linear", warmup_steps=3, final_lr_fraction=0.0)
    assert lr_factor(50, 0.25, None, config) == pytest.approx(0.75)
    assert lr_factor(1, 0.25, None, config) == pytest.approx(2 / 4)
    assert lr_factor(50, 1.7, None, config) == 0.0
    config.warmup_steps = 100  # longer than the time allows
    assert lr_factor(60, 0.9, 10_000, config) == pytest.approx(0.1, rel=0.1)
