"""wandb on top of the files, at arm's length: whatever happens to it, training does not wait and does not die."""

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.config.schema import LoggerConfig
from minigpt.redact import redact_values

ROOM = 10_000  # rows waiting for a slow network; later ones are dropped
PATIENCE_SECONDS = 30.0  # for wandb to begin, and again for the rest to be sent when the run ends
COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("wandb_process.py"))]


class RemoteLogger:
    """Hands rows to a process that talks to wandb (see wandb_process.py), by way of a thread.

    Nothing here raises or waits: a logger that can't start, hangs, or dies costs one sentence, and metrics.jsonl
    has every row all the same.

    Args:
        config: of the logger.
        run_dir: wandb's files lie there, and the run's id, so that a run that continues goes on in the same wandb run.
        settings: the run's config, shown by wandb.
        say: prints the one sentence.
    """

    def __init__(self, config: LoggerConfig, run_dir: Path, *, settings: dict[str, Any], say: Callable[[str], None]):
        self.say = say
        self.rows: queue.Queue[dict[str, Any] | None] = queue.Queue(ROOM)
        self.off = False
        self.process: subprocess.Popen | None = None
        self.threads: list[threading.Thread] = []
        try:
            opening = {
                "dir": str(run_dir),
                "id": wandb_id(run_dir),
                "name": run_dir.resolve().name,
                "project": config.project,
                "group": config.group,
                "mode": config.mode,
                "resume": "allow",
                "config": redact_values(settings),
                "patience_seconds": PATIENCE_SECONDS,
            }
            self.process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training, which tells this process when to end
            )
            self.rows.put(opening)
            for work in (self._write, self._read):
                self.threads.append(threading.Thread(target=work, name="wandb", daemon=True))
                self.threads[-1].start()
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def log(self, step: int, row: dict[str, Any]) -> None:
        """Queue a row; never waits."""
        if not self.off:
            values = {key: value for key, value in row.items() if value is not None and key != "step"}
            with contextlib.suppress(queue.Full):
                self.rows.put_nowait({"step": step, "values": values})

    def close(self) -> None:
        """Let the rest be sent, but not for long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with contextlib.suppress(queue.Full):
            self.rows.put_nowait(None)
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self.threads):
            self._give_up(f"it did not finish within {PATIENCE_SECONDS:.0f} s and is left behind")
        self._kill()

    def _write(self) -> None:
        """Pass the rows on; a pipe that is full blocks this thread only."""
        assert self.process is not None
        assert self.process.stdin is not None
        item: dict[str, Any] | None = {}
        with contextlib.suppress(OSError, ValueError):  # its end is told by _read
            while item is not None:
                item = self.rows.get()
                self.process.stdin.write(json.dumps(item).encode() + b"\n")
                self.process.stdin.flush()

    def _read(self) -> None:
        """Pass on what it has to say, until it ends."""
        assert self.process is not None
        assert self.process.stdout is not None
        fault = ""
        for line in self.process.stdout:
            with contextlib.suppress(ValueError, AttributeError):
                told = json.loads(line)
                fault = told.get("fault", fault)
                if "say" in told and not self.off:
                    self.say(str(told["say"]))
        if self.process.wait() and not self.off:
            self._give_up(fault or f"its process ended with code {self.process.returncode}")
        with contextlib.suppress(queue.Full):
            self.rows.put_nowait(None)  # the writing thread may wait for a row that nobody will send

    def _give_up(self, reason: str) -> None:
        if not self.off:
            self.off = True
            self.say(f"wandb is off from now on: {reason}. metrics.jsonl has every row")

    def _kill(self) -> None:
        """End the process and all it started."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)


def wandb_id(run_dir: Path) -> str:
    """The id of the run at wandb: chosen once, kept in the run directory, unlike that of any other run.

    A wandb sweep agent that started this process has chosen it, and looks for the results there.
    """
    file = run_dir / "wandb_id.txt"
    if file.is_file() and (
        found := re.fullmatch(r"[\w.-]{1,120}\n?", file.read_text(encoding="utf-8", errors="replace"))
    ):
        return found.group().strip()
    chosen = os.environ.get("WANDB_RUN_ID", "") if os.environ.get("WANDB_SWEEP_ID") else ""
    if not re.fullmatch(r"[\w.-]{1,120}", chosen):
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", run_dir.resolve().name)[:80]
        chosen = f"{name}-{secrets.token_hex(4)}"
    file.write_text(chosen + "\n")
    return chosen
