"""metrics.jsonl: whole rows, cut where a run continues, a torn end survived."""

import json

from minigpt.rundir.rows import append_rows, cut_rows_after, read_rows


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
