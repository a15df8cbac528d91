"""How a budget is divided: the pilot's share of it, and the speed of a GPU."""

from types import SimpleNamespace

import pytest

from minigpt.config.check import check
from minigpt.config.compose import compose
from minigpt.config.convert import values
from minigpt.ranks.group import Processes
from minigpt.sizing.dial import COPIES_RANGE, Dial, applied
from minigpt.sizing.law import DECAY, Text, candidates, choose, fitted, pilot_of, train
from minigpt.sizing.speeds import LAUNCHING, Speeds, flops_of, work_of


@pytest.mark.parametrize(
    ("seconds", "speed", "spent", "steps"),
    [
        *((20, 45e3, 0, 128), (60, 45e3, 0, 256), (120, 45e3, 0, 512), (240, 45e3, 0, 1024), (3600, 45e3, 0, 1024)),
        *((20, 15e3, 0, None), (60, 15e3, 0, 128), (120, 15e3, 0, 128), (60, 45e3, 35, None)),
    ],
)
def test_a_longer_budget_has_a_longer_pilot(tmp_path, seconds: float, speed: float, spent: float, steps: int | None):
    tried = []

    def pilot(config, _):
        tried.append(config.trainer.max_steps)
        return 2.2, 2.0

    config = compose("train", ["experiment=demo", f"budget={seconds:g}s"])
    config.since -= spent
    sizer = Dial(config, "cpu", lambda *_: speed, pilot, seconds, Processes())
    text = Text(10**7, 1.7, 1.9)
    leveled = sizer.try_text(SimpleNamespace(folder=tmp_path), text)
    assert tried == [] if steps is None else tried == [pytest.approx(steps, rel=0.03)]
    assert (leveled == text) == (steps is None)


def test_a_longer_pilot_that_is_kept_takes_the_place_of_a_short_one(tmp_path, capsys):
    tried = []

    def leveled(seconds: float, *typed: str) -> Text:
        sizer = dial(*typed, seconds=seconds)
        sizer.pilot = lambda config, _: tried.append(config.trainer.max_steps) or (2.2 + 0.01 * len(tried), 2.0)
        return sizer.try_text(SimpleNamespace(folder=tmp_path), Text(10**7, 1.7, 1.9))

    short, long = leveled(60.0), leveled(600.0)
    assert (len(tried), tried[0]) == (2, pytest.approx(128, rel=0.03))
    assert abs(short.pace - 1) < 0.01 < abs(long.pace - 1)
    assert leveled(60.0) == leveled(60.0, "optimizer.lr=0.001") == long
    assert len(tried) == 2
    assert leveled(60.0, "model.n_embd=80", "model.block_size=64") == long
    assert leveled(60.0, "tokenizer.vocab_size=300").level != long.level
    assert capsys.readouterr().out.count("Pilot ") == 6
    assert len(tried) == 3


@pytest.mark.parametrize("typed", [{"batch_tokens": 8192}, {"optimizer.lr": 0.001, "optimizer.matrix_lr": 0.002}])
def test_a_pilot_keeps_its_batch_and_rates_whatever_is_typed(tmp_path, typed: dict[str, float]):
    tried = []

    def pilot(config, _):
        tried.append((config.batch_tokens, config.optimizer.lr, config.optimizer.matrix_lr, config.trainer.max_steps))
        return 2.2, 2.0

    sizer = dial(*(f"{key}={value}" for key, value in typed.items()), seconds=60.0)
    sizer.pilot = pilot
    text = sizer.try_text(SimpleNamespace(folder=tmp_path), Text(10**7, 1.7, 1.9))
    assert tried == [(1024, 0.02, 0.015, pytest.approx(128, rel=0.03))]
    size = sizer.choose(text, 10**5, "60s", lambda: 10.0)
    config = applied(sizer.config, sizer.settings(size))
    assert typed.items() <= values(config).items()
    notes = [note for note in sizer.limits(text, size, 10.0, 60.0) if "rates" in note]
    assert len(notes) == ("optimizer.lr" in typed)


def test_a_batch_made_whole_has_its_own_forecast():
    text, sizer = Text(10**7, 1.7, 1.9), dial("trainer.strategy=ddp", "trainer.devices=2", "trainer.micro_batch=64")
    size = choose(text, 400.0, sizer.speeds, sizer.fixed)
    whole = sizer.whole(text, size)
    again = train(text, whole, whole.tokens, {"batch_tokens": whole.batch_tokens})
    assert whole.batch_tokens % (whole.block_size * 2 * 64) == 0
    assert whole.bits_per_byte == pytest.approx(again.bits_per_byte, rel=1e-3)
    assert whole.low < whole.bits_per_byte < whole.high
    assert whole.bits_per_byte > 1.05 * size.bits_per_byte


def test_a_typed_width_leaves_the_layers_open():
    few, many = (dial("model.n_embd=256", seconds=seconds) for seconds in (60.0, 60_000.0))
    layers = [sizer.settle(Text(10**7, 1.7, 1.9), 0.8 * sizer.seconds).n_layer for sizer in (few, many)]
    assert layers[0] < 5 < layers[1]


