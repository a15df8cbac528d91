"""Nothing foreign is executed: SECURITY.md's first promise."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch

from minigpt.checkpoint.folder import MANIFEST
from minigpt.checkpoint.load import load_checkpoint
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
