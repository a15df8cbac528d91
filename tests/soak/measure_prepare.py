"""Speed of `minigpt prepare` with two workers beside two independent commands, one, and tiktoken's own threads.

    python tests/soak/measure_prepare.py TEXT [ROUNDS]     # TEXT: a file of some hundred MB; GPT-2's vocabulary is used

Each round runs all of them in turn; the last lines are medians over the rounds. CPU seconds count children too.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def prepare(source: Path, folder: str, workers: int) -> subprocess.Popen:
    words = ["data=text", f"data.source={source}", "tokenizer=gpt2", f"data.dir={folder}", f"prepare.workers={workers}"]
    command = [sys.executable, str(ROOT / "minigpt"), "prepare", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def commands(*started: tuple[Path, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        processes = [prepare(text, f"{folder}/{number}", workers) for number, (text, workers) in enumerate(started)]
        assert all(process.wait() == 0 for process in processes)


THREADS = """
import sys
import tiktoken
encoding = tiktoken.get_encoding("gpt2")
text = open(sys.argv[1], encoding="utf-8").read()
step = 1 << 16
parts = [text[place : place + step] for place in range(0, len(text), step)]
for place in range(0, len(parts), 256):
    encoding.encode_ordinary_batch(parts[place : place + 256], num_threads=2)
"""


def threads(text: Path) -> None:
    subprocess.run([sys.executable, "-c", THREADS, str(text)], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock and of all CPUs."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def main(source: Path, rounds: int) -> None:
    size = source.stat().st_size / 1e6
    with tempfile.TemporaryDirectory() as folder:
        halves = [Path(folder, name) for name in ("a.txt", "b.txt")]
        lines = source.read_bytes().splitlines(keepends=True)
        for half, part in zip(halves, (lines[: len(lines) // 2], lines[len(lines) // 2 :]), strict=True):
            half.write_bytes(b"".join(part))
        contenders: dict[str, Callable[[], None]] = {
            "two workers": lambda: commands((source, 2)),
            "two independent commands, half the text each": lambda: commands((halves[0], 1), (halves[1], 1)),
            "one process": lambda: commands((source, 1)),
            "encode_ordinary_batch, two threads, nothing written": lambda: threads(source),
        }
        found = defaultdict[str, list[tuple[float, float]]](list)
        for _ in range(rounds):
            for name, work in contenders.items():
                found[name].append(measured(work))
                print(f"{name}: {size / found[name][-1][0]:.1f} MB/s, {found[name][-1][1]:.1f} CPU s", flush=True)
    clock, cpu = ({name: statistics.median(each[i] for each in rows) for name, rows in found.items()} for i in (0, 1))
    two, pair, one, plain = contenders
    print(f"two workers to two independent commands: {clock[pair] / clock[two]:.3f} of their speed (wanted 0.95)")
    print(f"two workers to one process: {cpu[two] / cpu[one]:.3f} times its CPU seconds (wanted at most 1.1)")
    print(f"two workers to plain tiktoken: {clock[plain] / clock[two]:.2f} times its speed (aim 1.5)")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
