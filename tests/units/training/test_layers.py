"""The gradient norm and the size of the update of each layer, in the rows that are validated."""

import math

import pytest
import torch

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.training.layers import LayerWatch


def test_norms_and_updates_are_those_of_whole_layers():
    torch.manual_seed(3)
    gpt = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=48, block_size=8), 31)
    watch = LayerWatch(gpt, every_steps=3)
    for parameter in gpt.parameters():
        parameter.grad = torch.randn_like(parameter)
    watch.look(2, torch.zeros(1))
    assert watch.columns(1.0) == {}
    watch.look(3, torch.stack(torch._foreach_norm([parameter.grad for parameter in gpt.parameters()])))
    before = {name: parameter.detach().clone() for name, parameter in gpt.named_parameters()}
    torch.optim.SGD(gpt.parameters(), lr=0.01).step()
    watch.measure()
    row = watch.columns(0.5)
    for layer in ("0", "1", "embedding"):
        inside = [name for name in before if name.startswith(f"blocks.{layer}.") or (
            layer == "embedding" and not name.startswith("blocks."))]  # fmt: skip
        weights = torch.cat([before[name].flatten() for name in inside])
        norm = torch.cat([gpt.get_parameter(name).grad.flatten() for name in inside]).norm().item()
        assert row[f"train/grad_norm/{layer}"] == pytest.approx(norm / 0.5, rel=1e-4)
        assert row[f"train/update/{layer}"] == pytest.approx(0.01 * norm / weights.norm().item(), rel=0.03)
    assert watch.columns(1.0) == {}  # of the step that was looked at alone


def test_validated_rows_hold_them_and_their_squares_add_up(run):
    run("validate.every_steps=3", "logger.every_steps=1")
    rows = {row["step"]: row for row in run.rows()}
    layers = [key for key in rows[3] if key.startswith("train/grad_norm/")]
    assert math.hypot(*(rows[3][key] for key in layers)) == pytest.approx(rows[3]["train/grad_norm"], rel=1e-5)
    assert all(0 < rows[6][key.replace("grad_norm", "update")] < 1 for key in layers)
    assert [step for step, row in rows.items() if layers[0] in row] == [3, 6]
