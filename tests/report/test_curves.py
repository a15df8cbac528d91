"""The curves, and the picture of them."""

import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.figure import Figure

from minigpt.faults import StorageFailure
from minigpt.report.curves import draw_loss, draw_losses, size_and_loss, smooth
from minigpt.report.page import write_report
from minigpt.report.record import read_record

SERIES = st.integers(1, 700).flatmap(lambda size: arrays(float, size, elements=st.floats(-1e6, 1e6)))


@given(SERIES)
def test_smoothing_stays_between_the_extremes(values):
    smoothed = smooth(values)
    assert smoothed.shape == values.shape
    slack = 1e-9 * (1 + np.abs(values).sum())
    assert (smoothed >= values.min() - slack).all()
    assert (smoothed <= values.max() + slack).all()


def test_smoothing_does_not_lag():
    line = np.arange(400.0)
    reach = 400 // 80
    np.testing.assert_allclose(smooth(line)[:-reach], line[:-reach])


def test_smoothing_is_the_mean_of_its_window():
    values = np.random.default_rng(3).normal(size=240)
    assert smooth(values)[100] == pytest.approx(values[97:104].mean())
    assert smooth(values)[-1] == pytest.approx(values[-4:].mean())


def limits(record):
    axes = Figure().subplots()
    draw_losses(axes, record)
    return axes.get_ylim()


def test_limits_leave_out_the_first_fall_and_single_spikes(run):
    record = read_record(run)
    record.rows[0]["train/loss"] = 50.0
    low, high = limits(record)
    assert high < 8
    assert low < record.rows[-1]["train/loss"]


def test_limits_show_the_baseline_wherever_it_lies(run):
    for bits in (0.2, 30.0):
        record = read_record(run)
        record.baselines = [{"bits_per_byte": bits}]
        low, high = limits(record)
        assert low < 2 * bits < high  # 2 nats per token are a bit per byte in this run


def size_of(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_picture(run):
    draw_loss(read_record(run), run / "loss.png")
    assert size_of((run / "loss.png").read_bytes()) == (1500, 840)
    assert sorted(path.name for path in run.glob("*loss*")) == ["loss.png"]


def test_title_figures(run):
    assert size_and_loss(read_record(run)) == "173 parameters, final validation loss 2.642"


@pytest.mark.parametrize(
    "rows", ["", '{"step": 1, "train/loss": 3.5}\n', '{"step": 0, "val/loss": 3}\n', '{"step": 5}\n']
)
def test_picture_of_hardly_anything(tmp_path, rows):
    path = tmp_path / "a $x$ run_\\frac"  # matplotlib would read mathematics into it
    path.mkdir()
    (path / "metrics.jsonl").write_text(rows)
    draw_loss(read_record(path), path / "loss.png")
    assert size_of((path / "loss.png").read_bytes()) == (1500, 840)


def test_a_failed_drawing_leaves_the_old_picture(run, monkeypatch):
    (run / "loss.png").write_bytes(b"old")

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("minigpt.files.os.replace", full)
    with pytest.raises(StorageFailure, match=r"can't be written there: No space left on device\. Make room"):
        write_report(run)
    assert (run / "loss.png").read_bytes() == b"old"
    assert list(run.glob(".loss*")) == []
