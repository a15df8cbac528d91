"""What SECURITY.md promises: nothing foreign is executed, nothing foreign is believed, nothing secret is written."""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement

from minigpt.checkpoint.foreign import is_foreign
from minigpt.checkpoint.load import load_checkpoint
from minigpt.checkpoint.pack import pack_tensors
from minigpt.checkpoint.store import MANIFEST, _sealed
from minigpt.config.compose import compose
from minigpt.config.files import inherited_settings
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.data import prepare, prepared
from minigpt.data.tokenizers.bpe import PATTERN
from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault
from minigpt.report.record import read_record
from minigpt.report.runs import list_runs
from minigpt.rundir.rows import read_rows
from minigpt.sampling.command import sample
from minigpt.training.run import train

ROOT = Path(__file__).parents[1]
TINY = [
    "data=text",
    "tokenizer=bpe",
    "tokenizer.vocab_size=280",
    "model=gpt-nano",
    "model.n_layer=2",
    "model.n_embd=16",
    "model.n_head=2",
    "model.block_size=8",
    "batch_tokens=64",
    "trainer.max_steps=6",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "schedule.warmup_steps=1",
    "validate.every_steps=3",
    "checkpoint.every_steps=3",
    "samples.every_steps=3",
    "samples.max_new_tokens=4",
    "logger.every_steps=2",
]
NAMES = ("model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json")
FAULTS = (UserFault, NoUsableCheckpoint, StorageFailure)


