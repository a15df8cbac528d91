"""What exact resume, guard, rows and checkpoints cost: a step of the whole product beside one of a bare loop.

`python tests/soak/measure_exactness.py [c0|c1] [rounds] [steps]`, on a machine with nothing else to do. Both have the
same model, data, optimizer, clipping and learning rate, turn by turn in one process; the last line is the ratio.
c0: 4 layers, 128 wide, context 64, batch 12. c1: 6 layers, 384 wide, context 256, batch 16.
"""

import contextlib
import io
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch

from minigpt.config.compose import compose
from minigpt.data.module import MicroBatches
from minigpt.data.prepare import prepare
from minigpt.model.gpt import GPT
from minigpt.training.module import LanguageModel, next_token_loss
from minigpt.training.optimizer import build_optimizer
from minigpt.training.run import train

PRESETS = {"c0": (4, 4, 128, 64, 12), "c1": (6, 6, 384, 256, 16)}
WARM_UP = 5  # steps of each turn that don't count


def settings(preset: str, steps: int, folder: Path) -> list[str]:
    """Arguments of train.py."""
    n_layer, n_head, n_embd, block_size, batch = PRESETS[preset]
    return [
        "data=text", f"data.source={folder / 'text.txt'}", f"data.dir={folder / 'data'}", "tokenizer=byte",
        f"model.n_layer={n_layer}", f"model.n_head={n_head}", f"model.n_embd={n_embd}",
        f"model.block_size={block_size}", "model.dropout=0", f"batch_tokens={batch * block_size}",
        f"trainer.micro_batch={batch}", "trainer.device=cpu", "trainer.compile=off", "trainer.precision=fp32",
        f"trainer.max_steps={steps}", "schedule.warmup_steps=2", "validate.every_steps=0", "samples.every_steps=0",
        "checkpoint.every_steps=50",
    ]  # fmt: skip


def whole(arguments: list[str], run: Path) -> list[float]:
    """Seconds of each step of train(), from one optimizer step to the next."""
    moments = []
    real = LanguageModel.on_before_optimizer_step

    def on_before_optimizer_step(self, optimizer):
        moments.append(time.perf_counter())
        real(self, optimizer)

    with mock.patch.object(LanguageModel, "on_before_optimizer_step", on_before_optimizer_step):
        assert train(compose("train", [*arguments, f"run.dir={run}"])) == 0
    return [after - before for before, after in itertools.pairwise(moments)][WARM_UP:]


def bare(arguments: list[str]) -> list[float]:
    """Seconds of each step of the shortest loop that trains the same model."""
    config = compose("train", arguments)
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    size = config.model.block_size
    micro_batch = config.trainer.micro_batch
    batches = MicroBatches(prepared.train, seed=0, block_size=size, micro_batch=micro_batch, accumulate=1, world=1)
    gpt = GPT(config.model, prepared.tokenizer.vocab_size)
    optimizer = build_optimizer(config.optimizer, gpt)
    moments = []
    for step in range(config.trainer.max_steps or 0):
        loss = next_token_loss(gpt, *batches[step])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        moments.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
    return [after - before for before, after in itertools.pairwise(moments)][WARM_UP:]


def main(preset: str = "c0", rounds: int = 5, steps: int = 120) -> None:
    """Turn by turn; each turn counts with its mean, so a save counts too."""
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(20_000)))
        arguments = settings(preset, steps, folder)
        for number in range(rounds):
            with contextlib.redirect_stdout(io.StringIO()):
                one = statistics.fmean(whole(arguments, folder / str(number)))
                other = statistics.fmean(bare(arguments))
            ratios.append(one / other)
            print(f"{preset}  whole {one * 1e3:.2f} ms a step   bare {other * 1e3:.2f} ms   ratio {one / other:.3f}")
    print(f"{preset}  ratio {statistics.median(ratios):.3f} (median of {rounds} turns)")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:4]))
