"""Nothing in a file from elsewhere is executed or believed, and no secret is written down."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import minigpt
from minigpt.checkpoint.contents import pack_tensors
from minigpt.checkpoint.folder import MANIFEST, DamagedCheckpoint, sealed, verify
from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.config.schema import SampleConfig
from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault
from minigpt.redact import REDACTED, redact, redact_arguments, redact_values
from minigpt.sampling.sample import sample
from minigpt.training.run import train

NAMES = ("model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json")
FAULTS = (UserFault, NoUsableCheckpoint, StorageFailure)
SETTINGS = ["tokenizer=bpe", "tokenizer.vocab_size=280", "checkpoint.every_steps=3"]


@pytest.fixture(scope="module")
def made(new_run, tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("made"))
    run(*SETTINGS)
    return run


@pytest.fixture
def foreign(made, tmp_path):
    """A copy of it, which a stranger may have changed."""
    run = type(made)(tmp_path)
    for name in ("run", "data"):
        shutil.copytree(made.folder / name, tmp_path / name)
    (file,) = tmp_path.glob("data/*/prepared.json")
    file.write_text(file.read_text().replace(str(made.folder), str(tmp_path)))
    return run


def newest(run) -> Path:
    return max(run.path.glob("checkpoints/step-?????????"))


def put(folder: Path, name: str, content: bytes) -> None:
    """As somebody does who knows how a manifest is made."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"][name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_bytes(sealed(manifest))


def refused(function: Callable[[], object]) -> str:
    with pytest.raises(FAULTS) as fault:
        function()
    assert fault.value.exit_code in (2, 3, 4)
    assert len(str(fault.value)) < 2000
    assert str(fault.value).replace("\n", "").isprintable()
    return str(fault.value)


class Payload:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def pickles(marker: Path) -> list[bytes]:
    archive = io.BytesIO()
    torch.save({"weights": Payload(marker)}, archive)
    return [pickle.dumps(Payload(marker)), archive.getvalue()]


def test_a_pickle_in_the_place_of_any_file_is_not_read(foreign, tmp_path):
    marker, checkpoint = tmp_path / "executed", newest(foreign)
    (tmp_path / "model.pt").write_bytes(pickles(marker)[1])
    with pytest.raises(UserFault):
        sample(SampleConfig(checkpoint=str(tmp_path / "model.pt"), device="cpu"))
    for payload in pickles(marker):
        for name in NAMES:
            whole = (checkpoint / name).read_bytes()
            put(checkpoint, name, payload)
            if name == "optimizer.safetensors":
                load_checkpoint(checkpoint)  # which has no use for it
                refused(lambda: foreign(*SETTINGS, "trainer.max_steps=8"))
            else:
                assert "pickle" in refused(lambda: load_checkpoint(checkpoint))
            put(checkpoint, name, whole)
    for name in ("config.yaml", "choices.json", "data.json"):
        whole = (foreign.path / name).read_bytes()
        for payload in [*pickles(marker), f"!!python/object/apply:os.system ['touch {marker}']\n".encode()]:
            (foreign.path / name).write_bytes(payload)
            assert name in refused(lambda: foreign(*SETTINGS, "trainer.max_steps=8"))
        (foreign.path / name).write_bytes(whole)
    for shard in foreign.folder.glob("data/*/train-0*.bin"):
        shard.write_bytes(pickles(marker)[0])
    foreign(*SETTINGS, "trainer.max_steps=8")  # its tokens are made again
    assert not marker.exists()


def changed(checkpoint: Path, name: str, changes: dict) -> None:
    content = json.loads((checkpoint / name).read_bytes())
    for key, value in changes.items():
        *way, last = key.split("/")
        part = content
        for word in way:
            part = part[word]
        part[last] = value
    put(checkpoint, name, json.dumps(content).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [("_target_", "torch.load"), ("n_layer", "${oc.env:HOME}"), ("n_layer", 10**18), ("n_embd", 10**6), ("n_head", 3)],
)
def test_no_setting_of_a_checkpoint_is_evaluated_or_believed(foreign, name, value):
    changed(newest(foreign), "config.json", {f"model/{name}": value})
    assert os.environ["HOME"] not in refused(lambda: load_checkpoint(newest(foreign))).replace(str(foreign.folder), "")


def test_text_with_a_resolver_in_it_stays_text(foreign):
    changed(newest(foreign), "config.json", {"samples/prompt": "${oc.env:HOME}"})
    assert load_checkpoint(newest(foreign)).config.samples.prompt == "${oc.env:HOME}"


def header(shape: list[int], dtype: str = "F32") -> bytes:
    text = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]}}).encode()
    return len(text).to_bytes(8, "little") + text + b"1234"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\xff" * 8 + b"{}"),
        ("model.safetensors", header([2**30, 2**30])),
        ("model.safetensors", header([1], "I32")),
        ("config.json", b"[" * 10**5),
        ("config.json", b"[1]"),
        ("state.json", b'{"step": ' + b"9" * 10**5 + b"}"),
        ("tokenizer.json", b'{"name": "\x1b[2J"}'),
    ],
)
def test_no_size_or_form_that_a_file_claims_is_believed(foreign, name, content):
    put(newest(foreign), name, content)
    refused(lambda: (load_checkpoint(newest(foreign)), foreign(*SETTINGS, "trainer.max_steps=8")))


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "..", "a/b"])
def test_a_manifest_names_files_of_its_folder_only(foreign, name):
    checkpoint = newest(foreign)
    manifest = json.loads((checkpoint / MANIFEST).read_bytes())
    manifest["files"][name] = {"bytes": 11, "sha256": "0" * 64}
    (checkpoint / MANIFEST).write_bytes(sealed(manifest))
    with pytest.raises(DamagedCheckpoint):
        verify(checkpoint)


