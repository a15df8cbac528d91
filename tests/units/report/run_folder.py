"""A run directory as training writes it, without training."""

import json
import math
from pathlib import Path

import yaml

from minigpt.config.convert import to_dict
from minigpt.config.schema import TrainConfig

TEXT = 'def get(self, key):\n    return "<b>&amp;</b>" # ${x}\n'


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def metric_rows(steps, every=10):
    """Rows of a plausible run; each fourth is validated."""
    rows = []
    for step in range(every, steps + 1, every):
        loss = 2.0 + 5.0 * math.exp(-step / 90)
        row = {"step": step, "tokens": step * 512, "train/loss": loss, "train/grad_norm": 0.7, "lr": 1e-3 / step}
        row |= {"seconds": step * 0.1, "tokens_per_second": 5120.0 + step, "mfu": None}
        if step % (4 * every) == 0:
            val = loss + 0.1
            row |= {"val/loss": val, "val/perplexity": math.exp(val), "val/bits_per_byte": val / 2}
        rows.append(row)
    return rows


def write_run(folder: Path) -> Path:
    """Finished, 200 steps, last validation 2.6418 nats = 1.3209 bits per byte, 173 parameters."""
    path = folder / "runs" / "tiny-1f"
    checkpoint = path / "checkpoints" / "step-000000200"
    checkpoint.mkdir(parents=True)
    write_lines(path / "metrics.jsonl", metric_rows(200))
    write_lines(path / "samples.jsonl", [{"step": step, "text": TEXT} for step in (100, 200)])
    write_lines(path / "events.jsonl", [{"time": "2026-11-20T10:00:00+0000", "event": "began", "step": 0}])
    config = to_dict(TrainConfig()) | {"seed": 4242}
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (path / "choices.json").write_text('{"device": "cpu", "micro_batch": 7}')
    (path / "environment.json").write_text('{"torch": "2.13.0", "gpus": []}')
    shapes = {"token_embedding.weight": [64, 3], "blocks.0.weight": [5, 22], "blocks.0.bias": [0]}  # V = 21, padded
    header = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}).encode()
    (checkpoint / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (checkpoint / "tokenizer.json").write_text('{"vocab_size": 21}')
    return path
