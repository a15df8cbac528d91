"""The rules beyond types: each broken one is named with its remedy, and a legal config has none."""

import json
import os
from pathlib import Path

import pytest

from minigpt.config.check import MAX_WHOLE, check, find_notes
from minigpt.config.commands import CLASSES
from minigpt.config.convert import fitted, from_dict, settings, to_dict
from minigpt.config.schema import DataConfig, PrepareConfig, SampleConfig, TrainConfig


def changed(cls: type, **changes: object):
    """A default config with settings changed; double underscores stand for dots."""
    mapping = to_dict(cls())
    for key, value in changes.items():
        *way, last = key.split("__")
        place = mapping
        for name in way:
            place = place[name]
        place[last] = value
    return from_dict(cls, mapping)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def test_defaults_obey_every_rule():
    assert check(TrainConfig()) == []
    assert check(PrepareConfig()) == []
    assert len(check(SampleConfig())) == 1  # which checkpoint?


def numbers(cls: type) -> list[str]:
    kinds = {key: setting.kind for key, setting in settings(cls).items()}
    return [key for key, kind in kinds.items() if not fitted(kind, 1)[1] and fitted(kind, True)[1]]


def test_every_number_has_a_range():
    for cls in CLASSES.values():
        for key in numbers(cls):
            setting = settings(cls)[key]
            assert (setting.low is None) != (setting.above is None), key