def test_weights_and_averages_that_are_no_numbers_are_refused(foreign):
    from safetensors.torch import load_file

    checkpoint = newest(foreign)
    for name, tensor in (("optimizer.safetensors", "1.exp_avg_sq"), ("model.safetensors", "final_norm.weight")):
        tensors = load_file(checkpoint / name)
        tensors[tensor].view(-1)[1] = float("nan")
        put(checkpoint, name, pack_tensors(tensors))
        refused(lambda: foreign(*SETTINGS, "trainer.max_steps=8"))
    assert "non-finite weights (final_norm.weight)" in refused(lambda: load_checkpoint(checkpoint))


def mutant(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content))
    numbers = [match.span() for match in re.finditer(rb"\d+", content[: 1 << 14])] or [(0, 0)]
    begin, end = dice.choice(numbers)
    return dice.choice(
        [
            content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :],
            content[:place],
            content[:place] + dice.choice([b"null", b"-1", b"1e999", b"[]", b"\xff", b"NaN"]) + content[place:],
            content[:begin] + dice.choice([b"-7", b"9" * 20, b"true", b'"x"', b"[[1]]"]) + content[end:],
        ]
    )


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_any_mutant_of_a_checkpoint_is_one_sentence(foreign, count):
    dice, checkpoint = random.Random(7), newest(foreign)
    for number in range(count):
        name = dice.choice(NAMES)
        whole = (checkpoint / name).read_bytes()
        if number % 2:
            put(checkpoint, name, mutant(whole, dice))
        else:
            (checkpoint / name).write_bytes(mutant(whole, dice))
        with contextlib.suppress(*FAULTS):
            load_checkpoint(checkpoint)
        put(checkpoint, name, whole)


def test_no_secret_is_written_down(run, monkeypatch, capsys):
    secrets = ["correct-horse-battery", "sk-canarycanarycanary"]
    monkeypatch.setenv("WANDB_API_KEY", secrets[0])
    words = [f"api_key={secrets[1]}", f"url=https://me:{secrets[0]}@host/x"]
    monkeypatch.setattr(sys, "argv", ["minigpt", "train", *run.arguments(), *words])
    assert train(compose("train", run.arguments())) == 0
    for file in [*run.path.rglob("*"), *run.folder.glob("data/*/*")]:
        assert not file.is_file() or not any(secret.encode() in file.read_bytes() for secret in secrets), file
    assert REDACTED in (run.path / "command.txt").read_text()
    assert not any(secret in "".join(capsys.readouterr()) for secret in secrets)


def test_training_opens_no_connection(run, monkeypatch):
    def forbidden(self, address):
        raise AssertionError(f"connects to {address}")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, forbidden, raising=False)
    gpt = minigpt.load(run("samples.every_steps=3", "samples.max_new_tokens=2"))
    gpt.generate("a", max_new_tokens=2)


@pytest.mark.parametrize("login", ["me:p@ss", "me:p@s@s", "me", "me:p/a:ss", ":only", "me:1234x"])
def test_logins_signatures_and_secret_names_are_taken_out_and_nothing_else(login):
    assert redact(f"to postgresql://{login}@host:5432/base now") == f"to postgresql://{REDACTED}@host:5432/base now"
    assert redact("s3://b/x?X-Amz-Signature=abc&n=1") == f"s3://b/x?X-Amz-Signature={REDACTED}&n=1"
    kept = ["https://example.org:8080/a/b@c", "batch_tokens=4096 tokenizer=bpe sort_key=1", "86c4e6aa9db7"]
    assert [redact(text) for text in kept] == kept
    words = ["wandb.key=abc", "api_key=abc", "batch_tokens=64"]
    assert redact_arguments(words) == [f"wandb.key={REDACTED}", f"api_key={REDACTED}", "batch_tokens=64"]
    assert redact_values({"a": [1, None], "b": {"token": "x"}}) == {"a": [1, None], "b": {"token": REDACTED}}
