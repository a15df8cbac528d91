"""`minigpt demo`: train a GPT on text that every machine has, beside an n-gram model that it must beat."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

from minigpt.config.roles import default_run_dir
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.data.ngram import ngram_bits_per_byte
from minigpt.data.prepare import Prepared, prepare
from minigpt.faults import FINISHED
from minigpt.invocation import typed
from minigpt.report.page import write_report
from minigpt.report.record import best_row, number, read_mapping, read_record
from minigpt.rundir.files import write_file
from minigpt.sampling.command import sample
from minigpt.training.run import train

BASELINE = "order-3 byte n-gram"


def demo(config: TrainConfig) -> int:
    """Train, then show what came out. A finished run is shown again, an unfinished one goes on.

    Args:
        config: composed and checked.

    Returns:
        What `train` returns.
    """
    code = train(config)
    if code != FINISHED or os.environ.get("LOCAL_RANK", "0") != "0":
        return code
    run = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    print(f"\n{comparison(run, measure_baseline(run, prepared))}\n")
    # Another text than the default may hold anything: its sample starts from nothing.
    # No blank at the end of the prompt: to BPE it belongs to the next word.
    prompt, next_prompt = ("def", "class") if config.data.name == "stdlib" else ("", "...")
    print(f"{f'--- a sample that starts with {prompt!r} ' if prompt else '--- a sample ':-<65}")
    sample(SampleConfig(checkpoint=str(run), prompt=[prompt], max_new_tokens=160, temperature=0.7, top_k=50))
    print("-" * 65)
    print(f"\nLoss picture  {run / 'loss.png'}\nThe whole run {run / 'report.html'}")
    print(f'Now you       {typed("sample")} checkpoint={shlex.quote(str(run))} prompt="{next_prompt}"')
    return code


def measure_baseline(run: Path, prepared: Prepared) -> float:
    """Return the n-gram model's bits per byte on the run's validation split, measured once and kept in baseline.json.

    When it was measured, the run's report is drawn again with it.
    """
    kept = read_mapping(run / "baseline.json")
    bits = number(kept.get("bits_per_byte"))
    if bits is not None and kept.get("fingerprint") == prepared.fingerprint:
        return bits
    splits = (prepared.train, prepared.val)
    train_text, val_text = (prepared.tokenizer.decode_bytes(split.tokens(0, len(split))) for split in splits)
    bits = ngram_bits_per_byte(train_text, val_text)
    facts = {"name": BASELINE, "bits_per_byte": bits, "fingerprint": prepared.fingerprint}
    write_file(run / "baseline.json", json.dumps(facts, indent=1) + "\n")
    try:
        write_report(run)
    except Exception as error:
        print(f"The report could not be drawn: {type(error).__name__}: {error}")
    return bits


def comparison(run: Path, baseline: float) -> str:
    """Return the sentence that compares the run's best validation with the n-gram model, whichever is better."""
    best: dict[str, Any] = best_row(read_record(run).rows) or {}
    bits = number(best.get("val/bits_per_byte"))
    if bits is None:
        return f"{BASELINE} {baseline:.3f} bits per byte; the GPT has not been validated yet."
    figures = f"validation {bits:.3f} bits per byte; {BASELINE} {baseline:.3f}: lower is better, "
    if bits < baseline:
        return f"{figures}the GPT wins by {1 - bits / baseline:.0%}."
    return f"{figures}so the n-gram model is still ahead. The GPT needs more steps: trainer.max_steps=N"