@pytest.mark.parametrize(("budget", "seconds"), [(30.0, 0.6), (600.0, 2.0), (3600.0, 9.0)])
def test_a_long_budget_measures_speeds_for_longer(budget: float, seconds: float):
    took = []
    config = compose("train", ["experiment=text", "data.source=README.md", f"budget={budget:g}s"])
    sizer = Dial(config, "cpu", lambda *call: took.append(call[2]) or 1e4, lambda *_: (2.2, 2.0), budget, Processes())
    sizer.settle(Text(10**7, 1.7, 1.9), 0.8 * budget)
    assert took == pytest.approx([seconds] * max(1, len(took)))


@pytest.mark.parametrize(
    ("typed", "shape"),
    [
        ("model.n_embd=16", (16, 1, 1, 16, 64)),
        ("model.n_embd=101", (101, 1, 1, 100, 288)),
        ("model.n_embd=96", (96, 2, 2, 48, 256)),
        ("model.n_embd=320", (320, 5, 5, 64, 864)),
        ("model.n_embd=96 model.n_head=3", (96, 3, 3, 32, 256)),
        ("model.n_embd=96 model.head_dim=0 model.n_kv_head=1 model.n_hidden=100", (96, 2, 1, 48, 100)),
        ("model.n_head=4", (64, 4, 4, 16, 192)),
    ],
)
def test_what_a_typed_shape_leaves_open_follows_from_its_width(typed: str, shape: tuple[int, ...]):
    sizer = dial("model.block_size=300", *typed.split(), seconds=60.0)
    assert not check(sizer.config)  # what is chosen need not fit what is typed
    text = Text(10**7, 1.7, 1.9)
    size = sizer.whole(text, train(text, fitted(next(candidates(text)), sizer.fixed), 1e6, sizer.fixed))
    model = applied(sizer.config, sizer.settings(size)).model
    assert (size.n_embd, size.n_head, size.n_kv_head, size.head_dim, size.n_hidden) == shape
    assert (model.n_embd, model.n_head, model.n_kv_head, model.n_hidden) == shape[:3] + shape[4:]


@pytest.mark.parametrize(("typed", "fraction"), [([], 0.042), (["data.val_fraction=0.5"], 0.5)])
def test_of_a_large_text_no_more_is_validated_than_the_baselines_are(tmp_path, monkeypatch, typed, fraction):
    monkeypatch.setattr("minigpt.sizing.dial.VAL_BYTES", 420)
    (tmp_path / "text.txt").write_text("to bé\nor no\n" * 770)  # 10 kB
    words = [f"data.source={tmp_path / 'text.txt'}", f"data.dir={tmp_path / 'data'}", *typed]
    config = compose("train", ["experiment=text", *words, "budget=60s"])
    sizer = Dial(config, "cpu", lambda *_: 45_000.0, lambda *_: (2.2, 2.0), 60.0, Processes())
    prepared, text = sizer.read(50.0)
    assert prepared.val.bytes == pytest.approx(fraction * 10_010, abs=1)
    assert text.error == COPIES_RANGE  # all of its passages stand in both splits
    assert sizer.settings(pilot_of(text, {})).get("data.val_fraction", 0.5) == fraction


def test_on_a_gpu_a_step_takes_as_long_as_its_launches_until_the_gpu_is_busy(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 500)
    words = [f"data.source={tmp_path / 'text.txt'}", f"data.dir={tmp_path / 'data'}"]

    def seconds_of(size):  # an H100's: 4 ms a layer to launch, 100 TFLOP/s
        return max(
            0.004 * size.model.n_layer, size.batch_tokens * 6 * size.model.n_layer * 12 * size.model.n_embd**2 / 1e14
        )

    def chosen(budget):
        def measure(config, *_):
            compiled.append(config.trainer.compile)
            return config.batch_tokens / seconds_of(config) * (1.5 if compiled[-1] == "on" else 1)

        compiled = []
        config = compose("train", [*words, "experiment=text", f"budget={budget}"])
        sizer = Dial(config, "cuda", measure, lambda *_: (2.2, 2.0), float(budget[:-1]), Processes())
        sizer.read(50.0)
        sizer.fixed.pop("vocab_size")
        size = sizer.choose(Text(10**8, 2.0, 2.3), 1000, budget, lambda: 10.0)
        settings = sizer.settings(size)
        assert settings["tokenizer.dropout"] == 0  # a GPU would wait for it
        true = size.batch_tokens / seconds_of(applied(config, settings))
        for measured in sizer.speeds.measured:
            known = measured.batch_tokens / seconds_of(applied(config, sizer.settings(measured)))
            assert 1 / LAUNCHING < sizer.speeds(measured) / sizer.speeds.gain / known < 1.15
        return size, settings["trainer.compile"], sizer.speeds(size) / true, set(compiled)

    size, compiles, error, compiled = chosen("60s")
    assert (compiles, compiled) == ("off", {"off"})
    assert 0.7 < error < 1.3
    assert size.batch_tokens >= 8192  # more tokens are free
    assert "4.0 ms a step for each layer" in capsys.readouterr().out
    _, compiles, error, compiled = chosen("600s")
    assert (compiles, compiled) == ("on", {"off", "on"})
    assert 1.0 < error < 2.0


