"""scripts/compare.py on real runs: the verdict, the sides, and what can't be compared."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minigpt.compare.command import compare
from minigpt.compare.scores import score
from minigpt.compare.sides import once_per_seed, open_run, settings_of, val_text_sha256
from minigpt.config.compose import compose
from minigpt.faults import UserFault

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare.py"


def said(place: Path, *arguments: str) -> str:
    lines: list[str] = []
    paths = [str(place / argument) if (place / argument).is_dir() else argument for argument in arguments]
    compare(compose("compare", paths), say=lines.append)
    return "\n".join(lines)


def validation(run: Path, key: str = "val/loss") -> float:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(row[key] for row in reversed(rows) if key in row)


def test_one_seed_a_side_judges_two_checkpoints(place):
    text = said(place, "a1", "b1")
    verdict = re.search(r"^A is better by (\S+) \+- (\S+) nats per token$", text, re.MULTILINE)
    assert verdict, text
    assert float(verdict[1]) == pytest.approx(validation(place / "b1") - validation(place / "a1"), abs=2e-3)
    assert 0 < float(verdict[2]) < float(verdict[1])
    assert "these two checkpoints, not the settings" in text
    assert "optimizer.lr: 0.01 -> 0.0001" in text


def test_several_seeds_judge_the_settings_and_are_found_by_their_configs(place):
    text = said(place, "a1", "b1", "a2", "b2")
    assert re.search(r"^A +\S+ +seeds 1, 2 ", text, re.MULTILINE)
    assert "A is better by" in text
    assert "judges the settings" in text
    assert said(place, "a1", "a2", "vs", "b1", "b2").splitlines()[-1] == text.splitlines()[-1]


def test_two_seeds_of_one_setting_are_two_checkpoints(place):
    text = said(place, "a1", "a2")
    assert "(the same settings)" in text
    assert "these two checkpoints, not the settings" in text


def test_more_than_two_sides_are_a_table_against_the_first(place):
    text = said(place, "a1", "b1", "long")
    assert "Against A (+- are intervals that all hold together with 95 %)" in text
    assert re.search(r"^  B  A is better by \S+ \+- \S+ nats per token$", text, re.MULTILINE)
    assert re.search(r"^  C  .* \S+ \+- \S+ nats per token", text, re.MULTILINE)
    assert "model.block_size: 8 -> 16" in text


def test_another_tokenizer_of_the_same_text_is_compared_by_bytes(place):
    text = said(place, "a1", "char")
    found = re.search(r"(\S) is better by (\S+) \+- \S+ bits per byte", text)
    wanted = validation(place / "char", "val/bits_per_byte") - validation(place / "a1", "val/bits_per_byte")
    assert found, text
    assert float(found[2]) == pytest.approx(
        abs(wanted), abs=5e-3
    )  # the first token, which none predicts, is not theirs
    assert found[1] == ("A" if wanted > 0 else "B")


@pytest.mark.parametrize("names", [("a1", "b1"), ("a1", "long"), ("char", "a1")])
def test_the_windows_hold_the_whole_split(place, names):
    runs = [open_run(str(place / name), "best") for name in names]
    scores = score(runs, device="cpu", say=lambda line: None)
    in_bytes = "char" in names
    assert scores.sizes.sum() == (runs[0].val.bytes if in_bytes else len(runs[0].val) - 1)
    for name, losses in zip(names, scores.losses.values(), strict=True):
        wanted = validation(place / name, "val/bits_per_byte" if in_bytes else "val/loss")
        assert losses.sum() / scores.sizes.sum() == pytest.approx(wanted, rel=2e-3 if in_bytes else 1e-5)
    assert len({val_text_sha256(run) for run in runs}) == 1


FAULTS = {
    "another text": (["a1", "other"], "validated on another text"),
    "the same weights": (["a1", "again"], "the same weights"),
    "the same run": (["a1", "a1"], "the same weights"),
    "one run": (["a1"], "two runs or more"),
    "an empty side": (["a1", "vs"], "both sides of `vs`"),
    "an empty side between two": (["a1", "vs", "vs", "b1"], "both sides of `vs`"),
    "no run": (["a1", "nowhere"], "no such folder"),
    "an unknown option": (["a1", "b1", "--fast"], "'--fast' is not how a setting is written"),
    "a wrong choice": (["a1", "b1", "which=first"], "must be one of best, latest"),
    "the same seed twice": (["a1", "b1", "vs", "b2"], "both have seed=1"),
    "tokens elsewhere": (["a1", "b1", "data.dir=nowhere"], "data.dir=DIR"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_can_not_be_compared_is_named(place, case):
    arguments, words = FAULTS[case]
    with pytest.raises(UserFault, match=re.escape(words)):
        said(place, *arguments)


def test_all_runs_of_a_folder_are_judged_as_far_as_they_can_be_compared(place, tmp_path):
    """What the README says for a grid: compare.py runs/* must not fail because of some of them."""
    (tmp_path / "note.txt").write_text("no run")
    names = ["other", "a1", "again", "b1", "char-unfinished", "note.txt"]
    (tmp_path / "char-unfinished").mkdir()
    paths = [str(place / name) if (place / name).is_dir() else str(tmp_path / name) for name in names]
    lines: list[str] = []
    compare(compose("compare", paths), say=lines.append)
    assert any(line.startswith("A is better by") for line in lines)
    left_out = [line for line in "\n".join(lines).splitlines() if line.startswith("Left out  ")]
    assert len(left_out) == 4
    for name, reason in {"other": "another text than", "again": "the same weights"}.items():
        assert any(name in line and reason in line for line in left_out)
    assert any("note.txt" in line for line in left_out)
    assert any("char-unfinished" in line for line in left_out)


def test_a_seed_counts_once_among_equal_settings(place):
    one, other, third = (open_run(str(place / name), "best") for name in ("a1", "b1", "a2"))
    again = replace(other, config=one.config)  # other weights under the settings and the seed of a1
    left_out: list[str] = []
    assert once_per_seed([(repr(settings_of(run)), run) for run in (one, again, third)], left_out) == [[one, third]]
    assert [line.startswith(f"{one.path} and {again.path} are one side, and both have") for line in left_out] == [True]


def test_a_text_that_is_too_short_to_judge_is_named(place, monkeypatch):
    monkeypatch.setattr("minigpt.compare.command.MIN_WINDOWS", 10_000)
    with pytest.raises(UserFault, match=r"windows of 8 long; at least 10000"):
        said(place, "a1", "b1")


def test_a_checkpoint_out_of_its_run_does_not_know_its_text(place, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(place / "a1" / "checkpoints" / "step-000000040", alone)
    with pytest.raises(UserFault, match=r"data\.json is missing"):
        said(place, str(alone), "b1")


def test_a_checkpoint_of_a_run_can_be_compared_and_nothing_is_written(place):
    before = sorted(place.rglob("*"))
    text = said(place, f"{place / 'a1' / 'checkpoints' / 'step-000000040'}", "b1")
    assert "A is better by" in text
    assert sorted(place.rglob("*")) == before


def test_the_script_runs_and_loads_no_lightning(place):
    words = [str(SCRIPT), str(place / "a1"), str(place / "b1")]
    code = f"import runpy, sys; sys.argv = {words}\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n"
    code += "finally: print('lightning' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "A is better by" in done.stdout
    assert done.stdout.isascii()
    assert done.stdout.splitlines()[-1] == "False"
