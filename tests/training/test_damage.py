"""Trials C1 to C7: what is wrong with a checkpoint is noticed, named, and survived where there is another one."""

import contextlib
import hashlib
import itertools
import json
import random
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from minigpt.training.run_state import read_run_state

from minigpt.checkpoint import folder as store
from minigpt.checkpoint.folder import DamagedCheckpoint, list_checkpoints, verify
from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.rundir.run_directory import RunDirectory
from minigpt.training.run import begin_or_continue
from minigpt.verify import compare_runs

SETTINGS = ["trainer.max_steps=8", "checkpoint.every_steps=2", "checkpoint.keep_last=3"]
GOLDEN = Path(__file__).parent / "golden_run"  # made by version 0.1.0, format 1


@pytest.fixture
def straight(run, tmp_path):
    """A finished run; `run` itself stands at step 6 after it."""
    run(*SETTINGS)
    straight = Path(shutil.copytree(run.path, tmp_path / "straight"))
    shutil.rmtree(run.path / "checkpoints" / "step-000000008")
    return straight


def flip(path, generator):
    content = bytearray(path.read_bytes())
    bit = generator.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_c1_each_of_200_flipped_bits_is_noticed(straight):
    generator = random.Random(2)
    checkpoint = list_checkpoints(straight / "checkpoints")[-1]
    files = sorted(checkpoint.iterdir())
    for number in range(200):
        victim = files[number % len(files)]  # the small ones as often as the large
        content = victim.read_bytes()
        flip(victim, generator)
        with pytest.raises(DamagedCheckpoint, match=victim.name):
            verify(checkpoint)
        victim.write_bytes(content)
    verify(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "MANIFEST.json"])
def test_c1_a_run_goes_on_from_the_checkpoint_before_to_the_same_bytes(run, straight, capsys, name):
    flip(run.path / "checkpoints" / "step-000000006" / name, random.Random(3))
    run(*SETTINGS)
    assert "A checkpoint is damaged" in capsys.readouterr().out
    assert (run.path / "checkpoints" / "step-000000006.damaged").is_dir()
    assert compare_runs(straight, run.path)[1] == []


def test_c2_truncated_at_50_places_empty_or_a_folder_instead_of_a_file(straight, tmp_path):
    generator = random.Random(4)
    checkpoint = list_checkpoints(straight / "checkpoints")[-1]
    for number in range(50):
        victim = generator.choice(sorted(checkpoint.iterdir()))
        content = victim.read_bytes()
        victim.write_bytes(content[: generator.randrange(len(content)) if number else 0])
        with pytest.raises(DamagedCheckpoint):
            verify(checkpoint)
        victim.write_bytes(content)
    for victim in sorted(checkpoint.iterdir()):
        content = victim.read_bytes()
        victim.unlink()
        victim.mkdir()
        with pytest.raises(DamagedCheckpoint):
            verify(checkpoint)
        victim.rmdir()
        victim.write_bytes(content)
    verify(checkpoint)


def test_c3_with_all_of_them_bad_training_is_never_started_over(run, straight):
    for path in list_checkpoints(run.path / "checkpoints"):
        (path / "optimizer.safetensors").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(NoUsableCheckpoint, match=r"(?s)NOT started over.*step-000000006.*step-000000004"):
            run(*SETTINGS)


def reseal(checkpoint):
    """Make the manifest right again, as someone would who means harm (or a bug)."""
    manifest = json.loads((checkpoint / "MANIFEST.json").read_bytes())
    for path in checkpoint.iterdir():
        if path.name in manifest["files"]:
            content = path.read_bytes()
            manifest["files"][path.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "MANIFEST.json").write_bytes(store.sealed(manifest))


def test_c4_a_checkpoint_of_a_newer_version_is_named_and_left_alone(run, straight):
    newest = list_checkpoints(run.path / "checkpoints")[-1]
    manifest = json.loads((newest / "MANIFEST.json").read_bytes())
    (newest / "MANIFEST.json").write_bytes(store.sealed({**manifest, "format": 2, "minigpt": "9.9.9"}))
    with pytest.raises(UserFault, match=r"made by minigpt 9\.9\.9 in format 2; this is minigpt .* reads format 1"):
        run(*SETTINGS)
    assert newest.is_dir()


def test_c5_files_of_another_checkpoint_are_noticed(run, straight):
    older, newer = list_checkpoints(run.path / "checkpoints")[-2:]
    for name in ("optimizer.safetensors", "state.json"):
        content = (newer / name).read_bytes()
        shutil.copy(older / name, newer / name)
        with pytest.raises(DamagedCheckpoint, match=rf"{name}.*(SHA-256 differs|bytes)"):
            verify(newer)
        (newer / name).write_bytes(content)