def arguments(place: Path, *extra: str) -> list[str]:
    return [
        *TINY,
        f"data.source={place / 'text.txt'}",
        f"data.dir={place / 'data'}",
        f"run.dir={place / 'run'}",
        *extra,
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A finished run with its text and tokens."""
    place = tmp_path_factory.mktemp("made")
    (place / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(200)))
    assert train(compose("train", arguments(place))) == 0
    return place


@pytest.fixture
def foreign(made, tmp_path) -> Path:
    """A copy of it, which a stranger may have changed."""
    return copy(made, tmp_path)


def copy(made: Path, place: Path) -> Path:
    """A run, its tokens and its text somewhere else, where the tokens are found again."""
    for name in ("run", "data"):
        shutil.copytree(made / name, place / name)
    shutil.copy2(made / "text.txt", place / "text.txt")
    (file,) = place.glob("data/*/prepared.json")
    file.write_text(file.read_text().replace(str(made), str(place)))
    return place


def newest(place: Path) -> Path:
    return max((place / "run" / "checkpoints").glob("step-?????????"))


def put(folder: Path, name: str, content: bytes) -> None:
    """Change a checkpoint's file as somebody does who knows how its manifest is made."""
    (folder / name).write_bytes(content)
    reseal(folder)


def reseal(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes()) | changes
    for name, entry in manifest["files"].items():
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_bytes(_sealed(manifest))


def refused(function: Callable[[], object], kinds: type | tuple[type, ...] = UserFault) -> str:
    """The sentence a call is refused with, in less than 5 s."""
    began = time.monotonic()
    with pytest.raises(kinds) as fault:
        function()
    assert time.monotonic() - began < 5
    assert fault.value.exit_code in (2, 3, 4)
    assert len(str(fault.value)) < 2000
    assert str(fault.value).replace("\n", "").isprintable()
    return str(fault.value)


def continue_it(place: Path) -> int:
    return train(compose("train", arguments(place, "trainer.max_steps=8")))


# --- nothing foreign is executed ---

GUEST = r"""
import os, shutil, sys
from pathlib import Path
from minigpt.loading import loading
with loading():
    from minigpt.config.compose import compose
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.command import sample
    from minigpt.training.run import train

own, foreign, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]


def use(place):
    where = [f"data.source={place}/text.txt", f"data.dir={place}/data", f"run.dir={place}/run"]
    for which in ("best", "latest"):
        sample(SampleConfig(checkpoint=f"{place}/run", which=which, prompt=["line"], max_new_tokens=12, device="cpu"))
    stage[0] = "training"
    assert train(compose("train", [*arguments, *where, "trainer.max_steps=8"])) == 0


stage = ["sampling"]
use(own)  # so that everything is imported and cached that our own code wants
seen = []
READS = {"open", "os.listdir", "os.scandir", "os.walk", "glob.glob", "mmap.__new__", "pathlib.Path.glob",
         "pathlib.Path.rglob"}
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "shutil.rmtree",
          "tempfile.mkstemp", "fcntl.flock", "fcntl.fcntl"}
QUIET = {"object.__getattr__", "object.__setattr__", "sys._getframe", "gc.get_referrers", "builtins.id", "time.sleep",
         "sys.excepthook", "sys.unraisablehook", "_thread.start_new_thread", "signal.pthread_kill", "array.__new__",
         "ctypes.addressof"}  # an address of ours for our own compiled step; loading and looking up code is seen


def inside(path, folder=-1):
    if isinstance(path, int):
        return True
    if folder >= 0:  # shutil.rmtree names what it removes by the open folder that it lies in
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    path = os.path.realpath(os.fsdecode(path))
    return path.startswith((os.path.realpath(foreign / "run") + os.sep, os.path.realpath(foreign / "run/checkpoints")))


def hook(event, arguments):
    if done[0] or event in QUIET:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        if not writes or (stage[0] == "training" and inside(path)) or path == os.devnull:
            return
    elif event in READS:
        return
    elif event in WRITES and stage[0] == "training":
        paths = arguments if event == "os.remove" else arguments[:1]
        if event.startswith(("tempfile", "fcntl")) or inside(*paths):
            return
    seen.append(f"{stage[0]}: {event} {arguments!r}"[:300])


done = [False]
stage[0] = "sampling"
sys.addaudithook(hook)
use(foreign)
done[0] = True
print("\n".join(["SEEN", *seen]))
"""


def test_sampling_and_continuing_a_strangers_run_executes_nothing(foreign, tmp_path):
    """An audit hook sees no code, process, socket, import, ctypes; no file written by sampling or outside the run."""
    own = copy(foreign, tmp_path / "own")
    done = subprocess.run(
        [sys.executable, "-c", GUEST, str(own), str(foreign), *TINY], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("SEEN\n")[2].splitlines() == []


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def pickles(marker: Path) -> dict[str, bytes]:
    archive = io.BytesIO()
    torch.save({"weights": Payload(marker)}, archive)
    return {
        "protocol 4": pickle.dumps(Payload(marker), protocol=4),
        "protocol 0": pickle.dumps(Payload(marker), protocol=0),
        "posix.system": f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode(),
        "torch.save": archive.getvalue(),
    }


@pytest.mark.parametrize("kind", ["protocol 4", "protocol 0", "posix.system", "torch.save"])
def test_a_pickle_in_the_place_of_any_file_is_not_read(foreign, tmp_path, kind):
    marker = tmp_path / "executed"
    payload = pickles(marker)[kind]
    checkpoint = newest(foreign)
    for name in (*NAMES, MANIFEST):
        whole = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
        if name == MANIFEST:
            (checkpoint / name).write_bytes(payload)
        else:
            put(checkpoint, name, payload)
        if name == "optimizer.safetensors":
            sentence = refused(lambda: continue_it(foreign))
            load_checkpoint(checkpoint)  # which has no use for it
        else:
            sentence = refused(lambda: load_checkpoint(checkpoint))
        assert "pickle" in sentence or name == MANIFEST, sentence
        for file, content in whole.items():
            (checkpoint / file).write_bytes(content)
    assert not marker.exists()
    assert load_checkpoint(checkpoint).path == checkpoint


@pytest.mark.parametrize("name", ["model.pt", "last.ckpt", "pytorch_model.bin"])
def test_a_file_of_torch_save_is_no_checkpoint(tmp_path, name):
    marker = tmp_path / "executed"
    (tmp_path / name).write_bytes(pickles(marker)["torch.save"])
    assert "pickles" in refused(lambda: sample(SampleConfig(checkpoint=str(tmp_path / name), device="cpu")))
    assert not marker.exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "train.json", "val.json", "train-000.bin", "prepared.json"])
