"""Stands in for scripts/train.py: the same run directory, stops and exit codes, and no torch, so that it takes no time.

Its loss follows from optimizer.lr and the step. model.n_layer chooses an accident. While the file $STUB_HOLD is there,
and is empty or names its run, it waits at step 4 for a request to stop.
"""

import fcntl
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from minigpt.children import watch_lifeline

STEPS, TOKENS, CHECKPOINT_EVERY = 12, 100, 3
ACCIDENTS = {3: "raise", 5: "kill", 6: "nan", 7: "hang"}


def main() -> int:
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if "run.dir" not in given:  # a point of a grid, whose run is named after its settings
        from minigpt.config.compose import compose
        from minigpt.config.run_names import default_run_dir

        given["run.dir"] = default_run_dir(compose("train", sys.argv[1:]))
    run = Path(given["run.dir"])
    run.mkdir(parents=True, exist_ok=True)
    note(run.parent, f"start {run.name}")
    with open(run / "run.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two at once in one run: a crash, so a failed trial
        return train(run, given)


def train(run: Path, given: dict[str, str]) -> int:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    watch_lifeline()
    state = run / "checkpoint.json"
    done = json.loads(state.read_text()) if state.exists() else 0
    metrics = run / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    (run / "rows.tmp").write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] <= done))
    os.replace(run / "rows.tmp", metrics)
    print("WARNING    the learning rate rises", flush=True)
    for step in range(done + 1, STEPS + 1):
        time.sleep(0.002)
        accident = ACCIDENTS.get(int(given.get("model.n_layer", "1"))) if step == STEPS // 2 else None
        if accident and "STUB_HEALTHY" not in os.environ:
            happen(accident, run)
        with open(metrics, "a") as file:
            file.write(json.dumps(row_of(step, given)) + "\n")
        while step == 4 and is_held(run) and not asked:
            time.sleep(0.01)
        if asked or step % CHECKPOINT_EVERY == 0:
            (run / "checkpoint.tmp").write_text(str(step))
            os.replace(run / "checkpoint.tmp", state)
        if asked:
            note(run.parent, f"stop {run.name}")
            time.sleep(float(os.environ.get("STUB_STOP_SECONDS", "0")))  # as a large checkpoint takes
            return 75
    note(run.parent, f"end {run.name}")
    return 0


def is_held(run: Path) -> bool:
    hold = Path(os.environ.get("STUB_HOLD", "/nowhere"))
    return hold.exists() and hold.read_text() in ("", run.name)


def row_of(step: int, given: dict[str, str]) -> dict:
    lr, seed = float(given.get("optimizer.lr", "1e-3")), int(given.get("seed", "0"))
    loss = (math.log10(lr) + 2.5) ** 2 + 3 * math.exp(-step / 5) + 0.01 * seed
    row = {"step": step, "tokens": step * TOKENS, "train/loss": loss, "seconds": step / 100, "tokens_per_second": 1e4}
    return row | ({"val/loss": loss, "val/bits_per_byte": loss / 2} if step % 2 == 0 else {})


def happen(accident: str, run: Path) -> None:
    if accident == "raise":
        raise RuntimeError("the third layer is one too many")
    if accident == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if accident == "nan":
        print("Error: steps 5 to 6 were not fit to train on")
        sys.exit(5)
    print("waiting for ever", flush=True)
    while True:
        time.sleep(60)


def note(folder: Path, text: str) -> None:
    with open(folder / "log.txt", "a") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
