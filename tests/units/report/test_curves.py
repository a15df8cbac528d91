"""The curves of a report, and what they are read from."""

import io
import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure

from minigpt.report.curves import draw_layers, draw_learned, draw_loss, draw_losses, draw_metric, drawing, smooth
from minigpt.report.page import training_seconds
from minigpt.report.record import best_row, column, read_record


def test_smoothing_is_the_mean_of_its_window():
    values = np.random.default_rng(3).normal(size=240)
    assert smooth(values)[1] == pytest.approx(values[:3].mean())
    assert smooth(values)[100] == pytest.approx(values[97:104].mean())
    assert smooth(values)[-1] == pytest.approx(values[-4:].mean())


def test_a_name_for_which_no_font_has_letters_is_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with drawing(size=(2, 2), font_size=9) as figure:
            figure.suptitle("吾輩は猫である \ue000")
            figure.savefig(io.BytesIO())


def limits(record):
    axes = Figure().subplots()
    draw_losses(axes, record)
    return axes.get_ylim()


def test_limits_leave_out_the_first_fall_and_single_spikes(finished):
    record = read_record(finished)
    record.rows[0]["train/loss"] = 50.0
    low, high = limits(record)
    assert high < 8
    assert low < record.rows[-1]["train/loss"]


def test_limits_show_the_baseline_wherever_it_lies(finished):
    for bits in (0.2, 30.0):
        record = read_record(finished)
        record.baselines = [{"name": "xz", "bits_per_byte": bits}]
        low, high = limits(record)
        assert low < 2 * bits < high  # 2 nats per token are a bit per byte in this run


def test_a_picture_of_hardly_anything(tmp_path):
    path = tmp_path / "a $x$ run_\\frac"  # matplotlib would read mathematics into it
    path.mkdir()
    for rows in ("", '{"step": 0, "val/loss": 3}\n', '{"step": 5}\n'):
        (path / "metrics.jsonl").write_text(rows)
        draw_loss(read_record(path), path / "loss.png")
        assert (path / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_spike_of_a_metric_does_not_flatten_the_rest(finished):
    record = read_record(finished)
    record.rows = [{"step": step, "lr": 1e-3 if step != 70 else 5.0} for step in range(1, 301)]
    axes = Figure().subplots()
    draw_metric(axes, record, "lr", "learning rate")
    assert axes.get_ylim() == (0, pytest.approx(1.15e-3))


def test_a_reward_is_drawn_in_place_of_a_loss_and_steps_are_whole_numbers(finished):
    record, axes = read_record(finished), Figure().subplots()
    record.rows = [{"step": step, "train/loss": None, "train/reward": step / 20} for step in range(1, 21)]
    draw_learned(axes, record)
    assert axes.get_ylabel() == "mean reward of a step's answers"
    assert all(step == int(step) for step in axes.get_xticks())


def test_every_layer_has_its_line(finished):
    record, axes = read_record(finished), Figure().subplots()
    record.rows = [{"step": step, **{f"x/{layer}": 0.1 for layer in (*range(12), "embedding")}} for step in (5, 9)]
    draw_layers(axes, record, "x/")
    assert len(axes.lines) == 13
    assert axes.get_legend_handles_labels()[1] == ["layer 1", "layer 12", "embedding"]


def test_damaged_rows_and_files_are_left_out(finished):
    with open(finished / "metrics.jsonl", "a") as file:
        file.write('[1, 2]\n{"step": true}\n\xff\n{"step": 100, "train/loss": 9.5}\n{"step": 220, "tra')
    (finished / "samples.jsonl").write_text('{"step": "x", "text": ""}\n{"step": 3}\n')
    (finished / "choices.json").write_text("{")
    (finished / "checkpoints" / "step-000000200" / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    record = read_record(finished)
    assert [row["step"] for row in record.rows] == list(range(10, 201, 10))
    assert record.rows[9] == {"step": 100, "train/loss": 9.5}  # the last one written counts
    assert (record.choices, record.samples, record.parameters) == ({}, [], None)


def test_columns_times_and_best():
    rows = [{"step": step, "x": x} for step, x in enumerate([1.5, None, float("nan"), float("inf"), "2", True, 3])]
    assert [each.tolist() for each in column([*rows, {"step": 9}], "x")] == [[0, 6], [1.5, 3]]
    assert training_seconds([{"seconds": seconds} for seconds in (1.0, 4.0, None, 0.5, 2.0)]) == 6.0
    rows = [{"step": step, "val/loss": loss} for step, loss in ((1, float("nan")), (2, 3.0), (3, 2.5), (4, 2.5))]
    assert best_row(rows)["step"] == 3