def test_a_pickle_among_prepared_tokens_is_not_read(foreign, tmp_path, name):
    marker = tmp_path / "executed"
    (file,) = foreign.glob(f"data/*/{name}")
    for payload in pickles(marker).values():
        file.write_bytes(payload)
        if name == "prepared.json":
            assert continue_it(foreign) == 0  # without it, they are prepared again
        else:
            assert name in refused(lambda: continue_it(foreign))
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["config.yaml", "choices.json", "data.json", "skipped_batches.json", "metrics.jsonl", "events.jsonl"]
)
def test_a_pickle_in_a_run_directory_is_not_read(foreign, tmp_path, name):
    marker = tmp_path / "executed"
    payloads = list(pickles(marker).values())
    payloads.append(f"!!python/object/apply:os.system ['touch {marker}']\n".encode())
    for payload in payloads:
        (foreign / "run" / name).write_bytes(payload)
        if name.endswith(".jsonl"):
            assert continue_it(foreign) == 0
        else:
            assert name in refused(lambda: continue_it(foreign))
    assert not marker.exists()


def config_with(changes: dict) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_bytes())
        for key, value in changes.items():
            *way, last = key.split("/")
            part = config
            for each in way:
                part = part.setdefault(each, {})
            part[last] = value
        put(checkpoint, "config.json", json.dumps(config).encode())

    return change


@pytest.mark.parametrize(
    "changes",
    [
        {"_target_": "os.system", "_args_": ["touch MARKER"]},
        {"model/_target_": "torch.load"},
        {"model": {"_target_": "logging.os.system", "command": "touch MARKER"}},
        {"model/n_layer": "${oc.env:HOME}"},
        {"model/n_layer": "${eval:1+1}"},
        {"callbacks": {"_target_": "builtins.exec"}},
    ],
)
def test_no_target_and_no_resolver_of_a_checkpoint_is_evaluated(foreign, changes):
    config_with(changes)(newest(foreign))
    sentence = refused(lambda: load_checkpoint(newest(foreign)))
    assert "config.json" in sentence
    assert os.environ["HOME"] not in sentence.replace(str(foreign), "")


def test_settings_of_another_version_do_not_matter_for_reading_a_model(foreign):
    config_with({"data/gone": 4, "later": {"setting": 1}})(newest(foreign))
    assert load_checkpoint(newest(foreign)).config.data.name == "text"
    config_with({"model/gone": 4})(newest(foreign))
    assert "'model.gone', which is no setting" in refused(lambda: load_checkpoint(newest(foreign)))


