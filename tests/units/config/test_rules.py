"""The rules beyond types: each broken one is named with its remedy, and a legal config has none."""

import json
from pathlib import Path

import pytest

from minigpt.config.check import check
from minigpt.config.commands import CLASSES
from minigpt.config.convert import assign, checked_value, settings
from minigpt.config.rules import RULES
from minigpt.config.schema import PrepareConfig, SampleConfig, TrainConfig

pytestmark = pytest.mark.usefixtures("folder")


def changed(cls: type, changes: dict[str, object]):
    """A default config with settings changed."""
    config = cls()
    for key, value in changes.items():
        assign(config, key, value)
    return config


def test_defaults_obey_every_rule():
    assert check(TrainConfig()) == check(PrepareConfig()) == []
    assert len(check(SampleConfig())) == 1  # which checkpoint?


def test_every_rule_reads_settings_that_exist():
    known = {key for cls in CLASSES.values() for key in settings(cls)}
    assert {key for keys, _ in RULES for key in keys} <= known


def numbers(cls: type) -> list[str]:
    kinds = {key: setting.kind for key, setting in settings(cls).items()}
    return [key for key, kind in kinds.items() if not checked_value(kind, 1)[1] and checked_value(kind, True)[1]]


@pytest.mark.parametrize("cls", CLASSES.values())
def test_every_number_is_held_to_its_range(cls):
    """One number at a time: below, on and above its limits, and huge."""
    for key in numbers(cls):
        setting = settings(cls)[key]
        assert (setting.low is None) != (setting.above is None), key
        outside = [-1, setting.low - 1 if setting.low is not None else setting.above]
        outside += [setting.high + 1] if setting.high is not None else []
        outside += [setting.below] if setting.below is not None else []
        for value in outside:
            about = [fault for fault in check(changed(cls, {key: value})) if fault.startswith(f"{key} must be ")]
            assert len(about) == 1, (key, value)
            assert ", got " in about[0]
        for inside in [setting.low, setting.high] if setting.above is None else [0.5, setting.high]:
            config = changed(cls, {key: setting.default if inside is None else inside})
            assert not [fault for fault in check(config) if fault.startswith(f"{key} must be ")], (key, inside)


DEVICES, STRATEGY = "trainer.devices", "trainer.strategy"
TEXT = {"data.name": "text"}
LORA = {"adapter.name": "lora", "init.from": "here"}
BROKEN = [
    ({"model.n_head": 12, "model.n_embd": 100}, ["model.n_embd=100", "model.n_head=12", "=96 or 108."]),
    ({"model.n_head": 6, "model.head_dim": 5, "model.attention": "rotary"}, ["even width, got 5", "model.head_dim=6."]),
    ({"model.n_kv_head": 3}, ["model.n_kv_head=3 does not divide model.n_head=4", "one of 1, 2, 4."]),
    ({"batch_tokens": 1000}, ["batch_tokens=1000", "block_size=128", "batch_tokens=896 or 1024."]),
    ({"trainer.micro_batch": 5}, ["micro_batch=5", "of 640 tokens", "batch_tokens=3840 or 4480."]),
    ({DEVICES: 3, STRATEGY: "ddp"}, ["trainer.devices=3", "of 384 tokens", "batch_tokens=3840 or 4224."]),
    ({DEVICES: 2}, ["Type trainer=ddp trainer.devices=2"]),
    ({STRATEGY: "fsdp"}, ["trainer.strategy=fsdp", "got trainer.devices=1", "trainer.devices=N"]),
    ({DEVICES: 2, STRATEGY: "ddp", "trainer.shards": 2}, ["trainer.shards=2 is for trainer=hsdp"]),
    ({DEVICES: 4, STRATEGY: "hsdp", "trainer.shards": 3}, ["3 devices to a copy", "are not 4. Use trainer.shards=2."]),
    ({DEVICES: 2, STRATEGY: "hsdp"}, ["trainer.shards=0", "Use trainer=fsdp."]),
    ({DEVICES: 2, STRATEGY: "fsdp", "trainer.precision": "fp16"}, ["trainer.precision=fp16", "Use bf16 or fp32."]),
    ({"trainer.device": "mps", "trainer.precision": "bf16"}, ["mps", "trainer.precision=fp32"]),
    ({"trainer.max_steps": None}, ["no end", "trainer.max_steps, trainer.max_tokens or trainer.max_minutes"]),
    ({"tokenizer.name": ""}, ["tokenizer.name is empty", "Give another"]),
    ({"tokenizer.name": "char", "tokenizer.dropout": 0.1}, ["dropout=0.1 is for texts and tokenizer=bpe or gpt2"]),
    ({"tokenizer.dropout": 0.1, "trainer.max_minutes": 5.0}, ["tokenizer.dropout is for a part of the steps", "Leave"]),
    ({"tokenizer.file": "here"}, ["tokenizer=bpe would ignore tokenizer.file=", "add tokenizer=file"]),
    ({"tokenizer.name": "file", "tokenizer.file": "none"}, ["tokenizer.file='none' is not a file (looked from"]),
    ({"tokenizer.name": "char", "data.mask_documents": True}, ["tokenizer=char has none"]),
    (TEXT, ["data=text needs your text. Add data.source=FILE_OR_DIR."]),
    (TEXT | {"data.source": "heree"}, ["'heree' does not exist", "Did you mean here?"]),
    (TEXT | {"data.source": "no/such"}, ["'no/such' does not exist", "looked from"]),
    (TEXT | {"data.source": "here", "data.val_source": "none"}, ["data.val_source='none' does not exist"]),
    ({"data.source": "book.txt"}, ["would ignore", "add experiment=text"]),
    ({"data.mix": {"none": 1.0}}, ["data.mix='none' does not exist"]),
    ({"data.mix": {"here": 0.0}}, ["the share 0; wanted a number above 0"]),
    ({"data.name": "tasks"}, ["Use data.mask_documents=true."]),
    ({"data.dir": ""}, ["data.dir is empty"]),
    ({"data.encoding": "utf-88"}, ["'utf-88'", "utf-8, latin-1"]),
    ({"run.dir": "here"}, ["run.dir='here' is a file"]),
    ({"init.from": "runs/none"}, ["init.from='runs/none' does not exist"]),
    ({"init.experiment": "demo", DEVICES: 2, STRATEGY: "ddp"}, ["init.experiment=demo is for one device"]),
    ({"adapter.name": "lora"}, ["adapter=lora needs a trained model"]),
    ({"adapter.rank": 4}, ["shape an adapter. Add adapter=lora"]),
    ({"adapter.targets": "out,dwon", **LORA}, ["no 'dwon', but all, qkv, out, up, down."]),
    ({"adapter.targets": "q,qkv", **LORA}, ["the blocks have no 'q'", "but all, qkv, out"]),
    ({"objective.name": "grpo", "init.from": ".", "batch_tokens": 1024}, ["data=stdlib has none. Use data=tasks."]),
]


