"""What a training shows of its steps."""

from dataclasses import replace
from types import SimpleNamespace

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


def test_a_terminals_line_moves_between_two_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(output, "can_move", lambda: True)
    monkeypatch.setattr(output, "MOVE_SECONDS", 0.0)
    config = TrainConfig(adapter=AdapterConfig(name="lora"), batch_tokens=600)  # without an MFU
    run = SimpleNamespace(writes=True, path=tmp_path, metrics=tmp_path / "metrics.jsonl")
    log = RunLog(SimpleNamespace(config=config, run=run, hardware=None), SimpleNamespace(precision="fp32"), step=0)
    result = StepResult(5.0, 1.0, 1.0, 1e-3, fault=None, overflow=False, request=StopRequest())
    log.write(log.row(1, result, 60.0))
    log.tick(2, replace(result, loss=4.5), 120.0)
    assert "step     2/2,000   0%  loss 4.5000  ETA 1 d 9 h  10 tok/s" in capsys.readouterr().out
    assert log.row(3, result, 160.0)["tokens_per_second"] == 12.0  # of both steps, shown or not
    assert len(run.metrics.read_text().splitlines()) == 1
