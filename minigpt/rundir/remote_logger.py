"""wandb on top of the files, at arm's length: whatever happens to it, training does not wait and does not die."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.config.schema import LoggerConfig
from minigpt.redact import redact_values
from minigpt.rundir.files import write_file

PATIENCE_SECONDS = 30.0  # for wandb to begin, and again for the rest to be sent when the run ends
COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("wandb_process.py"))]


class RemoteLogger:
    """A process that hands the rows of metrics.jsonl to wandb while they are written (see wandb_process.py).

    It reads the file by itself, so training hands nothing over. A logger that can't start, hangs, or dies costs one
    sentence, and metrics.jsonl has every row all the same.

    Args:
        config: of the logger.
        run_dir: wandb's files lie there, and the run's id, so that a run that continues goes on in the same wandb run.
        settings: the run's config, shown by wandb.
        say: prints the one sentence.
    """

    def __init__(self, config: LoggerConfig, run_dir: Path, *, settings: dict[str, Any], say: Callable[[str], None]):
        self.say = say
        self.off = False
        self.process: subprocess.Popen | None = None
        rows = run_dir / "metrics.jsonl"
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
                "rows_from": rows.stat().st_size if rows.exists() else 0,
                "patience_seconds": PATIENCE_SECONDS,
            }
            self.process = subprocess.Popen(
                COMMAND,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training, which tells this process when to end
            )
            self.thread = threading.Thread(target=self._talk, args=(self.process, opening), name="wandb", daemon=True)
            self.thread.start()
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Let the rest be sent, but not for long."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.thread.join(PATIENCE_SECONDS)
        if self.thread.is_alive():  # the process, or one that it started, still holds its end of the pipe
            self._give_up(f"it did not finish within {PATIENCE_SECONDS:.0f} s and is left behind")
        if self.process.poll() is None:  # else its number may be somebody else's by now
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)  # and all it started

    def _talk(self, process: subprocess.Popen, opening: dict[str, Any]) -> None:
        """Say what is to be done, and pass on what the process has to say, until it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        fault = ""
        with contextlib.suppress(OSError, ValueError):  # its end is told below
            process.stdin.write(json.dumps(opening).encode() + b"\n")
        for line in process.stdout:
            with contextlib.suppress(ValueError, AttributeError):
                told = json.loads(line)
                fault = told.get("fault", fault)
                if "say" in told and not self.off:
                    self.say(str(told["say"]))
        if process.wait():
            self._give_up(fault or f"its process ended with code {process.returncode}")

    def _give_up(self, reason: str) -> None:
        if not self.off:
            self.off = True
            self.say(f"wandb is off from now on: {reason}. metrics.jsonl has every row")


def wandb_id(run_dir: Path) -> str:
    """Return the id of the run at wandb: chosen once, kept in the run directory, unlike that of any other run.

    A wandb sweep agent that started this process has chosen it, and looks for the results there.
    """
    file = run_dir / "wandb_id.txt"
    kept = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if found := re.fullmatch(r"([\w.-]{1,120})\n?", kept, re.ASCII):
        return found[1]
    chosen = os.environ.get("WANDB_RUN_ID", "") if os.environ.get("WANDB_SWEEP_ID") else ""
    if not re.fullmatch(r"[\w.-]{1,120}", chosen):
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", run_dir.resolve().name)[:80]
        chosen = f"{name}-{secrets.token_hex(4)}"
    write_file(file, chosen + "\n")
    return chosen
