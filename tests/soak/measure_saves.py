"""How long training stands still for a save, here and with Lightning's ModelCheckpoint, side by side.

`python tests/soak/measure_saves.py [rounds]`: 10.8 million parameters (130 MB with the optimizer's averages), on the
disk that the system's temporary folder is on. Not a test: its figures are in docs/RELIABILITY.md.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from minigpt.config.compose import compose
from minigpt.data.batch import MicroBatches
from minigpt.data.preparing.prepare import prepare
from minigpt.model.gpt import GPT
from minigpt.model.loss import next_token_loss
from minigpt.training.lightning_engine import quiet_lightning
from minigpt.training.run import train
from minigpt.training.saving import Saving

SETTINGS = [
    "data=text",
    "tokenizer=byte",
    "model=gpt-baby",
    "model.dropout=0",
    "model.block_size=64",
    "batch_tokens=64",
    "trainer.max_steps=40",
    "trainer.device=cpu",
    "trainer.compile=off",
    "trainer.threads=1",
    "schedule.warmup_steps=4",
    "trainer.precision=fp32",
    "validate.every_steps=1000",
    "samples.every_steps=0",
]
EVERY = 8  # steps from one save to the next


class Plain(L.LightningModule):
    """The same model and optimizer in the plainest LightningModule."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.gpt = gpt

    def training_step(self, batch, batch_idx):
        return next_token_loss(self.gpt, batch.tokens, batch.targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.gpt.parameters(), 1e-4, fused=True)


class Timed(ModelCheckpoint):
    """Lightning's own callback; notes how long each save holds the training up."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seconds: list[float] = []

    def _save_topk_checkpoint(self, *arguments, **options):
        began = time.perf_counter()
        super()._save_topk_checkpoint(*arguments, **options)
        self.seconds.append(time.perf_counter() - began)


def ours(folder: Path, arguments: list[str]) -> tuple[list[float], float]:
    """Seconds of each save but the last one (which waits for the disk), and the longest until durable."""
    seconds = []
    real = Saving.save

    def save(self, *state, last):
        began = time.perf_counter()
        real(self, *state, last=last)
        if not last:
            seconds.append(time.perf_counter() - began)

    with mock.patch.object(Saving, "save", save):
        assert train(compose("train", [*arguments, f"checkpoint.every_steps={EVERY}", f"run.dir={folder}"])) == 0
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (saved,) = [event for event in events if event["event"] == "saved"]
    return seconds, saved["seconds_until_durable_at_most"]


def lightnings(folder: Path, arguments: list[str]) -> list[float]:
    """Seconds of each save."""
    config = compose("train", arguments)
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    block_size = config.model.block_size
    batches = MicroBatches(prepared.train, seed=0, block_size=block_size, micro_batch=1, accumulate=1, world_size=1)
    saver = Timed(dirpath=folder, every_n_train_steps=EVERY, save_top_k=-1)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=config.trainer.max_steps, logger=False, callbacks=[saver],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Plain(GPT(config.model, prepared.tokenizer.vocab_size)), batches)
    return saver.seconds


def main(rounds: int = 3) -> None:
    """Turn by turn, so that a busy machine is busy for both."""
    quiet_lightning()
    stood: list[float] = []
    durable: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("how much wood would a woodchuck chuck if " * 3000)
        arguments = [*SETTINGS, f"data.source={folder / 'text.txt'}", f"data.dir={folder / 'data'}"]
        for number in range(rounds):
            seconds, longest = ours(folder / f"ours-{number}", arguments)
            stood += seconds
            durable.append(longest)
            theirs += lightnings(folder / f"lightning-{number}", arguments)
            os.sync()
    for name, seconds in (("ours", stood), ("Lightning", theirs)):
        print(f"{name:9}  a save holds training up {statistics.median(seconds):.3f} s (at most {max(seconds):.3f} s)")
    print(f"ours are on the disk after {max(durable):.3f} s at most; Lightning's are never flushed to it")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
