"""Nothing foreign is executed: SECURITY.md's first promise."""

import io
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

from minigpt.checkpoint.folder import MANIFEST
from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.config.schema import SampleConfig
from minigpt.sampling.sample import sample
from tests.security.stranger import NAMES, config_with, continue_it, newest, put, refused


def test_sampling_and_continuing_a_strangers_run_executes_nothing(watched):
    """An audit hook sees no code, process, socket, import, ctypes; no file written by sampling or outside the run."""
    assert watched.partition("SEEN\n")[2].splitlines() == []


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
        ("%FOO bar\n---\ndefaults: [{override /model: '${oc.env:HOME}'}]", "not evaluated"),  # which PyYAML's C refuses
        ("%YAML 1.3\n---\ndefaults: [{override /model: '${oc.env:HOME}'}]", "not evaluated"),
        ("a: \ufeff\ndefaults: [{override /model: '${oc.env:HOME}'}]", "not evaluated"),
        ("<<: {defaults: [{override /model: '${oc.env:HOME}'}]}", "not evaluated"),
        ("|\n  defaults: [{override /model: '${oc.env:HOME}'}]", "it holds no settings"),
        ("seed: 1\n---\ndefaults: [{override /model: '${oc.env:HOME}'}]", "expected a single document"),
        ("hydra: {job: {config: {override_dirname: {kv_sep: '${oc.env:HOME}'}}}}", "not evaluated"),
        ("hydra: {job: {env_copy: [NO_SUCH_NAME]}}", "don't compose: 'NO_SUCH_NAME'"),
        ("hydra: {searchpath: [/]}", "only supported from the primary config"),
        ("defaults: 3", "defaults must be a list"),
        ("seed: !!python/object/apply:pathlib.PosixPath [a]", "could not determine a constructor"),
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


EVIL = "# @package _global_\ndefaults: [{override /model: '${oc.env:HOME}'}]\n"
EVALUATES = "# @package _global_\nmodel: '${oc.create:{bias: \"${oc.env:HOME}\"}}'\n"
TWICE = "defaults: [/o/{0}@a, /o/{0}@b]\n"
DEEP = {"x": TWICE.format(0), **{f"theirs/o/{i}": TWICE.format(i + 1) for i in range(24)}, "theirs/o/24": "b: 1"}
LEADS_OUT = "leads out of the folder"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"x": "defaults: [/other/evil]", "theirs/other/evil": EVIL}, "other/evil.yaml can't be used: it says"),
        ({"x": "defaults: [link/evil]", "elsewhere/evil": EVIL}, "link/evil.yaml can't be used: it says"),
        ({"x": "defaults: [/o/b]\nmodel: {n_head: 3}", "theirs/o/b": EVALUATES}, "o/b.yaml can't be used: it says"),
        ({"x": "defaults: [../../elsewhere/evil]", "elsewhere/evil": EVIL}, LEADS_OUT),
        ({"x": "defaults: [/PLACE/elsewhere/evil]", "elsewhere/evil": EVIL}, LEADS_OUT),
        ({"x": "defaults: [{/PLACE/elsewhere: evil}]", "elsewhere/evil": EVIL}, LEADS_OUT),
        ({"x": "defaults: [{/: [PLACE/elsewhere/evil]}]", "elsewhere/evil": EVIL}, LEADS_OUT),
        ({"x": "defaults: [{override /model: ../../elsewhere/evil}]", "elsewhere/evil": EVIL}, LEADS_OUT),
        ({"x": "defaults: [x]"}, "names in their defaults"),
        (DEEP, "names in their defaults"),
        ({"x": f"defaults: [{', '.join(f'/model/gpt2@a{i}' for i in range(2000))}]"}, "names in their defaults"),
    ],
)  # fmt: skip
def test_a_strangers_defaults_lead_to_checked_files_of_the_folder_only(tmp_path, files, says):
    for name, text in {f"theirs/experiment/{each}" if each == "x" else each: files[each] for each in files}.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package _global_\n{text}\n".replace("PLACE", str(tmp_path)))
    (tmp_path / "theirs" / "experiment" / "link").symlink_to(tmp_path / "elsewhere")
    sentence = refused(lambda: compose("train", ["--config-dir", str(tmp_path / "theirs"), "experiment=x"]))
    assert says in sentence
    assert os.environ["HOME"] not in sentence.replace(str(tmp_path), "")
