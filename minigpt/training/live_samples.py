"""Text that the model writes while it trains."""

from typing import Any

import lightning as L

from minigpt.data.tokenizer import Tokenizer
from minigpt.rundir.rows import RowFile
from minigpt.sampling.write import write_sample
from minigpt.training.boundary import at_step_end, is_due, is_last_step
from minigpt.training.module import LanguageModel
from minigpt.training.progress import Progress


class LiveSamples(L.Callback):
    """Prints a sample and adds it to samples.jsonl (rank 0 only).

    Args:
        tokenizer: of the run.
        file: samples.jsonl.
        progress: prints without tearing the progress line.
    """

    def __init__(self, tokenizer: Tokenizer, file: RowFile, progress: Progress):
        self.tokenizer = tokenizer
        self.file = file
        self.progress = progress

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        samples, step = pl_module.config.samples, pl_module.position.step
        due = at_step_end(trainer, batch_idx) and samples.every_steps > 0
        if not (due and trainer.is_global_zero and (is_due(pl_module, samples.every_steps) or is_last_step(pl_module))):
            return
        with pl_module.clock.paused():
            text = write_sample(
                pl_module.gpt,
                self.tokenizer,
                samples.prompt,
                max_new_tokens=samples.max_new_tokens,
                temperature=samples.temperature,
                top_k=samples.top_k,
                seed=pl_module.config.seed + step,
            )
            self.file.add({"step": step, "text": text})
            self.progress.block(f"sample at step {step:,}", text)
