"""Muon: its laws, one by one, and a run with it."""

import shutil

import pytest
import torch
import torch.nn as nn

from minigpt.checkpoint.contents import MODEL, OPTIMIZER, optimizer_tensors, read_tensors
from minigpt.config.schema import ModelConfig, OptimizerConfig
from minigpt.model.gpt import GPT
from minigpt.rundir.rows import read_rows
from minigpt.training.muon import Muon, orthogonal
from minigpt.training.optimizer import average_weights, build_optimizer

NUMBERS = {"lr": 0.01, "matrix_lr": 0.02, "momentum": 0.9, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.0), (torch.bfloat16, 0.03)])
def test_singular_values_come_near_one_and_directions_stay(dtype, tolerance):
    matrices = draw(3, 24, 40) * torch.tensor([1e-4, 1.0, 1e4])[:, None, None]
    result = orthogonal(matrices.to(dtype)).float()
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.7 - tolerance
    assert values.max() < 1.2 + tolerance
    U, _, Vh = torch.linalg.svd(matrices, full_matrices=False)
    assert ((U @ Vh) * result).sum(dim=(-2, -1)).min() > 0.9 * 24  # near the nearest orthogonal matrix


def test_a_gradient_of_zero_moves_nothing_and_makes_no_nan():
    assert torch.equal(orthogonal(torch.zeros(2, 4, 6)), torch.zeros(2, 4, 6))


def parameters_with_gradients():
    tall, wide, square, table, vector = (
        nn.Parameter(draw(*shape, seed=seed)) for seed, shape in enumerate([(12, 4), (4, 12), (4, 4), (7, 4), (4,)])
    )
    for seed, parameter in enumerate((tall, wide, square, table, vector), start=9):
        parameter.grad = draw(*parameter.shape, seed=seed)
    return [tall, wide, square], [table, vector]


def test_matrices_of_one_shape_move_as_each_alone():
    together, others = parameters_with_gradients()
    Muon(together, others, **NUMBERS).step()
    for index in range(3):
        alone, others = parameters_with_gradients()
        Muon(alone[index : index + 1], others, **NUMBERS).step()
        torch.testing.assert_close(alone[index], together[index])


def test_split_queries_keys_and_values_move_as_three_matrices():
    moved = []
    for split in (False, True):
        torch.manual_seed(0)
        config = ModelConfig(n_layer=2, n_head=4, n_kv_head=2, head_dim=6, n_embd=16, block_size=8)
        model = GPT(config, 31)
        for seed, parameter in enumerate(model.parameters()):
            parameter.grad = draw(*parameter.shape, seed=seed)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = build_optimizer(OptimizerConfig(name="muon", split_qkv=split, weight_decay=0.1), model)
        optimizer.step()
        moved.append({name: tensor - before[name] for name, tensor in model.state_dict().items()})
    for name in before:
        assert moved[0][name].equal(moved[1][name]) == (not name.endswith("qkv.weight"))
    qkv = model.blocks[1].attention.qkv.weight
    start = 0
    for rows in (24, 12, 12):
        part = slice(start, start + rows)
        alone = nn.Parameter(before["blocks.1.attention.qkv.weight"][part])
        alone.grad = qkv.grad[part]
        Muon([alone], [], lr=0.1, matrix_lr=0.02, momentum=0.95, weight_decay=0.1).step()
        torch.testing.assert_close(alone, qkv[part], rtol=0, atol=1e-6)
        start += rows


def test_two_steps_are_the_formula():
    matrices, others = parameters_with_gradients()
    tall = matrices[0]
    weight, average = tall.detach().clone(), torch.zeros_like(tall)
    optimizer = Muon(matrices, others, **NUMBERS)
    for _ in range(2):
        average = 0.9 * average + 0.1 * tall.grad
        ahead = 0.1 * tall.grad + 0.9 * average
        weight = weight * (1 - 0.02 * 0.1) - 0.02 * 3**0.5 * orthogonal(ahead.T[None])[0].T
        optimizer.step()
    torch.testing.assert_close(tall.detach(), weight, rtol=1e-4, atol=1e-5)