@pytest.mark.parametrize("cls", CLASSES.values())
def test_every_number_is_held_to_its_range(cls):
    """One number at a time: below, on and above its limits, and huge."""
    for key in numbers(cls):
        setting = settings(cls)[key]
        whole = fitted(setting.kind, 0.5)[1] != ""
        high = setting.high or (MAX_WHOLE if whole else None)
        outside = [-1, setting.low - 1 if setting.low is not None else setting.above]
        outside += [high + 1, 10**30] if whole else [high + 0.5] if high is not None else []
        outside += [setting.below] if setting.below is not None else []
        for value in outside:
            config = changed(cls, **{key.replace(".", "__"): value})
            about = [fault for fault in check(config) if fault.startswith(f"{key} must be ")]
            assert len(about) == 1, (key, value)
            assert "got" in about[0]
            assert "\n" not in about[0]
        if key != "tokenizer.vocab_size":  # a rule of its own narrows it
            for inside in [setting.low, high] if setting.above is None else [0.5, high]:
                config = changed(cls, **{key.replace(".", "__"): setting.default if inside is None else inside})
                assert not [fault for fault in check(config) if fault.startswith(f"{key} must be ")], (key, inside)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model__n_head": 12, "model__n_embd": 100}, ["model.n_embd=100", "model.n_head=12", "=96 or 108."]),
        ({"model__n_head": 200}, ["model.n_embd=128", "Use model.n_embd=200."]),
        ({"model__n_head": 6, "model__head_dim": 5, "model__attention": "rotary"}, ["heads of 5", "model.head_dim=6."]),
        ({"model__n_embd": 12, "model__attention": "rotary"}, ["heads of 3", "model.head_dim=4."]),
        ({"model__n_kv_head": 3}, ["model.n_kv_head=3 does not divide model.n_head=4", "one of 1, 2, 4."]),
        ({"model__n_kv_head": 8}, ["model.n_kv_head=8 does not divide", "one of 1, 2, 4."]),
        ({"model__rope_theta": 1e6}, ["rope_theta=1e+06", "model.attention=softmax", "model.attention=rotary."]),
        ({"model__rope_scaling": "llama3", "model__attention": "linear"}, ["rope_scaling=llama3", "attention=linear"]),
        ({"model__rope_low_freq_factor": 4.0}, ["rope_low_freq_factor=4 must be less", "rope_high_freq_factor=4"]),
        ({"batch_tokens": 1000}, ["batch_tokens=1000", "block_size=128", "batch_tokens=896 or 1024."]),
        ({"trainer__micro_batch": 5}, ["micro_batch=5", "of 640 tokens", "batch_tokens=3840 or 4480."]),
        (
            {"trainer__devices": 3, "trainer__strategy": "ddp"},
            ["trainer.devices=3", "of 384 tokens", "batch_tokens=3840 or 4224."],
        ),
        ({"trainer__devices": 2}, ["trainer=ddp trainer.devices=2"]),
        ({"trainer__strategy": "fsdp"}, ["trainer.strategy=fsdp", "got trainer.devices=1", "trainer.devices=N"]),
        (
            {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__shards": 2},
            ["trainer.shards=2 is for trainer=hsdp"],
        ),
        (
            {"trainer__devices": 4, "trainer__strategy": "hsdp", "trainer__shards": 3},
            ["trainer.shards=3: 3 devices to a copy", "are not 4.", "Use trainer.shards=2."],
        ),
        ({"trainer__devices": 4, "trainer__strategy": "hsdp"}, ["trainer.shards=0", "Use trainer.shards=2."]),
        ({"trainer__devices": 2, "trainer__strategy": "hsdp"}, ["trainer.shards=0", "Use trainer=fsdp."]),
        (
            {"trainer__devices": 4, "trainer__strategy": "hsdp", "trainer__shards": 4},
            ["trainer.shards=4: 4 devices to a copy", "and several copies", "Use trainer.shards=2."],
        ),
        (
            {"trainer__devices": 2, "trainer__strategy": "fsdp", "trainer__precision": "fp16"},
            ["trainer.precision=fp16", "Use bf16 or fp32."],
        ),
        ({"trainer__gather": "bf16"}, ["trainer.gather=bf16 is for sharded weights", "trainer.precision=bf16"]),
        ({"trainer__reshard": "on"}, ["trainer.reshard=on is for sharded weights", "Add trainer=fsdp"]),
        ({"trainer__device": "mps", "trainer__precision": "bf16"}, ["mps", "trainer.precision=fp32"]),
        ({"trainer__device": "mps", "trainer__precision": "fp64"}, ["mps", "trainer.precision=fp32"]),
        (
            {"trainer__device": "mps", "trainer__devices": 2, "trainer__strategy": "ddp"},
            ["mps is one device", "trainer.devices=2"],
        ),
        ({"trainer__max_steps": None}, ["no end", "trainer.max_steps, trainer.max_tokens or trainer.max_minutes"]),
        ({"tokenizer__name": ""}, ["tokenizer.name is empty", "Give another"]),
        ({"data__name": "text"}, ["data.source=FILE_OR_DIR"]),
        ({"data__name": "text", "data__source": ""}, ["data.source=FILE_OR_DIR"]),
        ({"data__name": "text", "data__source": "no/such"}, ["'no/such' does not exist", "looked from"]),
        ({"data__name": "text", "data__source": "~/no such, file"}, ["'~/no such, file' does not exist"]),
        ({"data__name": "shakespeare_char", "data__source": "."}, ["reads one file", "'.'"]),
        ({"data__source": "book.txt"}, ["would ignore", "add data=text"]),
        ({"data__dir": ""}, ["data.dir is empty"]),
        ({"data__encoding": "utf-88"}, ["'utf-88'", "utf-8, latin-1"]),
        ({"data__encoding": "hex"}, ["'hex' is not a text encoding"]),
        ({"data__encoding": ""}, ["data.encoding is empty"]),
        ({"run__dir": " "}, ["run.dir is empty"]),
        ({"run__dir": "a\0b"}, ["NUL"]),
        ({"run__dir": "taken"}, ["run.dir='taken' is a file"]),
        ({"init__from": "runs/none"}, ["init.from='runs/none' does not exist"]),
        ({"init__from": ""}, ["init.from=''"]),
        ({"experiment": "a b"}, ["experiment='a b'"]),
        ({"experiment": "../up"}, ["experiment='../up'"]),
        ({"logger__project": " "}, ["logger.project is empty"]),
        ({"samples__prompt": "a\udc80"}, ["not valid UTF-8 at position 1"]),
    ],
)
def test_train_rules(changes, says):
    Path("taken").write_text("x")
    (fault,) = check(changed(TrainConfig, **changes))
    for each in says:
        assert each in fault


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"checkpoint": None}, ["Give checkpoint=", "Try checkpoint=runs/mine"]),
        ({"checkpoint": ""}, ["Give checkpoint="]),
        ({"checkpoint": "runs/other"}, ["'runs/other' does not exist", "Try checkpoint=runs/mine"]),
        ({"prompt_file": "none.txt"}, ["'none.txt' is not a file"]),
        ({"prompt_file": "runs"}, ["'runs' is not a file"]),
        ({"prompt": ["fine", "\ud800"]}, ["not valid UTF-8 at position 0"]),
        ({"stop": ["END", ""]}, ["stop holds an empty string"]),
        ({"device": "mps", "precision": "fp64"}, ["no fp64", "precision=fp32"]),
    ],
)
def test_sample_rules(changes, says):
    os.makedirs("runs/mine")
    (fault,) = check(changed(SampleConfig, **{"checkpoint": "runs/mine", **changes}))
    for each in says:
        assert each in fault


