"""What a training shows of its steps."""

from minigpt.config.schema import TrainConfig
from minigpt.training.output import describe


def test_one_slow_step_hardly_moves_the_time_left():
    config, seconds = TrainConfig(), [10.0 * step for step in range(1, 90)]
    seconds += [seconds[-1] + 300]  # a save on a slow disk, say
    rows = [{"step": step, "seconds": time} for step, time in enumerate(seconds, 1)]
    rest = {"train/loss": 1.0, "lr": 1e-3, "mfu": None, "tokens_per_second": 9.0}
    before, after = (describe(row | rest, config, 100, (1, 10.0)) for row in rows[-2:])
    assert before[2] == "ETA 1 min 50 s"
    assert describe(rows[-1] | rest | {"mfu": 0.0004}, config, 100, (1, 10.0)) == after  # says nothing
    assert after[2] == "ETA 2 min 13 s"
