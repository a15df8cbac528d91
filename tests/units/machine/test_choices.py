"""Automatic choices: pure functions of config and hardware, kept when a run continues on the same hardware."""

import json
from dataclasses import asdict, replace

import pytest

from minigpt.config.schema import ModelConfig, TrainConfig, TrainerConfig
from minigpt.machine import hardware
from minigpt.machine.choices import choose, keep_choices, usable_memory
from minigpt.machine.hardware import Hardware, peak_flops
from minigpt.machine.memory import step_memory

CONFIG = TrainConfig(batch_tokens=2048, model=ModelConfig(block_size=64))
AMD = Hardware("cpu", "AMD EPYC 9B14", 8, bf16=True, memory_bytes=8 << 30, onednn_fp32=True)
INTEL = Hardware("cpu", "Intel(R) Xeon(R) 8481C", 2, bf16=True, memory_bytes=8 << 30)
H100 = Hardware("cuda", "NVIDIA H100", 16, bf16=True, memory_bytes=80 << 30)
T4 = Hardware("cuda", "Tesla T4", 16, bf16=False, memory_bytes=16 << 30)
GPT2 = TrainConfig(batch_tokens=2**19, model=ModelConfig(n_layer=12, n_head=12, n_embd=768, block_size=1024))
XL = TrainConfig(batch_tokens=2**19, model=ModelConfig(n_layer=48, n_head=25, n_embd=1600, block_size=1024))


def saved_on(hardware, config=CONFIG, **changes):
    return asdict(choose(config, hardware, 65)) | changes


def test_what_is_left_open_follows_from_the_hardware():
    on_cpu, on_gpu = choose(CONFIG, INTEL, 65), choose(CONFIG, H100, 65)
    assert (on_cpu.precision, on_cpu.compile, on_cpu.attention_kernel, on_cpu.threads) == ("bf16", False, "explicit", 2)
    assert (on_gpu.precision, on_gpu.compile, on_gpu.attention_kernel) == ("bf16", True, "fused")
    assert choose(CONFIG, T4, 65).precision == "fp16"
    assert choose(CONFIG, replace(INTEL, bf16=False), 65).precision == "fp32"
    assert choose(CONFIG, AMD, 65).float32_products == "medium"
    two = replace(CONFIG, trainer=TrainerConfig(devices=2, strategy="ddp"))
    assert choose(two, AMD, 65).threads == 4


def test_what_the_config_says_is_kept():
    trainer = TrainerConfig(precision="fp32", compile="off", attention_kernel="explicit", threads=1, micro_batch=4)
    choices = choose(replace(CONFIG, trainer=trainer), H100, 65)
    assert (choices.precision, choices.compile, choices.attention_kernel) == ("fp32", False, "explicit")
    assert (choices.threads, choices.micro_batch, choices.accumulate) == (1, 4, 8)


def test_a_cpu_compiles_only_where_the_run_is_long_enough():
    config = TrainConfig(batch_tokens=8192, model=ModelConfig(n_layer=6, n_embd=384, block_size=256))
    for trainer, wanted in (
        (TrainerConfig(max_steps=200), True),
        (TrainerConfig(max_steps=200, compile="off"), False),
        (TrainerConfig(max_steps=100), False),
        (TrainerConfig(max_steps=100, max_tokens=10**8), True),
        (TrainerConfig(max_steps=None, max_minutes=60.0), False),
    ):
        assert choose(replace(config, trainer=trainer), INTEL, 65).compile == wanted
    dropped = replace(config, model=replace(config.model, dropout=0.2), trainer=TrainerConfig(max_steps=1800))
    assert not choose(dropped, INTEL, 65).compile


@pytest.mark.parametrize(
    ("typed", "memory", "vocab_size", "rows"),
    [
        ("auto", 80, 50_257, 0),  # 8192 tokens fit with all of their logits
        ("auto", 8, 50_257, 1280),
        ("auto", 12, 128_256, 512),
        ("auto", 6, 16_383, 0),  # a small vocabulary
        ("off", 12, 50_257, 0),
        (700, 80, 50_257, 700),
    ],
)
def test_logits_are_made_in_chunks_where_they_are_too_many(typed, memory, vocab_size, rows):
    card = replace(H100, memory_bytes=memory << 30)
    config = replace(GPT2, trainer=TrainerConfig(loss_chunk=typed))
    choices = choose(config, card, vocab_size)
    assert choices.loss_chunk == rows
    assert step_memory(config, choices, vocab_size).peak <= usable_memory(config, card)


