"""What `make demo` shows: a GPT trained on text that every machine has, beside the yardstick it must beat."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.roles import default_run_dir
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.data.ngram import ngram_bits_per_byte
from minigpt.data.prepare import Prepared, prepare
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import FINISHED
from minigpt.report.page import write_report
from minigpt.report.record import best_row, number, read_mapping, read_record
from minigpt.rundir.files import write_file
from minigpt.sampling.prompt import encode_prompt
from minigpt.sampling.write import write
from minigpt.training.run import train

YARDSTICK = "order-3 byte n-gram"
# By corpus; any other is asked for whatever comes first. No blank at the end: to BPE it belongs to the next word.
PROMPTS = {"stdlib": "def"}


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
    print(f"\n{comparison(run, measure_yardstick(run, prepared))}\n")
    show_sample(run, PROMPTS.get(config.data.name, ""))
    print(f"\nLoss picture  {run / 'loss.png'}\nThe whole run {run / 'report.html'}")
    print(f"Now you       {next_command(run, config)}")
    return code


def measure_yardstick(run: Path, prepared: Prepared) -> float:
    """Bits per byte of the n-gram model on the run's own split; measured once, then kept in baseline.json."""
    kept = read_mapping(run / "baseline.json")
    bits = number(kept.get("bits_per_byte"))
    if bits is not None and kept.get("fingerprint") == prepared.fingerprint:
        return bits
    train_text, val_text = (text_of(split, prepared.tokenizer) for split in (prepared.train, prepared.val))
    bits = ngram_bits_per_byte(train_text, val_text)
    facts = {"name": YARDSTICK, "bits_per_byte": bits, "fingerprint": prepared.fingerprint}
    write_file(run / "baseline.json", json.dumps(facts, indent=1) + "\n")
    try:
        write_report(run)  # once more, the yardstick in it
    except Exception as error:
        print(f"The report could not be drawn: {type(error).__name__}: {error}")
    return bits


def text_of(split: TokenSplit, tokenizer: Tokenizer) -> bytes:
    """The text of a split."""
    return tokenizer.decode_bytes(split.tokens(0, len(split)))


def comparison(run: Path, yardstick: float) -> str:
    """The best validation beside the yardstick, whoever wins."""
    best: dict[str, Any] = best_row(read_record(run).rows) or {}
    bits = number(best.get("val/bits_per_byte"))
    if bits is None:
        return f"{YARDSTICK} {yardstick:.3f} bits per byte; the GPT has not been validated yet."
    figures = f"validation {bits:.3f} bits per byte; {YARDSTICK} {yardstick:.3f}: lower is better, "
    if bits < yardstick:
        return f"{figures}the GPT wins by {1 - bits / yardstick:.0%}."
    return f"{figures}so the n-gram model is still ahead. The GPT needs more steps: trainer.max_steps=N"


def show_sample(run: Path, prompt: str) -> None:
    """Let the best checkpoint write, shown as it writes."""
    loaded = load_checkpoint(run)
    options = SampleConfig(max_new_tokens=160, temperature=0.7, top_k=50)
    print(f"--- it writes on from {prompt!r} " if prompt else "--- it writes ", end="")
    print("-" * 40 + f"\n{prompt}", end="", flush=True)
    tokens = encode_prompt(loaded.tokenizer, prompt)
    write(loaded.model, loaded.tokenizer, [tokens], options, on_text=lambda text: print(text, end="", flush=True))
    print("\n" + "-" * 65)


def next_command(run: Path, config: TrainConfig) -> str:
    """The command that samples, as it can be typed here."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    prompt = "class" if config.data.name == "stdlib" else "..."
    return f'{shlex.quote(str(python))} scripts/sample.py checkpoint={shlex.quote(str(run))} prompt="{prompt}"'
