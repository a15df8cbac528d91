"""What `data.mask_documents=true` costs a training step on this machine's CPU.

    python tests/soak/measure_documents.py [CONTEXT] [ROUNDS]     # 256 and 3 if not given

A model of 6 layers, 6 heads and 384 channels, 2,048 tokens a step, on records of a quarter of the context each, so that
a window holds three to five documents. Each round trains without and with it, all of `minigpt train`, in turn; the last
line has the medians over the rounds. Not a test: its figures are in docs/DATA.md.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = 22  # of which the first 10 don't count
TOKENS = 2048  # a step
PROGRAM = """
import json, sys
from minigpt.benchmark.steps import train_py
result = train_py(sys.argv[2:])
open(sys.argv[1], "w").write(json.dumps(result["ms"]))
"""


def measure(folder: Path, name: str, words: list[str]) -> float:
    """Milliseconds per step of a training in a process of its own."""
    result = folder / f"{name}.json"
    command = [sys.executable, "-c", PROGRAM, str(result), *words, f"run.dir={folder / name}"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return float(json.loads(result.read_text()))


def main(context: int = 256, rounds: int = 3) -> None:
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(folder / "records.jsonl", "w") as file:
            for _ in range(1 << 20 >> context.bit_length()):
                size = dice.randrange(context // 8, context * 3 // 8)
                file.write(json.dumps({"text": "".join(dice.choices("etaoin shrdlu", k=size))}) + "\n")
        words = [
            "data=text", f"data.source={folder / 'records.jsonl'}", f"data.dir={folder / 'data'}", "tokenizer=byte",
            "model=gpt-baby", f"model.block_size={context}", f"batch_tokens={TOKENS}",
            f"trainer.max_steps={STEPS}", "trainer.device=cpu", "schedule.warmup_steps=4", "validate.every_steps=1000",
            "samples.every_steps=0", "checkpoint.every_steps=1000",
        ]  # fmt: skip
        found: dict[str, list[float]] = {"false": [], "true": []}
        for number in range(rounds):
            for kept_apart, times in found.items():
                times.append(measure(folder, f"{kept_apart}-{number}", [*words, f"data.mask_documents={kept_apart}"]))
                print(f"data.mask_documents={kept_apart}: {times[-1]:.0f} ms a step", flush=True)
    without, with_masks = map(statistics.median, found.values())
    print(
        f"context {context}: {without:.0f} ms without, {with_masks:.0f} with, {with_masks / without:.2f} times as long"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