@pytest.mark.parametrize("devices", [8, 16])
@pytest.mark.parametrize("reshard", ["auto", "on", "off"])
def test_sharded_weights_leave_room_for_micro_batches(devices, reshard):
    """Each device holds a part of weights, gradients and averages; gathered weights are freed where memory is short."""
    card = replace(H100, memory_bytes=24 * 10**9)
    config = replace(XL, trainer=TrainerConfig(strategy="fsdp", devices=devices, reshard=reshard))
    choices = choose(config, card, 50_257)
    peak, room = step_memory(config, choices, 50_257).peak, usable_memory(config, card)
    if reshard == "off":  # gathered weights and gradients alone take 12.5 GB
        assert choices.micro_batch < 4
    else:
        assert choices.reshard
        assert choices.micro_batch >= 2
        assert peak <= room
        larger = replace(choices, micro_batch=2 * choices.micro_batch, accumulate=max(1, choices.accumulate // 2))
        assert step_memory(config, larger, 50_257).peak > room or choices.accumulate == 1
    plenty = choose(config, replace(card, memory_bytes=60 * 10**9), 50_257)
    assert plenty.accumulate > 1
    assert plenty.reshard == (reshard == "on")  # gathered once a step


def test_choices_are_kept_on_the_same_hardware():
    saved = saved_on(AMD, threads=3, compile=True, validation_batch=7)
    assert asdict(keep_choices(saved, CONFIG, AMD, 65)) == saved


@pytest.mark.parametrize(("old", "new"), [(AMD, INTEL), (H100, AMD), (H100, T4), (AMD, H100)])
def test_on_other_hardware_they_are_made_anew(old, new):
    assert keep_choices(saved_on(old, threads=3), CONFIG, new, 65) == choose(CONFIG, new, 65)


def test_what_the_command_now_names_wins():
    config = replace(CONFIG, trainer=TrainerConfig(threads=2, micro_batch=4, compile="on"))
    kept = keep_choices(saved_on(AMD), config, AMD, 65)
    assert (kept.threads, kept.micro_batch, kept.accumulate, kept.compile) == (2, 4, 8, True)
    assert keep_choices(saved_on(AMD), CONFIG, replace(AMD, asked_threads=5), 65).threads == 5


def test_choices_of_other_names_are_made_anew():
    assert keep_choices(saved_on(AMD) | {"colour": 1, "threads": 7}, CONFIG, AMD, 65) == choose(CONFIG, AMD, 65)


def test_what_changed_is_said_and_noted_and_an_unchanged_run_says_nothing(run, capsys):
    run("trainer.max_steps=2", "checkpoint.every_steps=2")
    file = run.path / "choices.json"
    saved = json.loads(file.read_text())
    run("trainer.max_steps=3")
    assert "Choices" not in capsys.readouterr().out
    file.write_text(json.dumps(saved | {"hardware": "Another CPU", "threads": 3}))
    run("trainer.max_steps=4", "trainer.threads=2")
    event = next(event for event in run.events() if event["event"] == "choices_changed")
    assert (event["was"]["threads"], event["now"]["threads"], event["was"]["hardware"]) == (3, 2, "Another CPU")
    assert "threads 3 -> 2" in capsys.readouterr().out
    assert json.loads(file.read_text())["hardware"] == saved["hardware"]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, 0),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 0),  # as torchrun sets it by itself
        ({"OMP_NUM_THREADS": "many"}, 0),
    ],
)
def test_omp_num_threads_is_obeyed(monkeypatch, environment, wanted):
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hardware.asked_threads() == wanted
    assert choose(CONFIG, replace(AMD, asked_threads=wanted), 65).threads == (wanted or 8)


@pytest.mark.parametrize(
    ("vendor", "amx", "wanted"), [("AuthenticAMD", False, True), ("AuthenticAMD", True, False), ("Intel", False, False)]
)
def test_fp32_products_use_onednn_only_where_it_does_not_round(monkeypatch, vendor, amx, wanted):
    monkeypatch.setattr(hardware, "_cpu_fact", lambda key: vendor)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    assert hardware.probe("cpu").onednn_fp32 == wanted


def test_peaks_of_real_chips_and_none_for_unknown_ones():
    assert peak_flops(H100, "bf16") == 989.4e12
    assert peak_flops(replace(H100, name="NVIDIA GeForce RTX 4090"), "bf16") == 165.2e12
    for name in ("Some New Chip", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        assert peak_flops(replace(H100, name=name), "bf16") is None
    assert peak_flops(AMD, "bf16") is None
