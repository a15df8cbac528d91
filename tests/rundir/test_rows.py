"""metrics.jsonl: whole rows, cut where a run continues, a torn end survived."""

import json

import pytest

from minigpt.rundir.rows import append_rows, cut_rows_after, parse_row, read_rows


def test_rows_after_the_checkpoint_go_and_the_rest_keeps_its_bytes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 10, 20, 30):
        append_rows(path, [{"step": step, "train/loss": 1 / step}])
    kept = path.read_bytes().split(b"\n")[:2]
    assert cut_rows_after(path, 10) == 2
    assert path.read_bytes() == b"\n".join(kept) + b"\n"
    assert cut_rows_after(path, 10) == 0


def test_a_torn_last_line_is_left_out_and_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_rows(path, [{"step": 1}])
    with open(path, "ab") as file:
        file.write(b'{"step": 2, "train')
    assert read_rows(path) == [{"step": 1}]
    cut_rows_after(path, 5)
    append_rows(path, [{"step": 3}])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def test_a_missing_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none") == []
    assert cut_rows_after(tmp_path / "none", 3) == 0


def test_a_damaged_line_in_the_middle_costs_no_row_behind_it_and_is_said(tmp_path):
    path, said = tmp_path / "metrics.jsonl", []
    append_rows(path, [{"step": 1}])
    path.write_bytes(path.read_bytes() + b"\x00\xff{\n")
    append_rows(path, [{"step": step} for step in (2, 3, 4)])
    before = path.read_bytes()
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3, 4]
    assert cut_rows_after(path, 3, said.append) == 1
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == before
    assert said == [f"{path}: 1 damaged line(s) left out; the file as it was is kept as metrics.jsonl.damaged"]
    assert cut_rows_after(path, 3, said.append) == 0
    assert len(said) == 1


@pytest.mark.parametrize("row", ["5", "null", '{"step": "a"}', '{"step": true}', '{"step": NaN}', "{}", "[" * 100_000])
def test_a_line_that_is_no_row_of_a_step_is_damage_and_no_traceback(tmp_path, row):
    path, said = tmp_path / "metrics.jsonl", []
    path.write_text(f'{{"step": 1}}\n{row}\n{{"step": 2}}\n')
    assert cut_rows_after(path, 2, said.append) == 0
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert "1 damaged line(s)" in said[0]


def test_a_row_is_a_json_object():
    assert parse_row(b'{"step": 1}') == {"step": 1}
    assert [parse_row(line) for line in (b"", b"5", b"[1]", b'{"step"', b"\xff")] == [None] * 5


def test_a_row_behind_a_torn_one_is_not_lost(tmp_path):
    """A power cut leaves one, or a disk that takes neither a row nor the cut that would remove its part."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "began"}\n{"event": "ski')
    append_rows(path, [{"event": "continued"}])
    assert [row["event"] for row in read_rows(path)] == ["began", "continued"]


def test_an_older_damaged_file_is_not_written_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for content in ("first\n", "second\n"):
        path.write_text(content)
        cut_rows_after(path, 3, lambda _: None)
    kept = [file.read_text() for file in sorted(tmp_path.glob("*.damaged*"))]
    assert kept == ["first\n", "second\n"]
