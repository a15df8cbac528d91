"""wandb and TensorBoard beside metrics.jsonl: if one fails, a sentence says so and training goes on without it."""

import os
import re
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.config.schema import LoggerConfig
from minigpt.files import write_file

FINISH_SECONDS = 30.0  # for wandb to send the rest when the run ends
# Only numbers and the run's settings are sent: nothing about the machine, the environment or the code.
WANDB_SETTINGS: dict[str, Any] = {f"disable_{name}": True for name in ("code", "git", "job_creation")}
WANDB_SETTINGS |= {f"x_disable_{name}": True for name in ("meta", "machine_info", "stats")}
WANDB_SETTINGS |= {"console": "off", "host": "-", "silent": True, "x_save_requirements": False}


class Tracker:
    """Hands each row of a run to wandb or TensorBoard, if `config` names one.

    `run_dir` holds their files, and wandb's id of the run: a run that continues is continued there, too. `settings` is
    the run's config without secrets, shown by wandb.
    """

    def __init__(
        self, config: LoggerConfig, run_dir: Path, *, settings: dict[str, Any], step: int, say: Callable[[str], object]
    ):
        self.name, self.run_dir, self.say = config.name, run_dir, say
        self.target: Any = None  # wandb's run or TensorBoard's writer
        if self.name == "wandb":
            self._try(lambda: self._open_wandb(config, settings))
        elif self.name == "tensorboard":
            self._try(lambda: self._open_tensorboard(step))

    def log(self, row: dict[str, Any]) -> None:
        """Hand over a row's numbers."""
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float) and key != "step"}
        if self.target is not None and self.name == "wandb":
            self._try(lambda: self.target.log(numbers, step=row["step"]))
        elif self.target is not None:
            self._try(lambda: [self.target.add_scalar(key, value, row["step"]) for key, value in numbers.items()])

    def close(self) -> None:
        """Write what is left; wandb has FINISH_SECONDS to send it."""
        if self.target is not None and self.name == "wandb":
            thread = threading.Thread(target=self._try, args=[self._finish_wandb], daemon=True)
            thread.start()
            thread.join(FINISH_SECONDS)
            if thread.is_alive():
                self.say(f"wandb did not finish within {FINISH_SECONDS:.0f} s; metrics.jsonl has every row")
        elif self.target is not None:
            self._try(self.target.close)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever a library raises
            self.target = None
            reason = " ".join(str(error).split())[:300]
            self.say(f"{self.name} gets no more rows ({type(error).__name__}: {reason}); metrics.jsonl has every row")

    def _open_wandb(self, config: LoggerConfig, settings: dict[str, Any]) -> None:
        os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        import wandb

        self.target = wandb.init(
            dir=str(self.run_dir),
            id=wandb_id(self.run_dir),
            name=self.run_dir.resolve().name,
            project=config.project,
            group=config.group,
            mode=config.mode,
            resume="allow",
            config=settings,
            settings=WANDB_SETTINGS | {"init_timeout": FINISH_SECONDS},
        )
        if self.target.url:
            self.say(f"wandb: {self.target.url}")

    def _finish_wandb(self) -> None:
        url = self.target.url
        self.target.finish()
        if not url:
            self.say(f"wandb: `wandb sync {os.path.relpath(self.run_dir)}/wandb/offline-run-*` uploads this run")

    def _open_tensorboard(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.target = SummaryWriter(str(self.run_dir / "tensorboard"), purge_step=step + 1)


def wandb_id(run_dir: Path) -> str:
    """Return the id of the run at wandb, chosen once and kept in the run directory.

    If a wandb sweep agent started this process, the agent has chosen it, and looks for the results under it.
    """
    file = run_dir / "wandb_id.txt"
    if file.exists():
        return file.read_text().strip()
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", run_dir.resolve().name)[:80]
    agents = os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None
    chosen = agents or f"{name}-{secrets.token_hex(4)}"
    write_file(file, chosen + "\n")
    return chosen
