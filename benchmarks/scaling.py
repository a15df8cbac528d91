"""How much faster several devices of this machine train: tokens per second on 1, 2, 4 ... of them.

    python benchmarks/scaling.py preset=124m trainer=ddp devices=8 [steps=20] [rounds=3]

weak: each device has the preset's batch. strong: all devices share it. Other words are settings of `minigpt train`.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from minigpt.benchmark.presets import PRESETS, WARM_UP, text_words
from minigpt.config.compose import compose
from minigpt.faults import UserFault, run_script
from minigpt.rundir.rows import read_rows
from minigpt.screen import table

OPTIONS = {"preset": "c0", "devices": "2", "steps": "20", "rounds": "3"}


def main(arguments: list[str]) -> int:
    """Print tokens per second and efficiency for each number of devices."""
    options = OPTIONS | {key: value for key, _, value in (word.partition("=") for word in arguments) if key in OPTIONS}
    if not arguments or {"-h", "--help"} & set(arguments) or options["preset"] not in PRESETS:
        print(__doc__)
        return 0 if arguments else 2
    preset, most = PRESETS[options["preset"]], int(options["devices"])
    counts = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    typed = [word for word in arguments if word.partition("=")[0] not in OPTIONS]
    speeds: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="minigpt-scaling-", ignore_cleanup_errors=True) as name:
        words = [*preset.settings, *text_words(Path(name), preset.vocab_size), *typed]
        batch = compose("train", [word for word in words if not word.startswith("trainer=")]).batch_tokens
        for number in range(int(options["rounds"])):
            for kind in ("weak", "strong"):
                for count in counts:
                    whole = [f"batch_tokens={batch * count}"] if kind == "weak" else ["trainer.micro_batch=0"]
                    run = Path(name, f"{kind}-{count}-{number}")
                    speeds.setdefault((kind, count), []).append(speed(words, whole, count, int(options["steps"]), run))
                    print(f"round {number + 1}, {kind}, {count}: {speeds[kind, count][-1]:,.0f} tokens/s", flush=True)
    rows = [("batch", "devices", "tokens/s", "efficiency")]
    for (kind, count), values in speeds.items():
        share = statistics.median(values) / statistics.median(speeds[kind, 1]) / count
        rows.append((kind, str(count), f"{statistics.median(values):,.0f}", f"{share:.0%}"))
    print(f"\n{table(rows)}")
    return 0


def speed(words: list[str], whole: list[str], count: int, steps: int, run: Path) -> float:
    """Return the tokens per second of a training on so many devices, in a process of its own."""
    alone = ["trainer=auto"] if count == 1 else [f"trainer.devices={count}"]
    length = [f"trainer.max_steps={WARM_UP + steps}", f"logger.every_steps={WARM_UP}", f"run.dir={run}"]
    command = [sys.executable, "-m", "minigpt", "train", *words, *whole, *alone, *length]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserFault(f"training on {count} devices ended with exit code {done.returncode}: {done.stderr[-600:]}")
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["step"] >= WARM_UP and "seconds" in row]
    return float((rows[-1]["tokens"] - rows[0]["tokens"]) / (rows[-1]["seconds"] - rows[0]["seconds"]))


if __name__ == "__main__":
    run_script(main)
