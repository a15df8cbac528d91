"""`minigpt demo`: trains a GPT on text that every machine has, and compares it with models that only count."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.config.run_names import default_run_dir
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.faults import FINISHED
from minigpt.invocation import typed
from minigpt.launcher import launched
from minigpt.report.record import best_row, number, overfitting, read_record
from minigpt.sampling.sample import sample
from minigpt.stages import train_in_stages
from minigpt.training.run import train


def demo(config: TrainConfig, arguments: Sequence[str] = ()) -> int:
    """Train, then show the result. A finished run is shown again, an unfinished one goes on.

    Args:
        config: composed and checked.
        arguments: of the command line.

    Returns:
        What `train` returns.
    """
    place = launched(config.trainer)
    code = train_in_stages(config, arguments, train)
    if code != FINISHED or (place is not None and place.rank):
        return code
    run = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
    print(f"\n{comparison(run)}\n")
    # A user's own text may hold anything: its sample starts without a prompt.
    # The prompt does not end in a blank: for BPE a blank belongs to the next word.
    prompt, next_prompt = ("def", "class") if config.data.name == "stdlib" else ("", "...")
    print(f"{f'--- a sample that starts with {prompt!r} ' if prompt else '--- a sample ':-<65}")
    sample(SampleConfig(checkpoint=str(run), prompt=[prompt], max_new_tokens=160, temperature=0.7, top_k=50))
    print("-" * 65)
    print(f"\nLoss picture  {run / 'loss.png'}\nThe whole run {run / 'report.html'}")
    print(f'Now you       {typed("sample")} checkpoint={shlex.quote(str(run))} prompt="{next_prompt}"')
    return code


def comparison(run: Path) -> str:
    """Return the sentence that compares the run's best validation with its baselines, whichever is better."""
    record = read_record(run)
    best: dict[str, Any] = best_row(record.rows) or {}
    bits = number(best.get("val/bits_per_byte"))
    if bits is None or not record.baselines:
        return "There is nothing to compare: the GPT has not been validated, or the baselines were left out."
    ahead = [row for row in record.baselines if bits >= row["bits_per_byte"]]
    beaten = [row for row in record.baselines if row not in ahead]
    lines = [f"validation {bits:.3f} bits per byte (lower is better)"]
    for rows, word in ((beaten, "The GPT beats"), (ahead, "Still ahead of it:")):
        named = ", ".join(f"{row.get('name', 'a baseline')} {row['bits_per_byte']:.3f}" for row in rows)
        lines += [f"{word} {named}"] if rows else []
    if sentence := overfitting(record.rows):
        lines.append(f"It overfits: {sentence}")
    elif ahead:
        lines.append("It needs more steps: trainer.max_steps=N, or budget=TIME")
    return ". ".join(lines)
