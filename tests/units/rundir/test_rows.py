"""metrics.jsonl: whole rows, cut where a run continues, a torn end survived."""

from minigpt.rundir.rows import append_row, cut_rows_after, read_rows


def test_rows_after_the_checkpoint_go_and_the_rest_keeps_its_bytes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 10, 20, 30):
        append_row(path, {"step": step, "train/loss": 1 / step})
    kept = path.read_bytes().split(b"\n")[:2]
    assert cut_rows_after(path, 10) == 2
    assert path.read_bytes() == b"\n".join(kept) + b"\n"
    assert cut_rows_after(path, 10) == 0


def test_a_torn_last_line_is_left_out_and_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "train')
    assert read_rows(path) == [{"step": 1}]
    cut_rows_after(path, 5)
    append_row(path, {"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_a_missing_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none") == []
    assert cut_rows_after(tmp_path / "none", 3) == 0


def test_a_damaged_line_in_the_middle_costs_no_row_behind_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\xff{\n5\n{"step": "a"}\n{"step": 2}\n{"step": 3}\n')
    assert cut_rows_after(path, 2) == 1
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_row_behind_a_torn_one_is_not_lost(tmp_path):
    """A power cut leaves one, or a disk that takes neither a row nor the cut that would remove its part."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "began"}\n{"event": "ski')
    append_row(path, {"event": "continued"})
    assert [row["event"] for row in read_rows(path)] == ["began", "continued"]
