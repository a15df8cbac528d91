"""Rows for TensorBoard, in the run directory: `tensorboard --logdir runs` shows them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes the numbers of each row into `run_dir/tensorboard`.

    A fault costs one sentence and the rest of these files, never the training: metrics.jsonl has every row.

    Args:
        run_dir: of the run.
        step: where the run stands; what an interrupted run wrote for later steps is not shown.
        say: prints the one sentence.
    """

    def __init__(self, run_dir: Path, *, step: int, say: Callable[[str], None]):
        from torch.utils.tensorboard import SummaryWriter  # an extra, loaded when it is asked for

        self.say = say
        self.writer: Any = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, row: dict[str, Any]) -> None:
        """Hand over a row's numbers; they are written a little later, by a thread."""
        try:
            for key, value in row.items():
                if self.writer is not None and key != "step" and isinstance(value, int | float):
                    self.writer.add_scalar(key, value, step)
        except Exception as error:
            self.writer = None
            self.say(f"TensorBoard gets no more rows, metrics.jsonl has them all ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Write what is left."""
        if self.writer is not None:
            self.writer.close()
