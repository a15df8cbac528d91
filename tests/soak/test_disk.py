"""Trials D1 with a disk that is really full, and C1 to its end: each flipped bit survived, not only noticed."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import latest_usable, list_checkpoints, step_of
from minigpt.faults import STORAGE_FAILURE
from minigpt.verify import compare_runs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the permission to mount a small filesystem (root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return filler
    raise AssertionError


@pytest.mark.parametrize("freed", [True, False])
def test_d1_the_disk_fills_up_while_the_run_goes_on(place, small_disk, freed):
    extra = ["trainer.max_steps=300", "checkpoint.every_steps=20"]
    straight = place.finish("straight", *extra)
    command = [sys.executable, str(TRAIN), *place.arguments("disk/run", *extra)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    checkpoints = small_disk / "run" / "checkpoints"
    while len(list_checkpoints(checkpoints)) < 2:
        assert process.poll() is None
        time.sleep(0.001)
    filler = fill(small_disk)
    output = ""
    for line in process.stdout:
        output += line
        if "WARNING" in line and freed:
            filler.unlink(missing_ok=True)
    code = process.wait()
    print("\n" + "\n".join(line for line in output.splitlines() if "WARNING" in line or "Error" in line)[:600])
    assert "No space left on device" in output or "MB are free" in output
    if not freed:
        assert code == STORAGE_FAILURE
        assert "Traceback" not in output
        assert step_of(latest_usable(checkpoints)) >= 16
        filler.unlink()
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    assert code == 0
    assert compare_runs(straight, small_disk / "run")[1] == []


def test_c1_200_flipped_bits_each_survived_to_the_same_bytes(place):
    extra = ["trainer.max_steps=12", "checkpoint.keep_last=3"]
    straight = place.finish("straight", *extra)
    kept = place.folder / "kept"
    shutil.copytree(straight, kept)
    shutil.rmtree(kept / "checkpoints" / "step-000000012")
    generator = random.Random(200)
    for number in range(200):
        run = place.folder / "flipped"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(kept, run)
        newest = list_checkpoints(run / "checkpoints")[-1]
        victim = sorted(newest.iterdir())[number % len(os.listdir(newest))]
        content = bytearray(victim.read_bytes())
        bit = generator.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        victim.write_bytes(content)
        place.finish("flipped", *extra)
        assert newest.with_name(newest.name + ".damaged").is_dir(), (victim, bit)
        assert compare_runs(straight, run)[1] == [], (victim, bit)
