"""budget=TIME sizes all for my text and machine, says beforehand what I will get, and goes on after a kill."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning
import pytest
import yaml

from minigpt import cli
from minigpt.config.compose import compose
from minigpt.faults import UserFault
from minigpt.report.record import read_record, verdict
from minigpt.rundir.rows import read_rows
from minigpt.sizing import dial, law
from minigpt.training import run as training
from minigpt.training.start import refuse_changed_run
from tests.units.report.run_folder import metric_rows, write_lines, write_run

SPEED = 16_000.0
TINY = law.Size(1, 16, 2, 2, 8, 32, 300, 8, 64, lr=0.02, tied=True)


class Killed(lightning.Callback):
    """Ends a training as a kill does, after some steps."""

    def on_train_batch_end(self, trainer, module, *_):
        if module.state.step == 7:
            raise RuntimeError("killed")


@pytest.fixture
def texts(folder):
    lines = (f"{n} woodchucks would chuck {n * n % 97} logs if {n} could\n" for n in range(900))
    (folder / "text.txt").write_text("".join(lines))
    return ["data.source=text.txt", "trainer.device=cpu", "trainer.threads=1", "samples.max_new_tokens=2"]


@pytest.fixture
def quick(monkeypatch):
    """A machine whose speed is known, and a law of one size, so that a test takes no longer than its steps."""
    speeds = [SPEED]

    def choose(text, seconds, tokens_per_second, fixed):
        size = replace(TINY, steps=12, dropout=0.1, bits_per_byte=2.5, low=2.4, high=2.6, **fixed)
        size = replace(size, passes=size.tokens / text.bytes)
        tokens_per_second(size)
        return size

    monkeypatch.setattr(dial, "choose", choose)
    monkeypatch.setattr(dial, "LEAST_STEPS", 12)
    monkeypatch.setattr(training, "measured", lambda *_, **__: speeds[0])
    monkeypatch.setattr(training, "measured_alone", lambda *_, **__: speeds[0])
    monkeypatch.setattr(training, "piloted", lambda *_, **__: (3.4, 3.0))
    monkeypatch.setattr(training, "piloted_alone", lambda *_, **__: (3.4, 3.0))
    return speeds


def train(*words, callbacks=()):
    config = compose("train", list(words))
    assert training.train(config, callbacks) == 0
    return config


def test_a_budget_becomes_plain_settings_and_a_prediction(texts, quick, capsys):
    train(*texts, "budget=1h", "run.dir=a")
    screen = capsys.readouterr().out
    assert re.search(r"^budget +parameters +layers x width", screen, re.M)
    assert screen.count("tokens to train on") == 1
    assert re.search(r"^1h +7\.\d+ k +1 x 16 +300 +8 +768 +0\.\d+ +0.1 +0 +2\.500 +2\.40 to 2\.60", screen, re.M)
    assert re.search(r"Baselines +\d\.\d+ bits per byte \(7-gram, Kneser-Ney\), \d\.\d+ \(xz\)", screen)
    assert re.search(r"Speed +16,000 tokens/s with 7\.\d+ k parameters", screen)
    assert re.search(r"Pilot +3\.000 bits per byte after [\d.]+ k tokens of the text", screen)
    assert re.search(r"Expected +2\.500 bits per byte \(2\.40 to 2\.60\); reached \d\.\d+", screen)
    assert re.search(r"Time +.* of 1 h", screen)
    budget = json.loads(Path("a/budget.json").read_text())
    assert budget.keys() >= {"seconds", "parameters", "tokens", "passes", "tokens_per_second"}
    assert (budget["predicted_bits_per_byte"], budget["low"], budget["high"]) == (2.5, 2.4, 2.6)
    assert budget["predicted_for_longer"] == 2.5
    assert (budget["seconds"], budget["tokens"], budget["tokens_per_second"]) == (3600, 768, pytest.approx(SPEED))
    config = yaml.safe_load(Path("a/config.yaml").read_text())
    assert (config["budget"], config["experiment"], config["data"]["name"]) == (None, "text", "text")
    sizes = config["model"]["n_layer"], config["tokenizer"]["vocab_size"], config["trainer"]["max_steps"]
    assert sizes == (1, 300, 12)
    assert sum("val/loss" in row for row in read_rows(Path("a/metrics.jsonl"))) == 6
    (words,) = re.findall(r"Command +\S*minigpt train (.*)", screen)
    train(*words.replace("run.dir=a", "run.dir=b").split())  # the settings alone train the same model
    assert weights("a") == weights("b")


def weights(run):
    (checkpoint,) = Path(run).glob("checkpoints/step-000000012")
    return (checkpoint / "model.safetensors").read_bytes()


def test_a_killed_run_goes_on_to_the_same_bytes_whatever_the_machine_s_speed_is_now(texts, quick, capsys):
    train(*texts, "budget=600s", "run.dir=whole")
    words = [*texts, "budget=10min", "checkpoint.every_steps=3"]
    with pytest.raises(RuntimeError, match="killed"):
        train(*words, callbacks=[Killed()])
    quick[0] = SPEED / 3  # another law's choice would follow from it
    capsys.readouterr()
    train(*words)
    screen = capsys.readouterr().out
    assert "continuing after step 6" in screen
    assert "Speed" not in screen
    (folder,) = Path("runs").iterdir()
    assert weights(folder) == weights("whole")
    train(*words)
    assert "This run is finished" in capsys.readouterr().out
    with pytest.raises(UserFault, match=r"whole was begun with budget=600s, got budget=1min"):
        train(*texts, "budget=1min", "run.dir=whole")


def test_typed_settings_win_over_chosen_ones(texts, quick):
    train(*texts, "budget=10min", "run.dir=a", "model.n_layer=2", "optimizer.weight_decay=0.25", "tokenizer=byte")
    config = yaml.safe_load(Path("a/config.yaml").read_text())
    assert (config["model"]["n_layer"], config["model"]["n_embd"], config["model"]["dropout"]) == (2, 16, 0.1)
    assert (config["optimizer"]["weight_decay"], config["tokenizer"]["name"]) == (0.25, "byte")
    settings = json.loads(Path("a/budget.json").read_text())["settings"]
    assert not settings.keys() & {"model.n_layer", "optimizer.weight_decay", "tokenizer.vocab_size"}
    train(*texts, "budget=10min", "run.dir=b", "optimizer=adamw", "schedule.warmup_steps=100")
    assert yaml.safe_load(Path("b/config.yaml").read_text())["schedule"]["warmup_steps"] == 100
    train(*texts, "budget=10min", "run.dir=c", "experiment=shakespeare_char_cpu", "data=text", "tokenizer=bpe")
    assert json.loads(Path("c/budget.json").read_text())["settings"]["schedule.warmup_steps"] == 1  # of 12 steps
    config = compose("train", [*texts, "budget=20min", "model=gpt2"])
    assert config.typed >= {"model.n_layer", "model.block_size", "data.source"}
    assert not config.typed & {"batch_tokens", "optimizer.lr", "trainer.max_steps", "data.name"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["budget=20moons"], "budget='20moons' is no time: a number and s, min, h or d are wanted, like 90s"),
        (["budget=2s"], "budget=2s is too short to start, learn something and validate it. Use budget=15s."),
        (["budget=1min,1h"], "a training has one. minigpt plan budget=1min,1h shows what each would buy"),
        (["budget=1min", "trainer.epochs=3"], "sets how long is trained. Leave out trainer.epochs"),
        (["budget=1min", "trainer.max_steps=9"], "budget=1min sets how long is trained. Leave out trainer.max_steps"),
        (["budget=1min", "data=tasks"], "sizes a new model for one text"),
        (["budget=1min", "data.source=short.txt"], "short.txt holds 40 bytes: budget= sizes a model for at least 10"),
    ],
)
def test_what_no_budget_can_do_is_one_sentence_with_the_least_that_would(texts, quick, words, says):
    Path("short.txt").write_text("too little to learn from, whatever time\n")
    with pytest.raises(UserFault, match=re.escape(says)):
        train(*texts[1:], *([] if any(word.startswith("data") for word in words) else [texts[0]]), *words)
    assert not Path("runs").exists()


def test_a_budget_that_reading_and_validating_use_up_says_what_would_do(texts, quick, monkeypatch):
    monkeypatch.setattr(dial, "REPORT_SHARE", 1e9)
    least = r"budget=30s is too short: .* take .* with this text and model. Use budget=\d+0s or more"
    with pytest.raises(UserFault, match=least):
        train(*texts, "budget=30s")
    monkeypatch.setattr(dial, "REPORT_SHARE", 0.0)
    monkeypatch.setattr(dial, "LEAST_STEPS", 20)
    wanted = "make 12 steps of 64 tokens in it; 20 are wanted. Use budget=3610s or more, or"
    for typed, smaller in (([], "a smaller model"), (["batch_tokens=64"], "smaller batch_tokens")):
        with pytest.raises(UserFault, match=f"{wanted} {smaller}"):
            train(*texts, "budget=1h", *typed)


def test_plan_shows_what_each_time_buys(texts, quick, monkeypatch, capsys):
    monkeypatch.setattr(dial, "FEW_PASSES", 0.01)
    cli.plan([*texts, "budget=1h,10min,60min"])
    screen = capsys.readouterr().out
    rows = re.findall(r"^(\w+) .* 2\.500 +2\.40 to 2\.60$", screen, re.M)
    assert rows == ["10min", "1h", "60min"]  # one time may be written in two ways
    assert "7-gram, Kneser-Ney" in screen
    assert re.search(r"^Note +10min, 1h, 60min: this ends after about .*: more passes would", screen, re.M)
    (picture,) = re.findall(r"Picture +(\S+\.png)", screen)
    assert Path(picture).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not Path("runs").exists()


def test_all_rows_of_a_plan_use_all_speeds_that_were_measured(texts, quick, monkeypatch, capsys):
    def choose(text, seconds, tokens_per_second, fixed):
        size = replace(TINY, n_layer=1 if seconds < 600 else 100 if seconds < 6000 else 9999, passes=9.0, **fixed)
        return replace(size, steps=int(seconds * tokens_per_second(size) / size.batch_tokens))

    monkeypatch.setattr(dial, "choose", choose)
    cli.plan([*texts, "budget=5min,1h,8h"])  # 8h: too large to measure; 1h is faster than 5min lets expect
    assert "ends after" not in capsys.readouterr().out


def test_the_machine_is_measured_by_training_and_nothing_is_left(texts, tmp_path):
    config = dial.applied(compose("train", [*texts, "experiment=text"]), {"model.n_layer": 1, "trainer.max_steps": 5})
    before = sorted(tmp_path.rglob("*"))
    measure = partial(training.measured, hardware=training.find_device(config), processes=training.Processes())
    assert measure(config, 512, 0.05) > 100
    assert sorted(tmp_path.rglob("*")) == before


def test_a_text_too_short_for_the_time_is_named_before_the_first_step(texts, quick, monkeypatch, capsys):
    monkeypatch.setattr(dial, "FEW_PASSES", 0.01)
    train(*texts, "budget=1h", "run.dir=a")
    before = capsys.readouterr().out.partition("Command")[0]
    assert re.search(r"Note +this ends after about .*: more passes .* by heart. More text would use the time", before)


def test_a_short_training_on_the_text_gives_the_law_its_level_and_pace(texts, tmp_path):
    small = ["model.n_embd=32", "model.n_head=2", "model.n_kv_head=2", "model.n_hidden=64"]
    config = compose("train", [*texts, "experiment=text", *small])
    config = dial.applied(config, {"model.n_layer": 1, "trainer.max_steps": 20})
    before = sorted(tmp_path.rglob("*"))
    prepared = dial.prepare(config.data, config.tokenizer)
    here = {"hardware": training.find_device(config), "processes": training.Processes()}
    halfway, bits = training.piloted(config, prepared, **here)
    assert 0 < bits < halfway < 8
    assert {path.name for path in sorted(tmp_path.rglob("*")) if path not in before} >= {"data"}
    assert not (tmp_path / "runs").exists()
    text = law.Text(7_000_000, 1.75, 1.45)
    pilot, size = law.pilot_of(text, {}, 4), law.choose(text, 60, lambda size: 1e5 / size.multiplied * 1e6, {})
    slow, fast = (law.leveled(text, pilot, halfway, 1.4) for halfway in (1.5, 1.7))
    assert law.bits_per_byte(slow, pilot) == law.bits_per_byte(fast, pilot) == pytest.approx(1.4)
    assert law.bits_per_byte(fast, size) < law.bits_per_byte(slow, size) < 1.4


def test_many_passes_are_named_before_the_first_step_and_overfitting_at_the_end(run, capsys, tmp_path):
    words = ("trainer.epochs=5", "batch_tokens=1024", "schedule.warmup_steps=100")
    assert refuse_changed_run(run(*words), compose("train", run.arguments(*words))) == []
    screen = capsys.readouterr().out
    assert "WARNING    6 passes over the text without dropout: it is learned by heart. Type budget=TIME" in screen
    assert "rises until step 100, and the training ends at 6: it learns little. Type schedule.warmup_steps=0" in screen
    assert screen.count("batch_tokens=") == 2
    run("trainer.max_steps=6", *words[1:], f"run.dir={tmp_path / 'steps'}")
    assert "Type schedule.warmup_steps=0\n" in capsys.readouterr().out  # smaller batches would only learn from less
    assert run.rows()[-1]["tokens"] >= 5 * 1080 > run.rows()[-1]["tokens"] - 1024
    path = write_run(tmp_path)
    rows = metric_rows(200)
    rows[-1]["val/loss"] += 1
    write_lines(path / "metrics.jsonl", rows)
    (path / "baseline.json").write_text('{"baselines": [{"name": "xz", "bits_per_byte": 1.0}]}')
    cli.runs([str(path.parent)])
    assert "overfit after step 160" in capsys.readouterr().out
    cli.report([f"run.dir={path}"])
    assert "the model learns this text by heart" in (path / "report.html").read_text()
    says = verdict(read_record(path))
    assert says.endswith("overfit after step 160: more text would help, more steps would not")
    assert "still falling" not in says


def test_experiment_text_validates_ten_times():
    config = compose("train", ["experiment=text", f"data.source={__file__}"])
    assert config.trainer.max_steps >= 10 * config.validate.every_steps
