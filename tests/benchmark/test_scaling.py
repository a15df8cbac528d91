"""what=scaling: two processes measured, the formulas on paper, and what a step sends counted against them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from minigpt.benchmark.scaling.command import Setup, sizes
from minigpt.benchmark.scaling.replica import Replica, Wire, mesh_of
from minigpt.benchmark.scaling.ring import BUCKET_BYTES, Collective, Line, Load, collectives, fit
from minigpt.benchmark.scaling.rows import Row, beyond, efficiency
from minigpt.benchmark.settings import read_plans
from minigpt.faults import LAUNCHED, UserFault
from minigpt.machine.choices import choose
from minigpt.machine.hardware import probe
from minigpt.ranks.group import Processes
from tests.benchmark.conftest import TINY

ROOT = Path(__file__).parents[2]
SMALL = [*(each for each in TINY if not each.startswith("batch_tokens")), "what=scaling", "rounds=1", "steps=2"]
LOAD = Load(blocks=3, block=1000.0, root=500.0)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
def test_a_ring_sends_what_the_formula_says_and_a_fit_finds_the_line_again(kind):
    """Four processes, 8 MB: each sends 3/4 of the tensor in each pass, in three messages."""
    line, each = Line(alpha=1e-4, beta=1e9), Collective(kind, "part", 4, 8e6, 2)
    passes = 2 if kind == "all-reduce" else 1
    assert each.sent == 2 * passes * 6e6
    assert each.seconds(line) == pytest.approx(2 * passes * 3 * (1e-4 + 2e6 / 1e9))
    times = [(size, replace(each, size=size, times=1).seconds(line)) for size in (4096.0, 1e6, 8e6)]
    found = fit(kind, 4, times)
    assert (found.alpha, found.beta) == (pytest.approx(1e-4), pytest.approx(1e9))


def test_a_step_of_one_process_sends_nothing_and_ddp_sends_whole_gradients_in_buckets():
    assert collectives("fsdp", LOAD, 1, 1) == []
    (each,) = collectives("ddp", LOAD, 2, 1)
    assert (each.sent, each.times) == (3500, 1)
    (each,) = collectives("ddp", Load(2, 2.0 * BUCKET_BYTES, 1.0), 2, 1)
    assert each.times == 5


def test_parts_are_gathered_twice_and_reduced_once_and_copies_reduce_what_is_left():
    sent = {"fsdp": 0.0, "hsdp": 0.0}
    for strategy in sent:
        for each in collectives(strategy, LOAD, 4, 2):
            sent[strategy] += each.sent
    assert sent["fsdp"] == 0.75 * (2 * 3000 + 500 + 3500)
    assert sent["hsdp"] == 0.5 * (2 * 3000 + 500 + 3500) + 3500 / 2
    kept = collectives("fsdp", replace(LOAD, frees=False), 2, 2)
    assert sum(each.sent for each in kept) == 0.5 * (3500 + 3500)
    again = collectives("fsdp", replace(LOAD, passes=4, gathered=0.5), 2, 2)
    assert sum(each.sent for each in again) == 4 * 0.5 * (3000 + 500 + 3500)


@pytest.mark.parametrize(("nodes", "devices", "wanted"), [
    (1, 2, [1, 2]), (1, 6, [1, 2, 6]), (2, 8, [1, 2, 4, 8, 16]), (3, 8, [1, 2, 4, 8, 24]), (4, 1, [1, 2, 4]),
])  # fmt: skip
def test_sizes_double_within_a_host_and_then_by_hosts(nodes, devices, wanted):
    assert sizes(nodes, devices) == wanted


def test_on_paper_strong_scaling_ends_where_a_device_has_no_sequence_left():
    last = Row(2, "both", 2048, 1.5, 1.0, 0.8, 1.0, 10.0)  # half of what it sends is exposed
    rows = beyond(last, 4, lambda devices: (float(devices), 7.0))
    assert [(row.devices, row.batch) for row in rows] == [
        (4, "weak"), (4, "strong"), (8, "weak"), (8, "strong"), (16, "weak"), (32, "weak"),
    ]  # fmt: skip
    weak, strong = rows[:2]
    assert (weak.step, weak.tokens, strong.step, strong.tokens) == (1.0 + 2.0, 4096, 0.5 + 2.0, 2048)
    assert (weak.exposed, weak.measured) == (2.0, False)
    one = Row(1, "weak", 1024, 1.0, 1.0, 0.0, 0.0, 0.0)
    assert efficiency(last, [one, last]) == pytest.approx(1 / 1.5)


def test_two_processes_are_measured_with_parts_of_the_weights(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "benchmark.py"), *SMALL, "trainer=fsdp", "trainer.devices=2"]
    command += ["model.n_layer=2", "trainer.micro_batch=2", "batch_tokens=32", f"write_to={tmp_path}"]
    clean = {name: text for name, text in os.environ.items() if name not in LAUNCHED}
    done = subprocess.run(command, capture_output=True, text=True, env=clean | {"OMP_NUM_THREADS": "1"}, timeout=240)
    assert done.returncode == 0, done.stderr
    rows, text = json.loads((tmp_path / "scaling.json").read_text())["rows"], done.stdout
    found = [row for row in rows if row["measured"]]
    assert [(row["devices"], row["batch"]) for row in found] == [(1, "weak"), (1, "strong"), (2, "both")]
    assert [row["tokens"] for row in found] == [16, 32, 32]
    assert found[0]["sent"] == found[0]["step"] - found[0]["silent"] == 0
    assert min(found[2][name] for name in ("step", "silent", "alone", "paper", "sent")) > 0
    assert [row["devices"] for row in rows[3:] if row["batch"] == "weak"] == [4, 8, 16, 32]
    assert {path.name for path in tmp_path.iterdir()} == {"scaling.md", "scaling.json", "scaling.png"}
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    assert text.splitlines()[-1].startswith("Scaling on 2 devices: ")
    assert text.count("Machine    ") == 1
    assert "| 2       | reduce-scatter | 2 " in (tmp_path / "scaling.md").read_text()


@pytest.fixture
def four_ranks():
    """This process as rank 0 of four, the other three of which are not there."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("words", [
    ["trainer=fsdp", "trainer.reshard=on"], ["trainer=fsdp", "trainer.reshard=off"], ["trainer=fsdp"],
    ["trainer=hsdp", "trainer.shards=2"],
])  # fmt: skip
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_sends_what_is_said_on_paper_and_a_silent_one_nothing(four_ranks, words, accumulate):
    """Widths are even, so that nothing is padded."""
    batch = ["trainer.devices=4", "trainer.micro_batch=2", f"batch_tokens={64 * accumulate}", "model.n_layer=2"]
    (plan,) = read_plans([*SMALL, *words, *batch])
    choices = choose(plan.config, probe("cpu"), plan.vocab_size)
    replica = Replica(plan.config, plan.vocab_size, choices, mesh_of("cpu", 4, 2 if "trainer.shards=2" in words else 4))
    replica.step(silent=False)
    replica.gather.sent = replica.reduce.sent = 0
    replica.step(silent=False)
    setup = Setup(plan, plan.config, choices, Processes())
    made = [
        each for each in setup.collectives(4, choices.accumulate) if each.kind != "all-reduce"
    ]  # which torch does itself
    assert replica.gather.sent + replica.reduce.sent == sum(each.sent for each in made)
    weights = [each.to_local().clone() for each in replica.gpt.parameters()]
    replica.gather.collective = replica.reduce.collective = None  # called by no silent step
    replica.step(silent=True)
    assert all(map(torch.equal, weights, (each.to_local() for each in replica.gpt.parameters())))
    assert all(each.isfinite().all() for each in weights)


