"""Nothing foreign is believed: no size, no form, no place that a stranger's file states."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minigpt.checkpoint.contents import pack_tensors
from minigpt.checkpoint.folder import MANIFEST
from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.data.tokenizers.bpe import PATTERN
from minigpt.faults import StorageFailure, UserFault
from minigpt.formats.architecture import is_foreign
from minigpt.report.record import read_record
from minigpt.report.runs import list_runs
from minigpt.rundir.rows import read_rows
from minigpt.training.run import train
from tests.security.stranger import FAULTS, NAMES, arguments, config_with, continue_it, newest, put, refused, reseal


def header(**tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def tensor(shape: list[int], dtype: str = "F32", end: int = 4) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


BOMBS: dict[str, Callable[[Path], None]] = {
    "absurd n_layer": config_with({"model/n_layer": 10_000}),
    "more absurd n_layer": config_with({"model/n_layer": 10**18}),
    "absurd n_embd": config_with({"model/n_embd": 1_000_000}),
    "absurd block_size": config_with({"model/block_size": 2**24}),
    "everything absurd": config_with({"model/n_layer": 9999, "model/n_embd": 10**6, "model/block_size": 2**24}),
    "no heads": config_with({"model/n_head": 0}),
    "heads that do not fit": config_with({"model/n_head": 3}),
    "negative width": config_with({"model/n_embd": -16}),
    "many settings": config_with({f"model/{n}": n for n in range(4000)}),
    "a long setting": config_with({"x" * 60_000: 1}),
    "a long value": config_with({"model/attention": "x" * 60_000}),
    "a config that is a list": lambda folder: put(folder, "config.json", b"[]"),
    "a config that is huge": lambda folder: put(folder, "config.json", b'{"a": "' + b"x" * 10**6 + b'"}'),
    "a config that is deep": lambda folder: put(folder, "config.json", b'{"model":' * 900 + b"1" + b"}" * 900),
    **{
        f"a {name} that is deeper": lambda folder, name=name: put(folder, name, b"[" * 10**5)
        for name in ("config.json", "state.json", "tokenizer.json")
    },
    "a manifest that is deep": lambda folder: (folder / MANIFEST).write_bytes(b"[" * 10**5),
    "a manifest that is huge": lambda folder: (folder / MANIFEST).write_bytes(b"[" + b"1," * 10**6 + b"1]"),
    "a state that is a number": lambda folder: put(folder, "state.json", b"1e999"),
    "a long number": lambda folder: put(folder, "state.json", b'{"step": ' + b"9" * 10**5 + b"}"),
    "a tokenizer that is huge": lambda folder: put(folder, "tokenizer.json", b"[" + b"1," * 10**7 + b"1]"),
    "a header of 2**63 bytes": lambda folder: put(folder, "model.safetensors", b"\xff" * 8 + b"{}"),
    "a header without end": lambda folder: put(folder, "model.safetensors", (1 << 20).to_bytes(8, "little") + b"{"),
    "a shape of 2**60": lambda folder: put(folder, "model.safetensors", header(a=tensor([2**30, 2**30])) + b"1234"),
    "a shape that overflows": lambda folder: put(
        folder, "model.safetensors", header(a=tensor([2**63, 2, 0])) + b"1234"
    ),
    "an empty absurd shape": lambda folder: put(folder, "model.safetensors", header(a=tensor([2**62, 0], end=0))),
    "an unknown type": lambda folder: put(folder, "model.safetensors", header(a=tensor([1], "F4")) + b"1234"),
    "whole numbers": lambda folder: put(folder, "model.safetensors", header(a=tensor([1], "I32")) + b"1234"),
    "a missing tensor": lambda folder: put(folder, "model.safetensors", header()),
    "a deep header": lambda folder: put(folder, "model.safetensors", (10**5).to_bytes(8, "little") + b'{"a":' * 20_000),
    "a name with an escape": lambda folder: put(
        folder, "model.safetensors", header(**{"\x1b[2J\ud800" + "x" * 9999: tensor([1])}) + b"1234"
    ),
    "a manifest without files": lambda folder: reseal(folder, files={}),
    "a manifest of lists": lambda folder: reseal(folder, files={name: {"bytes": []} for name in NAMES[:0]} | {"a": {}}),
    "another format": lambda folder: reseal(folder, format={"a": 1}),
    "another version": lambda folder: reseal(folder, format=2, minigpt="\x1b[2J" * 9999),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_size_that_a_file_claims_is_believed(foreign, bomb):
    import resource

    checkpoint = newest(foreign)
    BOMBS[bomb](checkpoint)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sentence = refused(lambda: load_checkpoint(checkpoint), FAULTS)
    assert "\x1b" not in sentence
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB; 50 times the files


def test_weights_that_are_no_numbers_are_named(foreign):
    from safetensors.torch import load_file

    checkpoint = newest(foreign)
    weights = load_file(checkpoint / "model.safetensors")
    for value, dtype in ((float("nan"), torch.float32), (float("inf"), torch.float32), (1e300, torch.float64)):
        changed = {name: tensor.to(dtype, copy=True) for name, tensor in weights.items()}
        changed["final_norm.weight"][3] = value
        put(checkpoint, "model.safetensors", pack_tensors(changed))
        assert "non-finite weights (final_norm.weight)" in refused(lambda: load_checkpoint(checkpoint))


@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_plain_files_of_the_folder_are_opened(foreign, tmp_path, name, kind):
    checkpoint = newest(foreign)
    (checkpoint / name).rename(tmp_path / "outside")
    if kind == "link":
        (checkpoint / name).symlink_to(tmp_path / "outside")
    elif kind == "pipe":
        os.mkfifo(checkpoint / name)
    else:
        (checkpoint / name).mkdir()
    if name == "optimizer.safetensors":
        assert checkpoint.name in refused(
            lambda: load_checkpoint(checkpoint.parent, "latest") and verified(checkpoint), FAULTS
        )
    else:
        assert checkpoint.name in refused(lambda: load_checkpoint(checkpoint), FAULTS)


def verified(checkpoint: Path) -> None:
    from minigpt.checkpoint.folder import DamagedCheckpoint, verify

    try:
        verify(checkpoint)
    except DamagedCheckpoint as damage:
        raise UserFault(str(damage)) from None


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "..", ".", "", "a/b", "a\0b", "\x1b[2J", "x" * 120])
def test_a_manifest_names_files_of_its_folder_only(foreign, name):
    checkpoint = newest(foreign)
    (foreign / "secret").write_text("not for you")
    manifest = json.loads((checkpoint / MANIFEST).read_bytes())
    reseal(checkpoint, files=manifest["files"] | {name: {"bytes": 11, "sha256": "0" * 64}})
    sentence = refused(lambda: verified(checkpoint))
    assert "no file of a checkpoint" in sentence
    assert "\x1b" not in sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": "(a+)+$"},
        {"pattern": PATTERN + "|(x+x+)+y"},
        {"name": "gpt5"},
        {"name": ["bpe"]},
        {"tokens": [""] * 10**6},
        {"tokens": {"a": 1}},
        {"vocab_size": 10**12},
        {"eot": -1},
        {"version": [[]]},
        {"version": "\x1b[2J" * 10**5},
        {"name": "\x1b[2J" * 10**5},
        {"eot": "\x1b[2J" * 10**5},
    ],
)
def test_a_strangers_tokenizer_brings_no_pattern_and_no_size_of_its_own(foreign, changes):
    checkpoint = newest(foreign)
    content = json.loads((checkpoint / "tokenizer.json").read_bytes()) | changes
    put(checkpoint, "tokenizer.json", json.dumps(content).encode())
    assert "tokenizer" in refused(lambda: load_checkpoint(checkpoint))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pattern": "(a+)+$"}, "none of the 9 known ones"),
        ({"pattern": ["a"]}, "not a usable tokenizer"),
        ({"special": {"x": 10**12}}, "can't be 'x'"),
        ({"special": {"x": 5}}, "can't be 'x'"),
        ({"special": {}}, "no control token"),
        ({"special": []}, "not a usable tokenizer"),
        ({"added": {"x": -1}}, "can't be 'x'"),
        ({"added": {"(a+)+$": 5}}, "can't be"),
        ({"added": {"": 256}}, "can't be"),
        ({"added": {f"x{number}": 5 for number in range(10**5)}}, "more than 10,000"),
        ({"eot": 10**12}, "no control token"),
        ({"eot": "\x1b[2J" * 10**5}, "no control token"),
        ({"tokens": [""] * 10**5}, "tokenizer"),
    ],
)
def test_a_strangers_tokenizer_file_brings_known_patterns_only(foreign, changes, says):
    checkpoint = newest(foreign)
    content = json.loads((checkpoint / "tokenizer.json").read_bytes()) | {"name": "file", "added": {}, "nfc": False}
    content["special"] = {"<|endoftext|>": content["eot"]}
    content["tokens"].append("")
    put(checkpoint, "tokenizer.json", json.dumps(content).encode())
    assert load_checkpoint(checkpoint).tokenizer.encode("line")
    put(checkpoint, "tokenizer.json", json.dumps(content | changes).encode())
    assert says in refused(lambda: load_checkpoint(checkpoint))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "a: &a [x, x]\nb: &b [*a, *a]\n"),
        ("config.yaml", "[" * 5000),
        ("config.yaml", "- 1"),
        ("config.yaml", "a: " + "9" * 9999),
        ("config.yaml", "\x00"),
        ("choices.json", "[]"),
        ("choices.json", "[" * 10**5),
        ("choices.json", '{"device": "cpu", "devices": 1, "validation_batch": 0}'),
        ("choices.json", '{"device": "cpu", "devices": 1, "micro_batch": 0}'),
        ("choices.json", '{"device": "cpu", "devices": 1, "micro_batch": 3}'),
        ("choices.json", '{"device": "cpu", "devices": 1, "precision": "int4"}'),
        ("choices.json", '{"device": "cpu", "devices": 1, "compile": "yes"}'),
        ("choices.json", '{"device": "cpu", "devices": 1, "_target_": "os.system"}'),
        ("data.json", "[" * 10**5),
        ("data.json", '{"fingerprint": 5}'),
        ("skipped_batches.json", "{}"),
        ("skipped_batches.json", "[[5, 2]]"),
        ("skipped_batches.json", '[["a", "b"]]'),
    ],
)
def test_small_files_of_a_strangers_run_are_held_to_their_form(foreign, name, content):
    (foreign / "run" / name).write_text(content)
    refused(lambda: continue_it(foreign))


@pytest.mark.parametrize("name", ["config.yaml", "command.txt", "environment.json"])
def test_a_folder_in_the_place_of_a_file_of_a_strangers_run_is_one_sentence(foreign, name):
    (foreign / "run" / name).unlink(missing_ok=True)
    (foreign / "run" / name).mkdir()
    sentence = refused(lambda: continue_it(foreign), (UserFault, StorageFailure))
    assert "irectory" in sentence or "it is no plain file" in sentence


@pytest.mark.timeout(60)
def test_a_pipe_in_a_strangers_folder_is_not_waited_for(foreign, tmp_path):
    """Opening one waits for a writer that never comes."""
    config = foreign / "run" / "config.yaml"
    config.unlink()
    os.mkfifo(config)
    assert "it is no plain file" in refused(lambda: continue_it(foreign))
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert read_rows(tmp_path / "metrics.jsonl") == []
    os.mkfifo(tmp_path / "config.json")
    assert not is_foreign(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "command.txt", "choices.json", "environment.json", "baseline.json", "run.lock",
     *(f"checkpoints/step-000000006/{name}" for name in ("model.safetensors", "tokenizer.json", "config.json"))],
)  # fmt: skip
def test_neither_by_a_report_nor_by_a_list_nor_by_what_starts_from_it(foreign, name):
    file = foreign / "run" / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert read_record(foreign / "run").rows
    assert "\nrun " in list_runs(str(foreign))


def test_a_link_in_the_place_of_a_checkpoints_file_is_not_read_by_a_list(foreign):
    weights = newest(foreign) / "model.safetensors"
    assert read_record(foreign / "run").parameters
    weights.rename(foreign / "mine")
    weights.symlink_to(foreign / "mine")
    assert read_record(foreign / "run").parameters is None


def test_a_sparse_file_of_rows_is_not_read_whole(foreign):
    for name in ("metrics.jsonl", "samples.jsonl", "events.jsonl"):
        os.truncate(foreign / "run" / name, 1 << 40)
    assert read_rows(foreign / "run" / "metrics.jsonl") == []
    more = arguments(foreign, "trainer.max_steps=7")
    assert "1,099,511,627,776 bytes" in refused(lambda: train(compose("train", more)), StorageFailure)


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "run.lock", "samples.jsonl", ".config.yaml.tmp-1"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_in_a_strangers_run_leads_to_no_file_of_mine(foreign, tmp_path, name, kind):
    (tmp_path / "mine").write_text("mine")
    (foreign / "run" / name).unlink(missing_ok=True)
    if kind == "link":
        (foreign / "run" / name).symlink_to(tmp_path / "mine")
    else:
        os.mkfifo(foreign / "run" / name)
    assert "no plain file" in refused(lambda: continue_it(foreign))
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    "changes",
    [{"step": 10**15}, {"step": -1}, {"step": "6"}, {"step": True}, {"bad_steps": 1.5}, {"best_loss": "low"},
     {"recent_losses": [[]]}, {"seconds": 1e999}],
)  # fmt: skip
def test_a_state_that_can_not_be_is_refused(foreign, changes):
    checkpoint = newest(foreign)
    put(checkpoint, "state.json", json.dumps(json.loads((checkpoint / "state.json").read_bytes()) | changes).encode())
    assert "state.json" in refused(lambda: continue_it(foreign))


def other_optimizer(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(checkpoint: Path) -> None:
        from safetensors.torch import load_file

        tensors = load_file(checkpoint / "optimizer.safetensors")
        change(tensors)
        put(checkpoint, "optimizer.safetensors", pack_tensors(tensors))

    return apply


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("0.exp_avg"),
        lambda tensors: tensors.update({"99.exp_avg": torch.zeros(3)}),
        lambda tensors: tensors.update({"exp_avg": torch.zeros(3)}),
        lambda tensors: tensors.update({"0.exp_avg": torch.zeros(3)}),
        lambda tensors: tensors.update({"0.__class__": torch.zeros(())}),
        lambda tensors: tensors["1.exp_avg_sq"].fill_(float("nan")),
    ],
)
def test_an_optimizer_that_is_not_the_runs_is_refused(foreign, change):
    other_optimizer(change)(newest(foreign))
    assert "optimizer.safetensors" in refused(lambda: continue_it(foreign))


def test_a_run_whose_checkpoints_lead_to_another_run_touches_neither(run, tmp_path):
    mine = run("checkpoint.every_steps=2", "checkpoint.keep_last=6")
    there = sorted(path.name for path in (mine / "checkpoints").iterdir())
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoints").symlink_to(mine / "checkpoints")
    with pytest.raises(UserFault, match="checkpoints' is a link"):
        run("checkpoint.every_steps=1", f"run.dir={other}", "seed=2")
    assert sorted(path.name for path in (mine / "checkpoints").iterdir()) == there
    assert [path.name for path in other.iterdir()] == ["checkpoints"]