@pytest.mark.parametrize("typed", ["optimizer=adamw", "trainer.patience=2"])
def test_weights_are_not_averaged_where_the_law_does_not_know_the_last_step_or_the_optimizer(typed):
    sizer = dial(typed, seconds=60.0)
    size = sizer.settle(Text(200_000, 2.1, 2.6), 40.0)
    assert (size.average_fraction, size.final_lr_fraction) == (0.0, 0.0)
    assert sizer.settings(size).get("optimizer.average_fraction", 0.0) == 0.0


def test_a_long_budget_on_a_cpu_compiles_if_that_is_faster():
    def tokens(compiled, n_bytes=10**8):
        config = compose("train", ["experiment=text", "data.source=README.md", "budget=10min"])
        speeds = {"auto": 1000.0, "on": compiled}
        sizer = Dial(
            config, "cpu", lambda sized, *_: speeds[sized.trainer.compile], lambda *_: (2.2, 2.0), 600.0, Processes()
        )
        size = sizer.choose(Text(n_bytes, 2.0, 2.3), 1000, "10min", lambda: 10.0)
        return sizer.settings(size).get("trainer.compile"), size.tokens

    (on, more), (off, fewer) = tokens(1400.0), tokens(500.0)
    assert (on, off) == ("on", "off")
    assert 1.2 < more / fewer < 1.5
    assert tokens(1400.0, 20_000)[0] is None  # ten passes over so little text take less time than compiling


def dial(*typed, seconds=600.0, compiled=1.0):
    config = compose("train", ["experiment=text", "data.source=README.md", f"budget={seconds:g}s", *typed])

    def speed(sized, *_):
        numbers = 12 * sized.model.n_layer * sized.model.n_embd**2 + 4096 * sized.model.n_embd
        return (compiled if sized.trainer.compile == "on" else 1.0) * 1e10 / numbers

    return Dial(config, "cpu", speed, lambda *_: (2.2, 2.0), seconds, Processes())


@pytest.mark.parametrize("power", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("seconds", [35.0, 80.0])
def test_a_size_is_chosen_whose_speed_only_a_measurement_shows(power: float, seconds: float):
    text = Text(7_200_000, 1.834, 1.247, 2.17)

    def speed(size, *_):  # FLOP/s grow with a token's FLOPs, as on a CPU
        return size.batch_tokens / (0.002 + work_of(size) / (1e11 * (flops_of(size) / 6e6) ** power))

    sizer = dial(seconds=seconds)
    sizer.speeds = Speeds(speed, 1e11, 0.1 * seconds, sizer.elapsed)
    size, best = sizer.settle(text, seconds), choose(text, seconds, speed, {})
    came = train(text, size, seconds * speed(size), {}).bits_per_byte
    assert came < 1.005 * best.bits_per_byte
    assert sizer.speeds(size) == pytest.approx(speed(size), rel=0.1)


@pytest.mark.parametrize("compiled", [0.7, 1.4])
def test_measuring_compiled_code_keeps_the_number_of_passes(compiled: float):
    sizer = dial("optimizer=adamw", seconds=3600.0, compiled=compiled)
    size = sizer.choose(Text(500_000, 2.0, 2.3), 1000, "1h", lambda: 10.0)
    assert "trainer.compile" in sizer.others
    assert size.passes < 4.1


@pytest.mark.parametrize("typed", ["trainer.micro_batch=16", "model.block_size=4096"])
def test_a_batch_that_is_made_whole_decays_as_much_in_a_pass(typed: str):
    size = dial(typed).settle(Text(1_000_000, 2.0, 2.3), 400.0)
    assert size.weight_decay * size.matrix_lr * size.steps / size.passes == pytest.approx(DECAY, rel=0.05)


@pytest.mark.parametrize("name", ["char", "byte", "gpt2"])
def test_no_bpe_dropout_is_forecast_where_none_is_set(name: str):
    sizer = dial(f"tokenizer={name}")
    size = sizer.settle(Text(1_000_000, 2.0, 2.3), 400.0)
    assert size.bpe_dropout == applied(sizer.config, sizer.settings(size)).tokenizer.dropout == 0.0


@pytest.mark.parametrize("typed", ["model.n_kv_head=2", "batch_tokens=256"])
def test_a_size_fits_what_is_typed(typed: str):
    sizer = dial(typed)
    applied(sizer.config, sizer.settings(sizer.settle(Text(1_000_000, 2.0, 2.3), 400.0)))