def test_a_silent_collective_gives_what_this_process_has():
    wire = Wire(None)
    wire.silent = True
    whole = torch.zeros(6)
    whole[2:4] = torch.tensor([1.0, 2.0])
    wire(whole, whole[2:4], None)
    assert whole.tolist() == [1.0, 2.0] * 3
    part = torch.zeros(2)
    wire(part, torch.arange(6.0), None, op=None)
    assert (part.tolist(), wire.sent) == ([0.0, 1.0], 32)


@pytest.mark.parametrize(("words", "part"), [
    (["what=scaling"], "Add trainer=ddp trainer.devices=N"),
    (["what=scaling,training", "trainer=ddp", "trainer.devices=2"], "Give it alone"),
    (["what=scaling", "preset=gpu", "trainer=ddp", "trainer.devices=2"], "give preset=124m or preset=350m"),
    (["what=training", "trainer=ddp", "trainer.devices=2"], "runs in a temporary folder on one device"),
])  # fmt: skip
def test_what_can_not_be_measured_is_named(words, part):
    with pytest.raises(UserFault) as caught:
        read_plans(words)
    assert any(part in sentence for sentence in caught.value.faults)


def test_each_device_has_the_presets_batch_unless_another_is_given():
    (plan,) = read_plans(["what=scaling", "preset=c1", "trainer=ddp", "trainer.devices=4"])
    assert plan.config.batch_tokens == 4 * 16 * 256
    (plan,) = read_plans(["what=scaling", "preset=c1", "trainer=ddp", "trainer.devices=4", "batch_tokens=32768"])
    assert plan.config.batch_tokens == 32768
