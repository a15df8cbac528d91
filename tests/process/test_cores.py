"""Cores: those we may run on, within a container's share."""

import pytest

from minigpt.process import cores
from minigpt.process.cores import usable_cores

V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(8), raising=False)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({V1[0]: "-1\n", V1[1]: "100000\n"}, 8),
        ({V1[0]: "400000\n", V1[1]: "100000\n"}, 4),
    ],
)
def test_a_containers_share_limits_them(tmp_path, files, wanted):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores() == wanted


def test_a_system_that_can_not_say_which_cores_counts_them_all(monkeypatch):
    monkeypatch.delattr(cores.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr(cores.os, "cpu_count", lambda: None)
    assert usable_cores() == 1