def test_text_with_a_resolver_in_it_stays_text(foreign):
    config_with({"samples/prompt": "${oc.env:HOME}", "data/source": "${oc.env:HOME}"})(newest(foreign))
    config = load_checkpoint(newest(foreign)).config
    assert (config.samples.prompt, config.data.source) == ("${oc.env:HOME}", "${oc.env:HOME}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("defaults: [{override /model: '${oc.env:HOME}'}]", "not evaluated"),
        ("samples: {prompt: '${oc.env:HOME}'}", "not evaluated"),
        ("model: {_target_: os.system}", "No setting 'model._target_'"),
        ("samples: {prompt: !!python/object/apply:os.system ['touch MARKER']}", "don't compose"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", r"YAML alias \*a"),
        ("model: " + "[" * 3000, "nested"),
        ("model: {n_layer: " + "9" * 5000 + "}", "."),
        ("# " + "x" * 200_000, "200,0"),
    ],
)
def test_a_strangers_config_file_is_values_only(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "theirs" / "experiment"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text(f"# @package _global_\n{text}\n".replace("MARKER", str(tmp_path / "executed")))
    sentence = refused(lambda: compose("train", ["--config-dir", str(folder.parent), "experiment=x"]))
    assert re.search(says, sentence)
    assert os.environ["HOME"] not in sentence.replace(str(tmp_path), "")
    assert not (tmp_path / "executed").exists()


# --- nothing foreign is believed ---


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
        put(checkpoint, "model.safetensors", b"".join(pack_tensors(changed)))
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
    from minigpt.checkpoint.store import DamagedCheckpoint, verify

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
    inherited_settings(TrainConfig, str(foreign / "run"))


@pytest.mark.timeout(60)
def test_neither_among_prepared_tokens_nor_config_files(foreign, tmp_path):
    (file,) = foreign.glob("data/*/prepared.json")
    (foreign / "text.txt").rename(tmp_path / "away.txt")
    compose("train", arguments(foreign))  # the text is gone, its tokens are kept
    file.unlink()
    os.mkfifo(file)
    assert "does not exist. Give an existing file" in refused(lambda: compose("train", arguments(foreign)))
    (tmp_path / "configs" / "model").mkdir(parents=True)
    os.mkfifo(tmp_path / "configs" / "model" / "mine.yaml")
    asked = ["--config-dir", str(tmp_path / "configs"), "model=mine"]
    assert "mine.yaml can't be used: " in refused(lambda: compose("train", asked))


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
        put(checkpoint, "optimizer.safetensors", b"".join(pack_tensors(tensors)))

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


def mutant(content: bytes, dice: random.Random) -> bytes:
    """A file with something wrong in it."""
    place = dice.randrange(len(content) + 1)
    kind = dice.randrange(6)
    if kind == 0 and place < len(content):
        return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
    if kind == 1:
        return content[:place]
    if kind == 2:
        return content[:place] + dice.randbytes(dice.randrange(1, 40)) + content[place:]
    if kind == 3:
        return (
            content[:place]
            + dice.choice([b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"\xff", b"NaN"])
            + content[place:]
        )
    if kind == 4:
        numbers = list(re.finditer(rb"\d+", content[: 1 << 14]))
        found = dice.choice(numbers) if numbers else None
        value = dice.choice([b"0", b"-7", b"99999999999999999999", b"true", b'"x"', b"[[1]]", b"0.5"])
        return content[: found.start()] + value + content[found.end() :] if found else b""
    return dice.randbytes(dice.randrange(200))


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("known", [True, False], ids=["resealed", "as it is"])
def test_no_mutant_of_a_checkpoint_ends_in_a_traceback(foreign, known, count):
    dice = random.Random(7 + known)
    checkpoint = newest(foreign)
    whole = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    weights = load_checkpoint(checkpoint).model.state_dict()
    used = 0
    for number in range(count):
        name = dice.choice([*NAMES, MANIFEST])
        content = mutant(whole[name], dice)
        (checkpoint / name).write_bytes(content)
        if known and name != MANIFEST:
            reseal(checkpoint)
        began = time.monotonic()
        try:
            loaded = load_checkpoint(checkpoint)
        except FAULTS:
            pass
        else:
            used += 1
            assert known or name == "optimizer.safetensors" or content == whole[name], f"{number}: {name}"
            if name != "model.safetensors":
                assert all(torch.equal(weights[key], value) for key, value in loaded.model.state_dict().items())
        assert time.monotonic() - began < 5
        for file, original in whole.items():
            (checkpoint / file).write_bytes(original)
    assert used < count / 2


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.soak)])
def test_no_mutant_of_prepared_tokens_ends_in_a_traceback(foreign, count):
    dice = random.Random(11)
    (folder,) = foreign.glob("data/text-*")
    names = ["train.json", "val.json", "train-000.bin", "val-000.bin", "tokenizer.json", "prepared.json"]
    whole = {name: (folder / name).read_bytes() for name in names}
    config = compose("train", arguments(foreign))
    fingerprint = prepare.prepare(config.data, config.tokenizer, say=str).fingerprint
    for _ in range(count):
        name = dice.choice(names)
        (folder / name).write_bytes(mutant(whole[name], dice))
        began = time.monotonic()
        try:
            found = prepare.prepare(config.data, config.tokenizer, say=str)
            prepared.describe(found)
            assert found.fingerprint == fingerprint
        except UserFault:
            pass
        assert time.monotonic() - began < 5
        for other in folder.iterdir():
            if other.name not in whole:
                other.unlink()
        for file, original in whole.items():
            (folder / file).write_bytes(original)


@pytest.mark.soak
def test_no_mutant_of_a_run_directory_ends_in_a_traceback(made, tmp_path):
    dice = random.Random(13)
    for number in range(60):
        place = copy(made, tmp_path / str(number))
        names = [
            file for file in (place / "run").rglob("*") if file.suffix in (".json", ".jsonl", ".yaml", ".safetensors")
        ]
        file = dice.choice(sorted(names))
        file.write_bytes(mutant(file.read_bytes(), dice))
        if file.parent.name.startswith("step") and file.name != MANIFEST:
            reseal(file.parent)
        with contextlib.suppress(*FAULTS):
            continue_it(place)
        shutil.rmtree(place)


# --- no secret is written down ---

