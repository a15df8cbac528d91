"""Choices are kept when a run continues; on other hardware they are made anew, said and noted."""

import json
from dataclasses import asdict, replace

import pytest

from minigpt.config.schema import ModelConfig, TrainConfig, TrainerConfig
from minigpt.faults import UserFault
from minigpt.machine import hardware as machine
from minigpt.machine.choices import choose, keep_choices
from minigpt.machine.hardware import Hardware

CONFIG = TrainConfig(batch_tokens=2048, model=ModelConfig(block_size=64))
AMD = Hardware("cpu", "AMD EPYC 9B14", 8, bf16=True, memory_bytes=8 << 30, onednn_fp32=True)
INTEL = Hardware("cpu", "Intel(R) Xeon(R) 8481C", 4, bf16=True, memory_bytes=8 << 30)
H100 = Hardware("cuda", "NVIDIA H100", 16, bf16=True, memory_bytes=80 << 30)
T4 = Hardware("cuda", "Tesla T4", 16, bf16=False, memory_bytes=16 << 30)


def made_on(hardware, config=CONFIG, **changes):
    return asdict(choose(config, hardware, 65)) | changes


def test_on_the_same_hardware_they_are_kept():
    saved = made_on(AMD, threads=3, compile=True, validation_batch=7)
    kept = keep_choices(saved, CONFIG, AMD, 65)
    assert asdict(kept) == saved


@pytest.mark.parametrize(("old", "new"), [(AMD, INTEL), (H100, AMD), (H100, T4), (AMD, H100)])
def test_on_other_hardware_they_are_made_anew(old, new):
    assert keep_choices(made_on(old, threads=3), CONFIG, new, 65) == choose(CONFIG, new, 65)


def test_fp32_never_becomes_less_where_a_run_goes_on():
    """Choices of earlier versions don't say for what hardware they were made."""
    saved = made_on(AMD)
    assert saved.pop("float32_products") == "medium"
    del saved["hardware"]
    assert keep_choices(saved | {"float32_products": "medium"}, CONFIG, INTEL, 65).float32_products == "highest"
    assert keep_choices(saved | {"float32_products": "medium"}, CONFIG, AMD, 65).float32_products == "medium"


def test_bf16_is_not_kept_where_there_is_none():
    saved = made_on(H100)
    del saved["hardware"]
    assert keep_choices(saved, CONFIG, T4, 65).precision == "fp16"
    asked = replace(CONFIG, trainer=TrainerConfig(precision="bf16"))
    assert keep_choices(saved, asked, T4, 65).precision == "bf16"


def test_what_the_command_now_asks_for_wins():
    config = replace(CONFIG, trainer=TrainerConfig(threads=2, micro_batch=4, compile="on"))
    kept = keep_choices(made_on(AMD), config, AMD, 65)
    assert (kept.threads, kept.micro_batch, kept.accumulate, kept.compile) == (2, 4, 8, True)
    assert keep_choices(made_on(AMD), CONFIG, replace(AMD, asked_threads=5), 65).threads == 5


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"device": None}, "device=null"),
        ({"threads": 0}, "threads=0"),
        ({"precision": "fp8"}, "fp8"),
        ({"float32_products": "low"}, "low"),
        ({"colour": 1}, "'colour'"),
        ({"accumulate": 3}, "a step has 32"),
    ],
)
@pytest.mark.parametrize("hardware", [AMD, INTEL])
def test_damaged_choices_are_named_on_any_hardware(damage, named, hardware):
    with pytest.raises(UserFault, match=r"choices\.json .* holds what no run chooses") as fault:
        keep_choices(made_on(AMD) | damage, CONFIG, hardware, 65)
    assert named in str(fault.value)


@pytest.mark.parametrize("content", ["{}", "null", "[1]", "", '{"device": "cpu"}'])
def test_a_damaged_file_of_choices_ends_the_command_with_its_name(run, content):
    run("trainer.max_steps=2")
    (run.path / "choices.json").write_text(content)
    with pytest.raises(UserFault, match=r"choices\.json"):
        run("trainer.max_steps=4")


