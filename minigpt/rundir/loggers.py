"""wandb and TensorBoard, beside the files: whatever happens to them, training does not wait and does not fail."""

import contextlib
import json
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from minigpt.config.schema import LoggerConfig
from minigpt.files import is_gone, read_plain, write_file
from minigpt.redact import redact_values

PATIENCE_SECONDS = 30.0  # for wandb to begin, and again for the rest to be sent when the run ends
COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("wandb_process.py"))]


class TensorBoard:
    """Writes the numbers of each row into `run_dir/tensorboard`: `tensorboard --logdir runs` shows them.

    After a fault one sentence is printed, and no more rows are written there.

    Args:
        run_dir: of the run.
        step: where the run stands; what an interrupted run wrote for later steps is not shown.
        say: prints the one sentence.
    """

    def __init__(self, run_dir: Path, *, step: int, say: Callable[[str], None]):
        from torch.utils.tensorboard import SummaryWriter  # an extra, loaded when it is asked for

        self.say = say
        self.writer: Any = None
        try:
            self.writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1)
        except Exception as error:
            self._give_up(error)

    def log(self, step: int, row: dict[str, Any]) -> None:
        """Hand over a row's numbers; they are written a little later, by a thread."""
        try:
            for key, value in row.items():
                if self.writer is not None and key != "step" and isinstance(value, int | float):
                    self.writer.add_scalar(key, value, step)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.writer = None
        self.say(f"TensorBoard gets no more rows, metrics.jsonl has them all ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Write what is left."""
        try:
            if self.writer is not None:
                self.writer.close()
        except Exception as error:
            self._give_up(error)


class RemoteLogger:
    """A process that hands the rows of metrics.jsonl to wandb while they are written (see wandb_process.py).

    It reads the file by itself, so training hands nothing over. If it can't start, hangs, or dies, one sentence is
    printed, and metrics.jsonl has every row all the same.

    Args:
        config: of the logger.
        run_dir: holds wandb's files and the run's id, so that a run that continues goes on in the same wandb run.
        settings: the run's config, shown by wandb.
        say: prints the one sentence.
    """

    def __init__(self, config: LoggerConfig, run_dir: Path, *, settings: dict[str, Any], say: Callable[[str], None]):
        self.say = say
        self.off = False
        self.process: Popen | None = None
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
            # Ctrl-C is for the training, which tells this process when to end: hence a session of its own.
            self.process = Popen(COMMAND, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True)
            self.thread = threading.Thread(target=self._talk, args=(self.process, opening), name="wandb", daemon=True)
            self.thread.start()
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Wait up to PATIENCE_SECONDS for the rest to be sent."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.thread.join(PATIENCE_SECONDS)
        if self.thread.is_alive():  # the process, or one that it started, still holds its end of the pipe
            self._give_up(f"it did not finish within {PATIENCE_SECONDS:.0f} s and is left behind")
        if self.process.poll() is None:  # else another process may have its number by now
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)  # and all it started

    def _talk(self, process: Popen, opening: dict[str, Any]) -> None:
        """Send the process its task, and print its messages until it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        fault = ""
        with contextlib.suppress(OSError, ValueError):  # its end is told below
            process.stdin.write(json.dumps(opening).encode() + b"\n")
        for line in process.stdout:
            kind, _, text = line.decode(errors="replace").strip().partition(": ")
            if kind == "fault":
                fault = text
            elif kind == "wandb" and not self.off:
                self.say(f"wandb: {text}")
        if process.wait():
            self._give_up(fault or f"its process ended with code {process.returncode}")

    def _give_up(self, reason: str) -> None:
        if not self.off:
            self.off = True
            self.say(f"wandb is off from now on: {reason}. metrics.jsonl has every row")


def wandb_id(run_dir: Path) -> str:
    """Return the id of the run at wandb: unique, chosen once and kept in the run directory.

    If a wandb sweep agent started this process, the agent has chosen it, and looks for the results under it.
    """
    file = run_dir / "wandb_id.txt"
    kept = "" if is_gone(file) else read_plain(file, 1000).decode(errors="replace").removesuffix("\n")
    given = os.environ.get("WANDB_RUN_ID", "") if os.environ.get("WANDB_SWEEP_ID") else ""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", run_dir.resolve().name)[:80]
    candidates = (kept, given, f"{name}-{secrets.token_hex(4)}")
    chosen = next(each for each in candidates if re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", each))
    if chosen != kept:
        write_file(file, chosen + "\n")
    return chosen