CANARIES = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYCANARYKEY",
    "HF_TOKEN": "hf_canarycanarycanarycanary",
    "OPENAI_API_KEY": "sk-canarycanarycanarycanary",
    "GITHUB_TOKEN": "ghp_canarycanarycanarycanary0000",
    "MY_PASSWORD": "correct-horse-battery",
}


def test_no_secret_of_the_environment_reaches_disk_or_screen(tmp_path, monkeypatch, capsys):
    """Canaries in variables, the path of the text, a prompt and the command line; begun, crashed, continued."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / f"user:{CANARIES['HF_TOKEN']}@host" / CANARIES["MY_PASSWORD"]
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(200)))
    keys = [*TINY, f"data.source={folder}/text.txt", f"data.dir={tmp_path}/data", f"run.dir={tmp_path}/run"]
    keys += [f"samples.prompt=my key is {CANARIES['AWS_SECRET_ACCESS_KEY']}"]
    monkeypatch.setattr(sys, "argv", ["train.py", *keys, f"api_key={CANARIES['OPENAI_API_KEY']}"])

    def crash(*_, **__):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("minigpt.training.saving.Saving.save", crash)
        with pytest.raises(RuntimeError, match="a bug"):
            train(compose("train", keys))
    assert train(compose("train", keys)) == 0
    assert train(compose("train", [*keys, "trainer.max_steps=8"])) == 0
    out = "".join(capsys.readouterr())
    assert [name for name, value in CANARIES.items() if value in out.replace(str(folder), "")] == []
    for place in (tmp_path / "run", tmp_path / "data"):
        files = [file for file in place.rglob("*") if file.is_file() and file.name not in ("loss.png", "samples.jsonl")]
        assert len(files) > 5
        found = [
            (file, name) for file in files for name, value in CANARIES.items() if value.encode() in file.read_bytes()
        ]
        assert found == []
        assert not [file for file in files for value in CANARIES.values() if value in str(file.relative_to(place))]


def test_the_record_of_a_run_holds_no_variable_of_the_environment(made):
    record = json.loads((made / "run" / "environment.json").read_text())
    assert set(record) == {"minigpt", "commit", "python", "torch", "lightning", "platform", "machine", "cpus", "gpus"}
    saved = yaml.safe_load((made / "run" / "config.yaml").read_text())
    assert "environ" not in str(saved).lower()


# --- nothing is fetched, nothing listens, nothing poisoned is installed ---

NETWORK = r"""
import os, sys
seen = []


def hook(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")) and event != "socket.gethostname":
        seen.append(f"{event} {arguments!r}"[:200])


class NoWandb:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "wandb":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.addaudithook(hook)
sys.meta_path.insert(0, NoWandb())
from minigpt.loading import loading
with loading():
    import minigpt.data.corpus
    from minigpt.config.compose import compose
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.command import sample
    from minigpt.training.run import train

minigpt.data.corpus._STDLIB = ["json", "wave", "email"]
assert train(compose("train", [each for each in sys.argv[1:] if each != "data=text"])) == 0
assert sample(SampleConfig(checkpoint="run", prompt=["import"], max_new_tokens=9, device="cpu")) == 0
assert not [name for name in sys.modules if name.partition(".")[0] == "wandb"]
print("\n".join(["SEEN", *seen]))
"""


def test_training_and_sampling_open_no_connection_and_never_import_wandb(tmp_path):
    """data=stdlib, from the first import to the report, in a process that has no wandb."""
    done = subprocess.run(
        [sys.executable, "-c", NETWORK, *TINY, "run.dir=run", "validate.every_steps=0"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("SEEN\n")[2].splitlines() == []


@pytest.mark.parametrize("bad", ["2.6.2", "2.6.3", "2.6.5"])
def test_poisoned_and_unsafe_versions_of_lightning_are_ruled_out(bad):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lightning,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "lightning"]
    assert bad not in lightning.specifier
    assert f"lightning=={bad}" not in (ROOT / "constraints.txt").read_text()
    assert importlib.metadata.version("lightning") in lightning.specifier


def test_every_promise_has_its_test():
    """The names that SECURITY.md gives exist."""
    text = (ROOT / "SECURITY.md").read_text()
    names = set(re.findall(r"`(test_\w+)`", text))
    assert len(names) > 15
    defined = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert names - defined - {file.stem for file in (ROOT / "tests").rglob("test_*.py")} == set()


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
