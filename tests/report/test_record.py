"""A run directory is read as far as it goes."""

import json

import pytest

from minigpt.faults import UserFault
from minigpt.report.record import best_row, column, nats_per_bit, read_record, training_seconds


def test_a_whole_run(run):
    record = read_record(run)
    assert record.name == "tiny-1f"
    assert [row["step"] for row in record.rows] == list(range(10, 201, 10))
    assert record.parameters == 21 * 3 + 5 * 22  # the padding rows don't count
    assert record.config["seed"] == 4242
    assert record.choices["micro_batch"] == 7
    assert record.command == "python scripts/train.py seed=4242"
    assert record.baselines == []


def test_torn_and_strange_lines_are_left_out(run):
    with open(run / "metrics.jsonl", "a") as file:
        file.write(
            '[1, 2]\n{"train/loss": 3.0}\n{"step": true}\n\xff\n{"step": 210, "train/loss": 2.5}\n{"step": 220, "tra'
        )
    rows = read_record(run).rows
    assert [row["step"] for row in rows][-2:] == [200, 210]


def test_a_step_written_twice_counts_once_as_last_written(run):
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 100, "train/loss": 9.5}) + "\n")
    rows = read_record(run).rows
    assert [row["step"] for row in rows] == list(range(10, 201, 10))
    assert rows[9] == {"step": 100, "train/loss": 9.5}


def test_only_metrics_are_needed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    record = read_record(tmp_path)
    assert (record.rows, record.config, record.parameters) == ([], {}, None)
    assert best_row(record.rows) is None
    assert nats_per_bit(record.rows) is None


@pytest.mark.parametrize("name", ["config.yaml", "choices.json", "environment.json"])
@pytest.mark.parametrize("content", ["{", "[1]", "", "a: [b: {c"])
def test_broken_side_files_are_empty(run, name, content):
    (run / name).write_text(content)
    assert getattr(read_record(run), name.partition(".")[0]) == {}


def test_no_run_is_named(tmp_path):
    with pytest.raises(UserFault, match="no such folder"):
        read_record(tmp_path / "nowhere")
    with pytest.raises(UserFault, match=r"no metrics\.jsonl in it"):
        read_record(tmp_path)


def test_column_keeps_finite_numbers_only():
    rows = [{"step": step, "x": x} for step, x in enumerate([1.5, None, float("nan"), float("inf"), "2", True, 3])]
    assert [found.tolist() for found in column([*rows, {"step": 9}], "x")] == [[0, 6], [1.5, 3]]
    assert [found.tolist() for found in column([], "x")] == [[], []]


def test_training_time_adds_up_over_restarts():
    assert training_seconds([{"seconds": seconds} for seconds in (1.0, 4.0, None, 0.5, 2.0)]) == 6.0


def test_best_row_is_the_first_of_equals():
    rows = [{"step": step, "val/loss": loss} for step, loss in ((1, float("nan")), (2, 3.0), (3, 2.5), (4, 2.5))]
    assert best_row(rows)["step"] == 3


@pytest.mark.parametrize("length", [b"\xff" * 8, b"\x00" * 8, b"\x10"])
def test_an_impossible_length_of_a_checkpoints_header_counts_no_parameters(run, length):
    checkpoint = run / "checkpoints" / "step-000999999"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "model.safetensors").write_bytes(length + b"{}")
    assert read_record(run).parameters is None
