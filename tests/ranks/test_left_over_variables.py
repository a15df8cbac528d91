"""Variables that other jobs left behind: a command of one process works, or says what to unset."""

import itertools
import os

import pytest

from minigpt.config.schema import TrainerConfig
from minigpt.faults import LAUNCHED, UserFault, launched_rank, run_script
from minigpt.ranks.group import joined
from minigpt.ranks.signals import Signals

LEFT_OVER = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "3",
    "GROUP_RANK": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "node17.invalid",
    "MASTER_PORT": "29500",
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
    "TORCHELASTIC_RUN_ID": "none",
}
OF_TORCH, OF_SLURM = ([name for name in LEFT_OVER if name.startswith("SLURM") == slurm] for slurm in (False, True))
SETS = [
    *itertools.combinations(LEFT_OVER, 1),
    *itertools.combinations(OF_TORCH, 2),
    *itertools.combinations(OF_SLURM, 2),
    *(pytest.param(both, marks=pytest.mark.soak) for both in itertools.product(OF_TORCH, OF_SLURM)),
]


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_one_process_works_whatever_another_job_left_behind(names, run, monkeypatch):
    for name in names:
        monkeypatch.setenv(name, LEFT_OVER[name])
    run("trainer.max_steps=1", "validate.every_steps=0")
    assert [row["event"] for row in run.events()] == ["began", "saved", "finished"]
    assert run.rows()[-1]["step"] == 1


def test_a_whole_set_of_them_is_named(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.setenv(name, LEFT_OVER[name])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(UserFault, match="unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT"),
        joined(TrainerConfig(), "cpu", Signals()),
    ):
        pass


@pytest.mark.parametrize("count", range(len(LAUNCHED) + 1))
def test_a_fault_is_printed_whatever_another_job_left_behind(count, monkeypatch, capsys):
    for name in LAUNCHED[:count]:
        monkeypatch.setenv(name, LEFT_OVER[name])
    assert launched_rank() == (1 if count == len(LAUNCHED) else None)

    def main(arguments):
        raise UserFault("no such thing")

    with pytest.raises(SystemExit):
        run_script(main)
    assert "no such thing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rank", "world_size", "wanted"),
    [("1", "4", 1), ("0", "1", 0), ("4", "4", None), ("x", "2", None), ("-1", "2", None)],
)
def test_a_launcher_gives_a_rank_below_the_number_of_processes(rank, world_size, wanted, monkeypatch):
    for name, value in zip(LAUNCHED, (rank, world_size, "0", "127.0.0.1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert launched_rank() == wanted
    assert os.environ["RANK"] == rank
