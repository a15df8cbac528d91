"""wandb and TensorBoard beside metrics.jsonl: if one fails, a sentence says so and training goes on without it."""

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.config.schema import LoggerConfig
from minigpt.files import write_file
from minigpt.screen import tell

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

    def __init__(self, config: LoggerConfig, run_dir: Path, *, settings: dict[str, Any], step: int):
        self.name, self.run_dir = config.name, run_dir
        self.target: Any = None  # wandb's run or TensorBoard's writer
        if self.name != "files":
            self._try(lambda: self._open(config, settings, step))

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
            thread = threading.Thread(target=self._try, args=[self.target.finish], daemon=True)
            thread.start()
            thread.join(FINISH_SECONDS)
            if thread.is_alive():
                tell(f"wandb did not finish within {FINISH_SECONDS:.0f} s; metrics.jsonl has every row")
        elif self.target is not None:
            self._try(self.target.close)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever a library raises
            self.target = None
            reason = " ".join(str(error).split())[:300]
            tell(f"{self.name} gets no more rows ({type(error).__name__}: {reason}); metrics.jsonl has every row")

    def _open(self, config: LoggerConfig, settings: dict[str, Any], step: int) -> None:
        if self.name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self.target = SummaryWriter(str(self.run_dir / "tensorboard"), purge_step=step + 1)
            return
        id_file = self.run_dir / "wandb_id.txt"  # a run that continues is continued at wandb, too
        if not id_file.exists():  # an agent of a wandb sweep looks for the results under the id that it has chosen
            agents = os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None
            write_file(id_file, (agents or secrets.token_hex(8)) + "\n")
        os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        import wandb

        self.target = wandb.init(
            dir=str(self.run_dir),
            id=id_file.read_text().strip(),
            name=self.run_dir.resolve().name,
            project=config.project,
            group=config.group,
            mode=config.mode,
            resume="allow",
            config=settings,
            settings=WANDB_SETTINGS | {"init_timeout": FINISH_SECONDS},
        )
        offline = f"`wandb sync {os.path.relpath(self.run_dir)}/wandb/offline-run-*` uploads this run"
        tell(f"wandb: {self.target.url or offline}")