def test_the_rest_moves_as_by_torchs_adamw():
    matrices, others = parameters_with_gradients()
    _, twins = parameters_with_gradients()
    table, vector = twins
    adamw = torch.optim.AdamW(
        [{"params": [table], "weight_decay": 0.1}, {"params": [vector], "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95), fused=True,
    )  # fmt: skip
    muon = Muon(matrices, others, **NUMBERS)
    for _ in range(3):
        muon.step()
        adamw.step()
    for ours, reference in zip(others, twins, strict=True):
        assert torch.equal(ours, reference)


def test_the_matrices_of_the_blocks_are_muons_and_every_parameter_has_one_group():
    gpt = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=4), 31)
    optimizer = build_optimizer(OptimizerConfig(name="muon", lr=0.5, matrix_lr=0.25), gpt)
    matrices = set(optimizer.param_groups[0]["params"])
    muons = {name for name, parameter in gpt.named_parameters() if parameter in matrices}
    parts = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    assert muons == {f"blocks.{layer}.{part}.weight" for layer in (0, 1) for part in parts}
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(list(gpt.parameters()))
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.25, 0.5, 0.5]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_run_ends_with_the_mean_of_its_last_weights(name):
    gpt = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=4), 31)
    optimizer, made = build_optimizer(OptimizerConfig(name=name, average_fraction=0.5), gpt), []
    for step in range(1, 6):
        gpt(torch.full((1, 4), step)).square().mean().backward()
        optimizer.step()
        made.append([parameter.detach().clone() for parameter in gpt.parameters()])
        average_weights(optimizer, step, 5, 0.5)
    for parameter, *last in zip(gpt.parameters(), *made[-3:], strict=True):
        torch.testing.assert_close(parameter.detach(), torch.stack(last).mean(0))
        assert not torch.equal(parameter, last[-1])


def test_fewer_steps_than_before_leave_a_mean_of_weights_and_no_gradient_leaves_none():
    gpt = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=4), 31)
    optimizer = build_optimizer(OptimizerConfig(name="muon", lr=1e-5, matrix_lr=1e-5, average_fraction=0.5), gpt)
    average_weights(optimizer, 1, 1, 0.5)  # its only step had no finite gradient
    for step in range(1, 9):
        gpt(torch.full((1, 4), step)).square().mean().backward()
        optimizer.step()
        last = [parameter.detach().clone() for parameter in gpt.parameters()]
        average_weights(optimizer, step, 40 if step < 7 else 8, 0.5)  # from step 7 on, the last 4 of 8
    for parameter, before in zip(gpt.parameters(), last, strict=True):
        torch.testing.assert_close(parameter, before, rtol=0, atol=1e-3)


def test_the_updates_in_the_report_are_those_of_the_steps(run):
    def updates(*extra: str) -> list[dict]:
        rows = read_rows(
            run(*MODERN, "validate.every_steps=2", *extra).rename(run.path.with_name("a")) / "metrics.jsonl"
        )
        shutil.rmtree(run.path.with_name("a"))
        return [{name: value for name, value in row.items() if name.startswith("train/update")} for row in rows]

    assert updates() == updates("optimizer.average_fraction=0")
    assert any(updates())


MODERN = ["optimizer=muon", "optimizer.average_fraction=0.5"]
MODERN += ["model.attention=rotary", "model.activation=relu_squared"]


def test_a_run_with_it_continues_to_the_same_bytes(run):
    path = run.continued(*MODERN, "trainer.precision=bf16")
    weights, kept = (read_tensors(path / "checkpoints/step-000000006" / name) for name in (MODEL, OPTIMIZER))
    assert any(torch.equal(kept["0.mean"], tensor) for tensor in weights.values())


def test_a_skip_that_is_decided_on_the_device_leaves_weights_and_averages_as_they_were():
    matrices, others = parameters_with_gradients()
    optimizer = Muon(matrices, others, **NUMBERS)
    optimizer.step()
    kept = [tensor.clone() for tensor in (*matrices, *others)]
    averages = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    for parameter in (*matrices, *others):
        parameter.grad.fill_(float("nan"))
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(old, now) for old, now in zip(kept, (*matrices, *others), strict=True))
    assert all(torch.equal(averages[name], now) for name, now in optimizer_tensors(optimizer).items())
