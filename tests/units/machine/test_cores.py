"""Cores and memory: those we may use, within a container's share."""

import math

import pytest

from minigpt.machine import cores


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(None, 8), ("max 100000\n", 8), ("200000 100000\n", 2), ("250000 100000\n", 3), ("50000 100000\n", 1), ("x", 8)],
)
def test_a_containers_share_limits_cores(monkeypatch, tmp_path, text, wanted):
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(8), raising=False)
    if text:
        (tmp_path / "cpu.max").write_text(text)
    assert cores.usable_cores() == wanted


@pytest.mark.parametrize(
    ("group", "files", "wanted"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"memory.max": "max\n"}, math.inf),
        ("0::/job/step\n", {"job/memory.max": "3000\n", "job/step/memory.max": "5000\n"}, 3000),
        ("0::/elsewhere\n", {"memory.max": "2000\n"}, 2000),
        ("nonsense\n", {"memory.max": "1\n"}, math.inf),
    ],
)
def test_a_containers_share_limits_memory(monkeypatch, tmp_path, group, files, wanted):
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "groups")
    (tmp_path / "groups").write_text(group)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert cores.memory_limit() == wanted
