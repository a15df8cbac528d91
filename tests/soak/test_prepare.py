"""Preparing under random SIGKILLs of the command or of a worker, whole or in parts: the same SHA-256."""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
KILLS = 20

PROGRAM = """
import sys
from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import units
from minigpt.data.preparing.prepare import UnfinishedParts, prepare

source, out, workers, part = sys.argv[1:]
units.UNIT_BYTES = 200_000
data = DataConfig(name="text", source=source, dir=out)
try:
    prepare(data, TokenizerConfig("bpe", vocab_size=1000), work=WorkConfig(int(workers), part or None))
except UnfinishedParts as rest:
    print(rest)
"""


def start(source: Path, out: Path, workers: int, part: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(source), str(out), str(workers), part]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def children(process: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def digest(out: Path) -> str:
    folder = next(out.glob("text-*"))
    assert not (folder / "units").exists()
    hashes = (
        hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.name != ".lock"
    )
    return " ".join(hashes)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    words, random_words = ["the", "quick", "fox", "jumps", "over", "lazy", "naïve", "中文", "1234"], random.Random(1)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(" ".join(random_words.choices(words, k=12)) + ".\n" for _ in range(250_000)))
    return path


@pytest.mark.parametrize("parts", [0, 3])
def test_twenty_random_kills_change_no_byte(source, tmp_path, parts):
    assert start(source, tmp_path / "straight", 1).wait() == 0
    wanted = digest(tmp_path / "straight")
    moments, out, kills, orphaned = random.Random(20 + parts), tmp_path / "killed", {"parent": 0, "worker": 0}, 0.0
    while sum(kills.values()) < KILLS:
        part = f"{moments.randint(1, parts)}/{parts}" if parts else ""
        process, there = start(source, out, moments.randint(1, 3), part), len(list(out.rglob("*.unit")))
        while process.poll() is None:
            while moments.random() > 0.001 and process.poll() is None:  # sometimes before it encodes
                if children(process.pid) or len(list(out.rglob("*.unit"))) > there:
                    break
                time.sleep(0.02)
            time.sleep(moments.uniform(0.0, 0.6))
            workers = children(process.pid)
            if workers and moments.random() < 0.6:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(moments.choice(workers), signal.SIGKILL)
                    kills["worker"] += 1
            elif process.poll() is None:
                process.kill()
                kills["parent"] += 1
                process.wait()
                began = time.monotonic()
                while any(map(is_running, workers)):
                    assert time.monotonic() - began < 2.0
                    time.sleep(0.02)
                orphaned = max(orphaned, time.monotonic() - began)
        assert process.returncode in (0, -signal.SIGKILL)
        if list(out.glob("*/prepared.json")):
            assert start(source, out, 1).wait() == 0  # a kill at the very end leaves the units to be removed
            assert digest(out) == wanted
            shutil.rmtree(out)
    for number in random.Random(1).sample(range(1, parts + 1), parts):
        assert start(source, out, 2, f"{number}/{parts}").wait() == 0
    if not parts:
        assert start(source, out, 2).wait() == 0
    assert digest(out) == wanted
    assert min(kills.values()) > 2
    print(f"\nkilled {kills}; the longest life of an orphan {orphaned:.2f} s")


PLAIN = """
import sys
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
prepare(DataConfig(name="text", source=sys.argv[1], dir=sys.argv[2]), TokenizerConfig("byte"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_four_times_the_text_takes_no_more_memory(tmp_path):
    """Of its own: the tokens that are mapped into it are the system's to take back."""
    peaks = []
    for copies in (25, 100):  # of 21 MB: words and lines of unlike length and script
        words = random.Random(1).choices(["wood", "schön", "木", "a", "\n", "chuck " * 50], k=400_000)
        (tmp_path / "text").write_bytes(" ".join(words).encode() * copies)
        peak, command = 0, [sys.executable, "-c", PLAIN, str(tmp_path / "text"), str(tmp_path / "data")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peak = max(peak, next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
            time.sleep(0.02)
        assert process.returncode == 0
        shutil.rmtree(tmp_path / "data")
        peaks.append(peak)
    print(f"\n{peaks[0] // 1024} MB, of four times the text {peaks[1] // 1024} MB")
    assert peaks[1] < 1.1 * peaks[0]
