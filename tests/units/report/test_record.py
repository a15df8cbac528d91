"""What a run's files say about how good it is."""

import pytest

from minigpt.report.record import advice, beside_forecast, read_record, to_type, trend, verdict
from minigpt.screen import table
from tests.units.report.run_folder import write_run

BESIDE = "than 7-gram (1.500), better than xz (2.000)"
COUNTING = [{"name": "7-gram of bytes", "bits_per_byte": 1.5}, {"name": "xz", "bits_per_byte": 2.0}]


def record_of(folder, losses, event="finished", train=(3.0, 2.0, 1.0, 0.5), limit=40, baselines=COUNTING):
    """Return a run's record with a validation at step 10, 20, ... of 2 nats a bit per byte; None: without one."""
    record = read_record(write_run(folder))
    record.rows = [{"step": 10 * n, "train/loss": loss} for n, loss in enumerate(train, 1)]
    for row, loss in zip(record.rows, losses, strict=False):
        row |= {"val/loss": loss, "val/bits_per_byte": loss / 2} if loss else {}
    record.events, record.baselines = [{"event": event, "step": 41}], list(baselines)
    record.config["trainer.max_steps"] = limit
    return record


@pytest.mark.parametrize(
    ("losses", "more", "wanted"),
    [
        ((5, 4, 3, 2.5), {}, f"1.250 bits per byte, better {BESIDE}, still falling: more"),
        ((5, 4, 3.2, 3.19), {}, f"1.595 bits per byte, worse {BESIDE}, level since step 30"),
        ((5, 3, 4, 5), {}, f"1.500 bits per byte, worse {BESIDE}, overfit after step 20"),
        ((5, 3, 4, 5), {"train": (3, 2, 3, 4)}, "xz (2.000), risen after step 20"),
        ((5, 3, 4, 5), {"train": (9, 8, 7, 6)}, "xz (2.000), risen after step 20"),  # it knows nothing by heart
        ((5, 4, 3, 2.5), {"baselines": ()}, "1.250 bits per byte, still falling"),
        ((5, 4), {"event": "stopped", "limit": 480}, "stopped at 41 of 480: 2.000 bits per byte, worse than 7-gram"),
        ((5, 4), {"event": "began", "limit": 480}, "unfinished at 41 of 480: 2.000 bits per byte"),
        ((5, 4), {"event": "gave_up", "limit": 480}, "; a lower optimizer.lr may help"),
        ((5, 3, 4, 5), {"event": "stopped", "limit": 480}, "; overfit after step 20"),
        ((4,), {"train": (3,)}, "2.000 bits per byte, worse than 7-gram (1.500)"),
        ((), {}, "not validated"),
        ((), {"train": (), "event": "began", "limit": None}, "unfinished: not validated; the same command continues"),
    ],
)
def test_a_verdict_is_one_sentence(tmp_path, losses, more, wanted):
    sentence = verdict(record_of(tmp_path, losses, **more))
    assert wanted in sentence
    assert ". " not in sentence


def test_a_forecast_is_not_compared_with_a_run_that_was_continued(tmp_path):
    record = sized(record_of(tmp_path, (3, 2.5, 2.2, 2)))  # 40 steps
    assert beside_forecast(record, None) == ["Expected       2.000 bits per byte (1.90 to 2.10); reached 1.000"]
    record.budget["settings"]["trainer.max_steps"] = 39
    assert not beside_forecast(record, None)


@pytest.mark.parametrize(("speed", "says"), [(8.0, "Slow"), (9.5, ""), (11.0, ""), (14.0, "Fast")])
def test_another_speed_than_was_measured_is_said(tmp_path, speed: float, says: str):
    record = sized(record_of(tmp_path, (3, 2.5, 2.2, 2)))
    for row in record.rows:
        row["tokens_per_second"] = speed
    lines = beside_forecast(record, 16.0)
    assert lines[1] == "Time           16 s of 30 s"
    assert [line[:4] for line in lines[2:]] == [says] * bool(says)


def sized(record):
    foretold = {"predicted_bits_per_byte": 2.0, "low": 1.9, "high": 2.1, "seconds": 30, "tokens_per_second": 10}
    record.budget = foretold | {"settings": {"trainer.max_steps": 40}}
    return record


def test_names_in_wide_letters_are_aligned():
    lines = table([("run", "steps"), ("吾輩は猫", "9"), ("Nové", "12")]).splitlines()
    assert lines == ["run       steps", "吾輩は猫  9", "Nové      12"]


def test_the_verdict_on_a_reward(tmp_path):
    record = record_of(tmp_path, (5, 4, 3, 2))
    for row in record.rows:
        row["train/reward"] = row["step"] / 100
    assert verdict(record) == "mean reward 0.30, at first 0.20"


def test_a_trend_names_what_to_type(tmp_path):
    assert trend(record_of(tmp_path / "none", (), train=())) == ("", "")
    assert "budget=TIME" in advice(record_of(tmp_path / "a", (5, 4, 3, 2)))
    tuned = record_of(tmp_path / "tuned", (5, 4, 3, 2))
    tuned.config["init.from"] = "runs/base"  # no budget sizes it
    assert "budget=" not in advice(tuned)
    sized = record_of(tmp_path / "sized", (5, 4, 3, 2))
    sized.command = "minigpt train data.source=a.txt budget=1min"
    assert advice(sized) == "Type a longer budget: minigpt plan shows what it would buy"
    sized.budget = {"predicted_bits_per_byte": 1.0, "predicted_for_longer": 0.99}
    assert advice(sized).startswith("Type a longer budget")
    sized.budget["predicted_for_longer"] = 0.996
    assert advice(sized) == ""
    assert "xz (2.000), more text would help: a longer budget would choose about the same" in verdict(sized)
    once = record_of(tmp_path / "once", (4,))  # validated once
    once.command, once.budget = sized.command, {"predicted_bits_per_byte": 1.0, "predicted_for_longer": 0.99}
    assert advice(once).startswith("Type a longer budget")
    ended = record_of(tmp_path / "ended", (5, 4, 3, 2))
    ended.events[0]["reason"] = "epochs"
    assert advice(ended).startswith("Type trainer.epochs=N for more")
    decayed = {"optimizer.weight_decay": 4.0}
    assert to_type(decayed, "minigpt train budget=30s") == []
    assert to_type({"data.name": "chat", "optimizer.name": "muon"}) == ["optimizer.weight_decay=1"]
    assert to_type({"data.name": "chat", "optimizer.name": "adamw"}) == ["model.dropout=0.2"]
    drops = {"data.name": "chat", "optimizer.name": "adamw", "model.dropout": 0.2}
    assert to_type(drops) == ["optimizer.weight_decay=1"]
    copied = record_of(tmp_path / "copied", (5, 4, 3, 2))  # more of it would be learned by heart
    copied.overlap = 0.99
    assert verdict(copied).endswith("better than xz (2.000), on text of which 99% is in the training text, too")
    assert advice(copied) == ""
    copied.overlap = 0.3
    assert "still falling: more time would help" in verdict(copied)
    once.overlap = 0.99
    assert advice(once) == ""
    assert advice(record_of(tmp_path / "b", (5, 4, 3, 2), "stopped", limit=90)) == ""  # the same command continues