def test_c6_a_golden_checkpoint_still_resumes_and_samples(run, tmp_path):
    """Its bytes were written once and never again: what reads them must go on to read them."""
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 60_000
    shutil.copytree(GOLDEN, run.path)
    wanted = json.loads((run.path / "wanted.json").read_bytes())
    loaded = load_checkpoint(run.path)
    logits = loaded.model(torch.tensor([loaded.tokenizer.encode("how much")]))
    assert logits[0, -1, :4].tolist() == pytest.approx(wanted["logits"], abs=1e-4)
    run(*wanted["settings"])
    assert run.rows()[: len(wanted["rows"])] == wanted["rows"]  # what was there stays, byte for byte
    assert [row["step"] for row in run.rows()] == [1, 2, 4, 6]
    assert run.rows()[-1]["val/loss"] == pytest.approx(wanted["val/loss"], abs=1e-4)


def mutants(checkpoint, generator, count):
    """Changes one file in one way, and puts it back; half of the time the manifest is made right again."""
    values = [None, -1, 0, 10**30, 1e400, float("nan"), "", "x" * 2000, [], {}, [[]], True, "../../etc/passwd", 1.5]
    files = sorted(checkpoint.iterdir())
    originals = {path: path.read_bytes() for path in files}
    for number in range(count):
        victim = generator.choice(files)
        content = bytearray(originals[victim])
        if victim.suffix == ".json" and generator.random() < 0.7:
            document = json.loads(content)
            inner, key = document, None
            while isinstance(inner, dict | list) and inner and (key is None or generator.random() < 0.7):
                parent, key = inner, generator.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
                inner = parent[key]
            if generator.random() < 0.3:
                del parent[key]
            else:
                parent[key] = generator.choice(values)
            content = bytearray(json.dumps(document, indent=1, sort_keys=True).encode())
        else:
            position = generator.randrange(len(content))
            kind = generator.randrange(4)
            if kind == 0:
                content[position] = generator.randrange(256)
            elif kind == 1:
                del content[position : position + generator.choice([1, 8, 500])]
            elif kind == 2:
                content[position:position] = generator.randbytes(generator.choice([1, 8, 500]))
            else:
                content[:8] = generator.randbytes(8)
        victim.write_bytes(content)
        if victim.name != "MANIFEST.json":
            reseal(checkpoint)
        elif generator.random() < 0.7:
            with contextlib.suppress(ValueError, AttributeError):
                victim.write_bytes(store.sealed(json.loads(content)))
        yield number, victim.name
        for path, original in originals.items():
            path.write_bytes(original)


def fuzz(run, count, seed):
    """Every mutant is loaded for sampling and for going on: a named error or a success, and quickly."""
    outcomes = {"loaded": 0, "refused": 0}
    checkpoint = list_checkpoints(run.path / "checkpoints")[-1]
    for _ in mutants(checkpoint, random.Random(seed), count):
        began = time.perf_counter()
        try:
            load_checkpoint(checkpoint)
            outcomes["loaded"] += 1
        except UserFault as fault:
            outcomes["refused"] += str(checkpoint) in str(fault)
        assert time.perf_counter() - began < 5
    assert sum(outcomes.values()) == count
    return outcomes


def test_c7_a_mutant_is_loaded_or_refused_by_name(run, straight):
    outcomes = fuzz(run, 200, seed=5)
    assert outcomes["refused"] > 50


@pytest.mark.soak
def test_c7_two_thousand_mutants(run, straight):
    outcomes = fuzz(run, 2000, seed=6)
    print(outcomes)
    assert outcomes["refused"] > 500


def test_c7_a_state_that_makes_no_sense_is_refused_by_name(run, straight):
    """Sealed again, so only what reads state.json stands between it and the run."""
    folder = run.path / "checkpoints" / "step-000000006"
    state = json.loads((folder / "state.json").read_bytes())
    for key, value in itertools.product(sorted(state), [None, "x", -1, [], {}, 10**30]):
        (folder / "state.json").write_text(json.dumps({**state, key: value}))
        reseal(folder)
        with contextlib.suppress(UserFault):
            position = read_run_state(folder)
            assert isinstance(position.step, int)


def test_only_rank_zero_reads_a_whole_checkpoint_to_verify_it(run, monkeypatch):
    run("trainer.max_steps=2")
    verified, resumed = [], []
    real = store.verify
    monkeypatch.setattr(store, "verify", lambda path: (verified.append(path), real(path))[1])
    monkeypatch.setattr("minigpt.training.run.train_from", lambda job, checkpoint, *_: resumed.append(checkpoint))
    newest = run.path / "checkpoints/step-000000002"
    for rank in (0, 1):
        processes = SimpleNamespace(rank=rank, gather=lambda _: [newest.name], require_equal_on_all_ranks=lambda *_: 0)
        job = SimpleNamespace(run=RunDirectory(run.path, writes=rank == 0), processes=processes, callbacks=())
        job.config = compose("train", run.arguments("trainer.max_steps=4"))
        begin_or_continue(job, ())
    assert (verified, resumed) == ([newest], [newest, newest])
