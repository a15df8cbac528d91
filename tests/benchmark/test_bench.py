"""The lines that every measurement begins with."""

from pathlib import Path

from minigpt.benchmark.bench import commit_of, describe_machine, describe_moment

CPUINFO = """\
processor\t: 0
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC 9R45
flags\t\t: fpu avx2 avx512f avx512_bf16 tsc
"""


def test_the_machine_is_named_with_what_decides_its_speed(tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    line = describe_machine(tmp_path / "cpuinfo")
    assert "AMD EPYC 9R45 (family 26 model 2)" in line
    assert "avx512_bf16 avx512f avx2" in line
    assert "amx" not in line
    assert "torch 2." in line
    assert describe_machine(tmp_path / "no proc here")


def test_a_busy_machine_is_warned_of():
    assert describe_moment((0.5, 3.0, 3.0)).endswith("load average 0.50 3.00 3.00")
    assert "\nWARNING: the load average is 0.51" in describe_moment((0.51, 0.0, 0.0))


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path):
    assert commit_of(tmp_path) == "unknown"
    assert commit_of(Path(__file__).parent) != ""
