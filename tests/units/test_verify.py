"""The verdict on exact resume: that it sees every difference, and that its kills are real and prove something."""

import json
import math
import os
import shutil
import sys

import pytest

from minigpt.config.compose import compose
from minigpt.config.schema import TrainConfig, TrainerConfig
from minigpt.faults import StoppedEarly, UserFault
from minigpt.rundir.rows import cut_rows_after, read_rows
from minigpt.verify import compare_runs, last_checkpoint, verify_resume
from tests.promises.test_checkpoint import flip_a_bit

# Stands for scripts/train.py: 40 steps, a checkpoint every 2; "inexact" lets what came before a kill show.
TRAINING = """
import sys, time
from pathlib import Path
from minigpt.checkpoint.folder import latest_usable, step_of, write_checkpoint
from minigpt.rundir.rows import append_row, cut_rows_after
run = Path(sys.argv[-1].removeprefix("run.dir="))
(run / "checkpoints").mkdir(parents=True, exist_ok=True)
found = latest_usable(run / "checkpoints")
begun_at, begun = step_of(found) if found else 0, time.time()
cut_rows_after(run / "metrics.jsonl", begun_at)
append_row(run / "events.jsonl", {"event": "continued" if found else "began"})
for step in range(begun_at + 1, 41):
    time.sleep(0.01)
    loss = begun_at if "inexact" in sys.argv else 1 / step
    append_row(run / "metrics.jsonl", {"step": step, "train/loss": loss, "seconds": time.time() - begun})
    if step % 2 == 0:
        write_checkpoint(run / "checkpoints", step, {"weights": str(loss).encode()}, {})
"""


@pytest.mark.parametrize("kind", ["exact", "inexact"])
def test_a_run_killed_at_random_moments_is_judged_by_its_bytes(tmp_path, kind, capsys):
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), kind]
    code = verify_resume(TrainConfig(), command, kills=2, seed=4, folder=tmp_path)
    said = capsys.readouterr().out.splitlines()
    kills = len([line for line in said if line.startswith("Kill")])
    assert kills >= 1
    assert code == (kind == "inexact")
    assert any(line.startswith(f"{'NOT ' * code}EXACT: killed {kills} times") for line in said)
    assert any(line.startswith("Different      metrics.jsonl") for line in said) == (kind == "inexact")


def test_a_training_that_fails_is_named(tmp_path):
    with pytest.raises(UserFault, match=r"exit code 3.*\n.*no luck"):
        verify_resume(TrainConfig(), ["sh", "-c", "echo no luck; exit 3"], kills=1, folder=tmp_path)


def test_a_run_limited_by_time_is_outside_the_promise(tmp_path):
    with pytest.raises(UserFault, match="max_minutes"):
        verify_resume(TrainConfig(trainer=TrainerConfig(max_minutes=1)), ["true"], kills=1, folder=tmp_path)


def test_every_difference_but_of_timings_is_seen(run, tmp_path):
    one = run("samples.every_steps=3", "samples.max_new_tokens=4")
    same = shutil.copytree(one, tmp_path / "same")
    rows = read_rows(same / "metrics.jsonl")
    rows[-1]["seconds"] += 1
    (same / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compare_runs(one, same)[1] == []

    def change_row(copy):
        rows[2]["train/loss"] += 1e-9
        (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def cut_rows(copy):
        cut_rows_after(copy / "metrics.jsonl", rows[0]["step"])

    changes = {
        "optimizer.safetensors": lambda copy: flip_a_bit(last_checkpoint(copy) / "optimizer.safetensors"),
        "state.json": lambda copy: (last_checkpoint(copy) / "state.json").unlink(),
        f"metrics.jsonl ({len(rows)} and {len(rows)} rows), step {rows[2]['step']}: train/loss": change_row,
        f"metrics.jsonl ({len(rows)} and 1 rows), step {rows[1]['step']}: ": cut_rows,
        "samples.jsonl": lambda copy: (copy / "samples.jsonl").write_text("{}\n"),
        "step-000000006 and step-000000005": lambda copy: last_checkpoint(copy).rename(
            copy / "checkpoints/step-000000005"
        ),
    }
    for number, (word, change) in enumerate(changes.items()):
        copy = shutil.copytree(one, tmp_path / str(number))
        change(copy)
        assert any(word in line for line in compare_runs(one, copy)[1]), (word, compare_runs(one, copy))


def test_a_proof_needs_a_checkpoint_at_a_kill(run, monkeypatch):
    straight, commands = run("trainer.max_steps=2"), []

    def trained(command, path, kill_after=math.inf):
        commands.append(command)
        if kill_after == math.inf:
            shutil.copytree(straight, path)
        return kill_after < math.inf  # killed before its first checkpoint

    monkeypatch.setattr("minigpt.verify._train", trained)
    config = compose("train", run.arguments("trainer.max_steps=30"))
    config.typed -= {"checkpoint.every_steps"}
    with pytest.raises(UserFault, match="never killed after its first checkpoint: nothing is proved"):
        verify_resume(config, ["train"], kills=2, folder=run.folder / "proof")
    assert commands == 3 * [["train", f"checkpoint.every_steps={min(3, config.checkpoint.every_steps)}"]]


def test_ctrl_c_leaves_no_folder(tmp_path):
    folder = tmp_path / "verified"
    folder.mkdir()
    stop = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGINT); time.sleep(60)"
    with pytest.raises(StoppedEarly):
        verify_resume(TrainConfig(), [sys.executable, "-c", stop], kills=1, folder=folder)
    assert not folder.exists()
