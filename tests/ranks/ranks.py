"""Whole runs of several processes for tests, with a fault built in where one is wanted. Started as a script."""

import os
from pathlib import Path


def main(arguments: list[str]) -> int:
    """scripts/train.py; START (Python) is run first, FAULT before each micro-batch, with `rank`, `step`, `once`.

    No report is drawn unless REPORT is set.
    """
    from minigpt.config.compose import compose
    from minigpt.loading import loading

    with loading():
        from minigpt.training import finish
        from minigpt.training.run import train
        from minigpt.training.step import LanguageModel

    if "REPORT" not in os.environ:
        finish.write_report = lambda path: None  # 0.5 s
    rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID", "0"))
    folder = Path(os.environ["TRIAL_FOLDER"])
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    fault = compile(os.environ.get("FAULT", ""), "fault", "exec")
    exec(os.environ.get("START", ""), {"rank": rank, "folder": folder})
    real = LanguageModel.training_step

    def once(name: str) -> bool:
        """True for the first process that asks, over restarts too."""
        try:
            (folder / f"done-{name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def training_step(self, batch, batch_idx):
        names = {"rank": rank, "step": self.state.step + 1, "once": once, "module": self}
        names["loss"] = real(self, batch, batch_idx)
        exec(fault, names)
        return names["loss"]

    LanguageModel.training_step = training_step
    change = [os.environ["CHANGE"]] if rank == 1 and "CHANGE" in os.environ else []
    return train(compose("train", [*arguments, *change]))


if __name__ == "__main__":
    from minigpt.faults import run_script

    run_script(main)
