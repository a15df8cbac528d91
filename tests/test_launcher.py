"""What torchrun and srun say is understood; what other jobs left behind is not taken for it."""

import pytest

from minigpt.config.compose import compose
from minigpt.config.schema import TrainerConfig
from minigpt.faults import UserFault
from minigpt.launcher import Launched, launched
from minigpt.ranks.group import refuse_misfit
from minigpt.ranks.hosts import several_hosts

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}  # fmt: skip
PLACE = {"rank": 5, "world_size": 8, "local_rank": 1, "local_size": 4, "node": 1}


@pytest.fixture
def variables(monkeypatch):
    for name in (*TORCHRUN, *SRUN):
        monkeypatch.delenv(name, raising=False)

    def put(values, **changed):
        for name, value in {**values, **changed}.items():
            monkeypatch.setenv(name, value)

    return put


def test_torchrun_is_understood(variables):
    assert launched("ddp", 2, 4) is None
    variables(TORCHRUN)
    found = launched("auto", 1, 1)
    assert found == Launched("torchrun", **PLACE, address="10.0.0.1")
    assert (found.nodes, found.is_even) == (2, True)


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (2, 4), (2, 1), (1, 8)])
def test_srun_is_understood(variables, nodes, devices):
    variables(SRUN)
    assert launched("fsdp", nodes, devices) == Launched("srun", **PLACE, address="")


@pytest.mark.parametrize(
    ("strategy", "devices", "changed"),
    [
        ("auto", 1, {}),  # one process: a task of a step that does something else, such as a sweep's worker
        ("ddp", 2, {}),  # so many it starts itself
        ("ddp", 1, {"SLURM_STEP_NUM_TASKS": "1"}),
        ("ddp", 1, {"SLURM_STEP_NUM_TASKS": ""}),  # a batch script, an allocation's shell
        ("ddp", 1, {"SLURM_PROCID": "x"}),
    ],
)
def test_what_slurm_says_to_others_is_passed_over(variables, strategy, devices, changed):
    variables(SRUN, **changed)
    assert launched(strategy, 1, devices) is None


TEXT = ["data=stdlib", "batch_tokens=65536", "model=gpt-nano"]


@pytest.mark.parametrize("values", [TORCHRUN, SRUN])
def test_hosts_and_devices_may_be_left_out_and_are_kept_where_they_are_typed(variables, values):
    variables(values)
    trainer = compose("train", [*TEXT, "trainer=fsdp"]).trainer
    assert (trainer.nodes, trainer.devices) == (2, 4)
    trainer = compose("train", [*TEXT, "trainer=hsdp"]).trainer
    assert (trainer.nodes, trainer.devices, trainer.shards) == (2, 4, 0)  # a copy of the weights per host
    trainer = compose("train", [*TEXT, "trainer=ddp", "trainer.devices=3", "batch_tokens=98304"]).trainer
    assert trainer.devices == 3
    trainer = compose("train", TEXT).trainer
    assert (trainer.nodes, trainer.devices) == (1, 1)


def test_a_note_is_said_by_one_process_of_all(variables, capsys):
    short = [*TEXT, "trainer=ddp", "trainer.max_steps=10"]  # and a longer warm-up
    variables(SRUN)
    compose("train", short)
    assert capsys.readouterr().err == ""
    variables(SRUN, SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    compose("train", short)
    assert capsys.readouterr().err.startswith("Note: schedule.warmup_steps")


@pytest.mark.parametrize(
    ("nodes", "devices", "changed", "words"),
    [
        (2, 2, {}, "8 processes were started on 2 hosts, but trainer.nodes=2 trainer.devices=2"),
        (1, 8, {}, "Add trainer=ddp trainer.nodes=2 trainer.devices=4"),
        (4, 2, {}, "8 processes were started on 2 hosts, but trainer.nodes=4 trainer.devices=2"),
        (2, 4, {"LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "0", "LOCAL_RANK": "5"}, "8 processes were started, but"),
    ],
)
def test_other_processes_than_were_asked_for_are_refused(variables, nodes, devices, changed, words):
    variables(TORCHRUN, **changed)
    trainer = TrainerConfig(strategy="ddp", nodes=nodes, devices=devices)
    with pytest.raises(UserFault, match=words):
        refuse_misfit(launched("ddp", nodes, devices), trainer)


def test_several_hosts_need_a_launcher(variables):
    with pytest.raises(UserFault, match="torchrun --nnodes=2 --nproc-per-node=4"):
        refuse_misfit(None, TrainerConfig(strategy="ddp", nodes=2, devices=4))
    refuse_misfit(None, TrainerConfig(strategy="ddp", devices=4))


@pytest.mark.parametrize("changed", [{"LOCAL_WORLD_SIZE": "5"}, {"LOCAL_RANK": "2"}, {"GROUP_RANK": "0"}])
def test_hosts_with_uneven_numbers_of_processes_are_refused(variables, changed, tmp_path):
    variables(TORCHRUN, **changed)
    with pytest.raises(UserFault, match="hosts have uneven numbers"):
        several_hosts(launched("ddp", 2, 4), tmp_path)


def test_hosts_are_told_apart_by_rank_alone(variables, tmp_path):
    variables(TORCHRUN)
    hosts = several_hosts(launched("ddp", 2, 4), tmp_path)
    assert [rank for rank in range(8) if hosts.holds(rank)] == [4, 5, 6, 7]
