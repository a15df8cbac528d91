"""Cores: those we may run on, within a container's share."""

import math

import pytest

from minigpt.ranks import cores
from minigpt.ranks.cores import memory_limit, usable_cores

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


@pytest.mark.parametrize(
    ("groups", "files", "wanted"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"memory.max": "max\n"}, math.inf),
        ("0::/\n", {"memory.max": "4000\n"}, 4000),
        ("0::/job/step\n", {"job/memory.max": "3000\n", "job/step/memory.max": "5000\n"}, 3000),
        ("0::/elsewhere\n", {"memory.max": "2000\n"}, 2000),
        ("4:cpu:/a\n3:memory,x:/b\n", {"memory/b/memory.limit_in_bytes": "6000\n", "a/memory.max": "1\n"}, 6000),
        ("nonsense\n", {"memory.max": "1\n"}, math.inf),
    ],
)
def test_a_containers_share_limits_memory(monkeypatch, tmp_path, groups, files, wanted):
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "groups")
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert memory_limit() == wanted
