"""Trials D2, D3 and K14: every system call of a save fails (ENOSPC, EIO), and every one is the process's last.

strace (a system tool; Linux) puts the faults in. Without it these trials are skipped; tests/checkpoint/ has variants
within one process.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import latest_usable, list_checkpoints, remove_unfinished, step_of, verify

SAVES = """
import os, sys
from pathlib import Path
from minigpt.checkpoint.folder import prune, write_checkpoint
from minigpt.faults import StorageFailure
run = Path(sys.argv[1])
def save(step):
    files = {"model.safetensors": bytes([step]) * 200_000, "state.json": b"%d" % step}
    write_checkpoint(run / "checkpoints", step, files, {"val_loss": 1 / step}, after=[run / "metrics.jsonl", run])
    prune(run / "checkpoints", keep_last=2, keep_every_steps=0)
for step in (1, 2, 3):
    save(step)
os.write(1, b"ready\\n")
os.read(0, 1)
try:
    save(4)
    word = b"saved"
except StorageFailure as fault:
    word = b"refused: " + str(fault).encode()
except BaseException as error:
    word = b"surprised: " + repr(error).encode()
os.write(1, word)
os._exit(0)
"""

# Their failure is a matter of the disk. (The rest is memory, threads and signals: there the process is only killed.)
OF_FILES = re.compile(
    r"openat|open|creat|read|write|pread64|pwrite64|lseek|close|fsync|fdatasync|rename\w*|mkdir\w*|rmdir|unlink\w*"
    r"|getdents64|statfs|fstatfs|stat|fstat|lstat|newfstatat|statx|ftruncate|fadvise64|fcntl|ioctl"
)


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not can_trace(), reason="needs strace, and the permission to trace (ptrace)"),
]


def traced(folder: Path, *options: str) -> tuple[str, str]:
    """Save a fourth checkpoint under strace.

    Returns:
        What the process said last, and strace's log.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    log = folder.parent / "log"
    tracer = subprocess.Popen(
        ["strace", "-f", "-o", str(log), *options, "-p", str(process.pid)], stderr=subprocess.PIPE, text=True
    )
    assert "attached" in tracer.stderr.readline()
    word, _ = process.communicate("x")
    tracer.communicate()
    return word, log.read_text()


def calls_of_a_save(folder: Path) -> dict[str, int]:
    """How often each system call is made, from the first to the word 'saved'."""
    word, log = traced(folder)
    assert word == "saved"
    counts: dict[str, int] = {}
    for line in log.splitlines():
        if 'write(1, "saved"' in line:
            return counts
        match = re.match(r"\d+\s+(\w+)\(", line)
        if match:
            counts[match[1]] = counts.get(match[1], 0) + 1
    raise AssertionError(log[-500:])


@pytest.mark.parametrize("action", ["error=ENOSPC", "error=EIO", "signal=KILL"])
def test_old_or_new_whatever_happens_at_any_call(tmp_path, action):
    folder = tmp_path / "run"
    results: dict[str, int] = {}
    for name, count in sorted(calls_of_a_save(folder).items()):
        if "error" in action and not OF_FILES.fullmatch(name):
            continue
        for number in range(1 + (name == "read"), count + 1):  # the first read waits for strace
            word, _ = traced(folder, "-e", f"trace={name}", "-e", f"inject={name}:{action}:when={number}")
            where = f"{name} number {number}: {word}"
            if "error" in action:
                assert word.startswith(("saved", "refused")), where
                assert not list((folder / "checkpoints").glob(".step-*.tmp")), f"litter: {where}"
            remove_unfinished(folder / "checkpoints")
            latest = latest_usable(folder / "checkpoints", say=lambda text: pytest.fail(text))
            assert latest is not None, where
            assert step_of(latest) in ((4,) if word == "saved" else (3, 4)), where
            assert len(list_checkpoints(folder / "checkpoints")) >= 2, where
            for path in list_checkpoints(folder / "checkpoints"):
                verify(path)
            outcome = f"{word.partition(':')[0] or 'killed'}, step {step_of(latest)}"
            results[outcome] = results.get(outcome, 0) + 1
    print(f"\n{action}: {sum(results.values())} places: {results}")
    assert sum(results.values()) > 40
