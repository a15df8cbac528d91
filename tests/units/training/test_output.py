"""What a training shows of its steps."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from minigpt.config.schema import AdapterConfig, TrainConfig
from minigpt.training import output
from minigpt.training.guard import StepResult
from minigpt.training.output import RunLog, describe
from minigpt.training.state import StopRequest


def test_one_slow_step_hardly_moves_the_time_left():
    config, seconds = TrainConfig(), [10.0 * step for step in range(1, 90)]
    seconds += [seconds[-1] + 300]  # a save on a slow disk, say
    rows = [{"step": step, "seconds": time} for step, time in enumerate(seconds, 1)]
    rest = {"train/loss": 1.0, "lr": 1e-3, "mfu": None, "tokens_per_second": 9.0}
    before, after = (describe(row | rest, config, 100, (1, 10.0)) for row in rows[-2:])
    assert before[2] == "ETA 1 min 50 s"
    assert describe(rows[-1] | rest | {"mfu": 0.0004}, config, 100, (1, 10.0)) == after  # says nothing
    assert after[2] == "ETA 2 min 13 s"


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminals_line_moves_between_two_rows(tmp_path, monkeypatch, capsys, no_colour):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(output, "MOVE_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", no_colour)
    config = TrainConfig(adapter=AdapterConfig(name="lora"), batch_tokens=600)  # without an MFU
    run = SimpleNamespace(writes=True, path=tmp_path, metrics=tmp_path / "metrics.jsonl")
    prepared = SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=256))
    job = SimpleNamespace(config=config, run=run, hardware=None, prepared=prepared)
    log = RunLog(job, SimpleNamespace(precision="fp32"), step=0)
    result = StepResult(5.0, 1.0, 1.0, 1e-3, fault=None, overflow=False, request=StopRequest())
    log.tick(898, replace(result, lr=2e-3), 59.9)  # of a run that continues
    assert "step   898/2,000  loss 5.0000  lr 2.00e-03" in capsys.readouterr().out
    log.write(log.row(899, result, 60.0) | {"val/loss": 4.2033, "val/bits_per_byte": 1.5})
    log.tick(900, replace(result, loss=4.5), 60.1)
    shown = capsys.readouterr().out
    assert "step   900/2,000  loss 4.5000  val 4.2033  ETA 1 min 50 s  6,000 tok/s" in shown
    assert "█" in shown
    assert ("\x1b[32m" in shown) is not bool(no_colour)
    assert log.row(901, result, 60.4)["tokens_per_second"] == 3000.0  # of both steps, shown or not
    assert len(run.metrics.read_text().splitlines()) == 1