@pytest.mark.parametrize(("changes", "says"), BROKEN)
def test_a_broken_rule_is_named_with_its_remedy(changes, says):
    Path("here").write_text("x")
    (fault,) = check(changed(TrainConfig, changes))
    assert all(part in fault for part in says), fault


@pytest.mark.parametrize(
    "changes",
    [
        TEXT | {"data.source": "~/notes, mine.txt"},
        {"trainer.max_steps": None, "trainer.max_minutes": 0.5},
        {"trainer.device": "mps", "trainer.precision": "fp32"},
        {DEVICES: 2, STRATEGY: "ddp", "trainer.micro_batch": 8},
        {DEVICES: 4, STRATEGY: "hsdp", "trainer.shards": 2},
        {DEVICES: 2, STRATEGY: "fsdp", "trainer.precision": "bf16", "trainer.gather": "bf16"},
        {"optimizer.grad_clip": 0.0, "optimizer.weight_decay": 0.0, "optimizer.beta1": 0.0},
        {"run.dir": "not/yet/there", "data.encoding": "latin-1", "experiment": "mine/lr_1e-3"},
        {"init.from": "~"},
        {"init.from": "owner/model"},
    ],
)
def test_legal_choices_pass(changes, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("notes, mine.txt").write_text("text")
    assert check(changed(TrainConfig, changes)) == []


def test_a_number_out_of_range_is_named_once():
    """No rule divides by a zero width, nor blames other settings for it."""
    faults = check(changed(TrainConfig, dict.fromkeys(numbers(TrainConfig), 0)))
    assert all(" must be " in fault for fault in faults)
    allowed = {key for key in numbers(TrainConfig) if settings(TrainConfig)[key].low == 0}
    assert len(faults) == len(set(numbers(TrainConfig)) - allowed)


def test_a_text_that_is_gone_is_no_fault_while_its_tokens_are_kept(tmp_path):
    config = changed(TrainConfig, TEXT | {"data.source": f"{tmp_path}/text.txt"})
    assert any("does not exist" in fault for fault in check(config))
    (tmp_path / "data/text-byte-0123").mkdir(parents=True)
    facts = json.dumps({"keys": {"source": f"{tmp_path}/text.txt"}})
    (tmp_path / "data/text-byte-0123/prepared.json").write_text(facts)
    assert check(config) == []


def test_a_run_that_continues_does_not_need_the_weights_that_it_began_with(tmp_path):
    config = changed(TrainConfig, {"init.from": "gone/for/good", "run.dir": "run"})
    assert len(check(config)) == 1
    (tmp_path / "run/checkpoints/step-000000001").mkdir(parents=True)
    assert check(config) == []
