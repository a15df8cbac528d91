"""`minigpt plan`: layouts, the fastest first, and the first that fits."""

import pytest

from minigpt import cli
from minigpt.config.commands import PlanConfig
from minigpt.config.compose import compose
from minigpt.machine.layouts import describe_layouts

LARGE = (
    "model=gpt2-xl",
    "tokenizer=gpt2",
    "batch_tokens=524288",
    "model.checkpoint_activations=false",
    "data.name=stdlib",
)


def rows_of(*words):
    config = compose("plan", [*LARGE, *words])
    text = describe_layouts(config)
    return {line.split("  ")[0]: line for line in text.splitlines()}, text


@pytest.mark.parametrize(
    ("memory", "devices", "first"),
    [
        (80, 1, "one device"),
        (34, 1, "one device + chunks + checkpoints"),
        (24, 1, None),
        (24, 8, "fsdp + chunks"),
        (11, 8, "fsdp + chunks + checkpoints"),
        (24, 16, "hsdp + chunks"),
    ],
)
def test_the_first_layout_that_fits_is_named_with_the_words_to_type(memory, devices, first):
    words = (["trainer=ddp"] if devices > 1 else []) + [f"trainer.devices={devices}"]
    rows, text = rows_of(f"memory={memory}", *words)
    fitting = [name for name, line in rows.items() if line.endswith(" fits")]
    assert fitting[:1] == ([first] if first else [])
    last = text.splitlines()[-1]
    if first is None:
        assert last == "None fits. Try trainer=fsdp trainer.devices=N, or a smaller model or block_size"
    else:
        typed = last.removeprefix("First that fits: ").split()
        again = compose("train", [*LARGE, *words, *typed])
        assert again.trainer.strategy == first.split(" ")[0].replace("one", "auto")
        assert again.trainer.loss_chunk == (1280 if "chunks" in first else "off")
        assert again.model.checkpoint_activations == ("checkpoints" in first)


def test_a_larger_device_gets_larger_micro_batches_and_what_is_typed_is_kept():
    sizes = []
    for memory in (60, 80, 120):
        rows, _ = rows_of(f"memory={memory}", "trainer.loss_chunk=off")
        (line,) = [line for name, line in rows.items() if name == "one device"]
        sizes.append(int(line.split(" x ")[1].split()[0]))
    assert sizes == sorted(set(sizes))
    rows, text = rows_of("memory=80", "trainer.loss_chunk=700", "trainer.micro_batch=2")
    assert "one device" not in rows
    assert "trainer.loss_chunk=700 trainer.micro_batch=2" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "vocabulary"), [(["tokenizer=byte"], "257"), (["vocab_size=999"], "999"), ([], "2,048")]
)
def test_without_a_text_the_vocabulary_is_the_tokenizers(words, vocabulary):
    config = compose("plan", words)
    assert isinstance(config, PlanConfig)
    assert f"vocabulary {vocabulary}\n" in describe_layouts(config)


def test_a_note_on_settings_is_printed_once_though_the_text_is_left_out(capsys):
    cli.plan(["experiment=text", "model=gpt2"])
    assert capsys.readouterr().err.count("model=gpt2 replaces settings of experiment=text") == 1
    with pytest.raises(SystemExit):
        cli.plan(["experiment=demo", "model=gpt2", "--cfg", "job"])
    assert capsys.readouterr().err.count("model=gpt2 replaces settings of experiment=demo") == 1


def test_processes_on_one_cpu_share_its_memory(monkeypatch):
    monkeypatch.setattr("minigpt.machine.hardware._main_memory", lambda: 24 * 10**9)
    _, alone = rows_of("trainer.device=cpu")
    _, shared = rows_of("trainer.device=cpu", "trainer=ddp", "trainer.devices=8")
    _, hosts = rows_of("trainer.device=cpu", "trainer=ddp", "trainer.nodes=8")
    assert ", 24.0 GB, of which" in alone
    assert ", 24.0 GB, of which" in hosts  # each host has its own
    assert ", 3.0 GB, of which" in shared