@pytest.mark.parametrize(
    "changes",
    [
        {"data__name": "text", "data__source": "~/notes, mine.txt"},
        {"data__name": "shakespeare_char", "data__source": "~/notes, mine.txt"},
        {"trainer__max_steps": None, "trainer__max_minutes": 0.5},
        {"trainer__max_steps": None, "trainer__max_tokens": 1},
        {"trainer__device": "mps", "trainer__precision": "fp32"},
        {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__micro_batch": 8},
        {"trainer__devices": 4, "trainer__strategy": "hsdp", "trainer__shards": 2},
        {"trainer__devices": 2, "trainer__strategy": "fsdp", "trainer__precision": "bf16", "trainer__gather": "bf16"},
        {"tokenizer__vocab_size": 257},
        {"tokenizer__name": "gpt2", "tokenizer__vocab_size": 100_000},
        {"optimizer__grad_clip": 0.0, "optimizer__weight_decay": 0.0, "optimizer__beta1": 0.0},
        {"run__dir": "not/yet/there", "data__encoding": "latin-1", "experiment": "mine/lr_1e-3"},
        {"init__from": "~"},
    ],
)
def test_legal_choices_pass(changes, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("notes, mine.txt").write_text("text")
    assert check(changed(TrainConfig, **changes)) == []


def test_all_broken_rules_at_once():
    config = changed(
        TrainConfig, model__n_head=3, batch_tokens=100, trainer__devices=2, optimizer__lr=-1.0, data__name="text"
    )
    assert len(check(config)) == 5


def test_a_number_out_of_range_is_named_once():
    """No rule divides by a zero width, nor blames other settings for it."""
    zero = {key.replace(".", "__"): 0 for key in numbers(TrainConfig)}
    faults = check(changed(TrainConfig, **zero))
    assert all(" must be " in fault for fault in faults)
    allowed = {key for key in numbers(TrainConfig) if settings(TrainConfig)[key].low == 0}
    assert len(faults) == len(set(numbers(TrainConfig)) - allowed)


def test_samples_of_conversations_begin_with_a_turn_and_not_with_the_end_of_a_text():
    def notes(name: str) -> str:
        return " ".join(find_notes(changed(TrainConfig, data__name=name, data__mask_documents=True)))

    assert "Live samples begin with end-of-text" in notes("stdlib")
    assert "Live samples" not in notes("chat") + notes("tasks")


def test_a_long_warm_up_is_a_note_and_no_fault():
    config = changed(TrainConfig, trainer__max_steps=20)
    assert check(config) == []
    (note,) = find_notes(config)
    assert "schedule.warmup_steps=100" in note
    assert "schedule.warmup_steps=2." in note
    assert find_notes(TrainConfig()) == []
    assert find_notes(changed(TrainConfig, trainer__max_tokens=4096 * 50)) != []


def test_checking_reads_the_default_of_every_setting():
    """A rule about a setting that was renamed would never run."""
    from minigpt.config.rules import NOTES, RULES

    known = {key for cls in CLASSES.values() for key in settings(cls)}
    assert {key for keys, _ in RULES + NOTES for key in keys} <= known


def test_a_text_that_is_gone_is_no_fault_while_its_tokens_are_kept(tmp_path):
    source, folder = tmp_path / "text.txt", tmp_path / "data"
    config = TrainConfig(data=DataConfig(name="text", source=str(source), dir=str(folder)))
    assert any("does not exist" in fault for fault in check(config))
    (folder / "text-byte-0123456789").mkdir(parents=True)
    (folder / "text-byte-0123456789" / "prepared.json").write_text(json.dumps({"keys": {"source": str(source)}}))
    assert not any("does not exist" in fault for fault in check(config))


def test_ddp_on_one_device_is_noted():
    config = TrainConfig()
    config.trainer.strategy = "ddp"
    assert any("trainer.devices=N" in note for note in find_notes(config))
    config.trainer.devices = 2
    assert not any("trainer.devices=N" in note for note in find_notes(config))