def test_what_changed_is_said_and_noted(run, capsys):
    run("trainer.max_steps=2", "checkpoint.every_steps=2")
    file = run.path / "choices.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"hardware": "Another CPU", "float32_products": "medium", "threads": 3}))
    capsys.readouterr()
    run("trainer.max_steps=4", "trainer.threads=2")
    event = next(event for event in run.events() if event["event"] == "choices_changed")
    assert event["was"]["threads"] == 3
    assert event["now"]["threads"] == 2
    assert event["was"]["hardware"] == "Another CPU"
    printed = capsys.readouterr().out
    assert "threads 3 -> 2" in printed
    assert "hardware 'Another CPU' ->" in printed
    assert json.loads(file.read_text())["hardware"] == saved["hardware"]


def test_an_unchanged_run_says_nothing(run, capsys):
    run("trainer.max_steps=2", "checkpoint.every_steps=2")
    run("trainer.max_steps=4")
    assert "Choices" not in capsys.readouterr().out
    assert not [event for event in run.events() if event["event"] == "choices_changed"]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, 0),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 0),  # as torchrun sets it by itself
        ({"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, 2),
        ({"OMP_NUM_THREADS": "many"}, 0),
        ({"OMP_NUM_THREADS": "-1"}, 0),
        ({"OMP_NUM_THREADS": "99999999999"}, 4096),
    ],
)
def test_omp_num_threads_is_obeyed(monkeypatch, environment, wanted):
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.asked_threads() == wanted
    hardware = replace(AMD, asked_threads=wanted)
    assert choose(CONFIG, hardware, 65).threads == (wanted or 8)
    typed = replace(CONFIG, trainer=TrainerConfig(threads=7))
    assert choose(typed, hardware, 65).threads == 7


@pytest.mark.parametrize("hardware", [AMD, H100])
def test_the_ranks_of_a_run_share_the_cores(hardware):
    two = replace(CONFIG, trainer=TrainerConfig(devices=2, strategy="ddp"))
    assert choose(two, hardware, 65).threads == hardware.cores // 2


GPT2 = TrainConfig(batch_tokens=2**19, model=ModelConfig(n_layer=12, n_head=12, n_embd=768, block_size=1024))


@pytest.mark.parametrize(
    ("asked", "memory", "vocab_size", "rows"),
    [
        ("auto", 80, 50_257, 0),  # 8192 tokens fit with all of their logits
        ("auto", 12, 50_257, 1280),
        ("auto", 12, 128_256, 512),
        ("auto", 6, 16_383, 0),  # a small vocabulary: as it always was
        ("off", 12, 50_257, 0),
        (700, 80, 50_257, 700),
    ],
)
def test_logits_are_made_in_chunks_where_they_are_too_many(asked, memory, vocab_size, rows):
    card = replace(H100, memory_bytes=memory << 30)
    config = replace(GPT2, trainer=TrainerConfig(loss_chunk=asked))
    choices = choose(config, card, vocab_size)
    assert choices.loss_chunk == rows
    plain = choose(replace(GPT2, trainer=TrainerConfig(loss_chunk="off")), card, vocab_size)
    assert choices.micro_batch >= (2 if rows else 1) * plain.micro_batch
    few = replace(config, trainer=TrainerConfig(loss_chunk=asked, micro_batch=1))
    assert choose(few, card, vocab_size).loss_chunk == (rows if asked == 700 else 0)


def test_a_run_of_before_there_were_chunks_goes_on_without():
    card = replace(H100, memory_bytes=12 << 30)
    saved = asdict(choose(GPT2, card, 50_257))
    assert saved.pop("loss_chunk") == 1280
    assert keep_choices(saved, GPT2, card, 50_257).loss_chunk == 0
    asked = replace(GPT2, trainer=TrainerConfig(loss_chunk=256))
    assert keep_choices(saved | {"loss_chunk": 512}, asked, card, 50_257).loss_chunk == 256
    assert keep_choices(saved | {"loss_chunk": 512}, GPT2, card, 50_257).loss_chunk == 512
