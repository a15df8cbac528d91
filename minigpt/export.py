"""minigpt export: write a folder under a temporary name, read it back, prove that it is the same model, rename it."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError

from minigpt import __version__
from minigpt.checkpoint.folder import read_manifest
from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint, load_weights, resize_vocabulary
from minigpt.config.commands import ExportConfig
from minigpt.data.chat.roles import end_of_turn
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import StorageFailure, UserFault
from minigpt.formats.architecture import family_of
from minigpt.formats.huggingface import write_huggingface
from minigpt.formats.tokenizer_json import tokenizer_json
from minigpt.model.gpt import GPT
from minigpt.report.plan import count_parameters
from minigpt.screen import Say

TOLERANCE = {"f32": 5e-5, "f16": 1e-2, "q8_0": 0.1}  # of the logits, relative to the largest
TOKENS = 2048  # compared at most
TEXT = "The quick brown fox's 12 3,456 GPT-2 don't \t\n  é ß 你好 мир 🙂 👩‍🚀 \u00a0\u2028\u0301 <|endoftext|> <|end|>"


def export(config: ExportConfig, say: Say = print) -> None:
    """Write a checkpoint's model in another format, and print the proof that it is the same model."""
    out = Path(os.path.expanduser(str(config.dir)))
    if os.path.lexists(out):
        raise UserFault(f"dir={out} is there already, and an export overwrites nothing. Give a new folder")
    if config.format == "hf" and config.type != "f32":
        raise UserFault(f"type={config.type} is for GGUF files. Add format=gguf, or leave it out")
    loaded = load_checkpoint(str(config.checkpoint), config.which)
    tokenizer = loaded.tokenizer if isinstance(loaded.tokenizer, Tokenizer) else None
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        proof = _write(temporary, loaded, tokenizer, config)
        (temporary / "README.md").write_text(model_card(loaded, tokenizer, proof, config.format), encoding="utf-8")
        os.rename(temporary, out)
    except (OSError, SafetensorError) as error:
        raise StorageFailure(f"dir={out} can't be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    say("\n".join([*proof, f"Wrote   {out}: {', '.join(sorted(os.listdir(out)))}"]))


def _write(folder: Path, loaded: LoadedCheckpoint, tokenizer: Tokenizer | None, config: ExportConfig) -> list[str]:
    """Write all but the card, and return the proof."""
    if config.format == "gguf":
        from minigpt.formats.gguf import read_gguf, write_gguf  # they need the package gguf

        file = write_gguf(folder, loaded.model, tokenizer, config.type, loaded.run.name)
        copy = GPT(loaded.model.config, loaded.model.vocab_size).eval()
        load_weights(copy, resize_vocabulary(read_gguf(file, loaded.model), copy), str(file))
        return prove("the package gguf", loaded.model, copy, tolerance=TOLERANCE[config.type])
    write_huggingface(folder, loaded.model, tokenizer)
    again = load_checkpoint(folder)
    proof = prove("minigpt's importer", loaded.model, again.model, tolerance=TOLERANCE["f32"])
    return [*proof, prove_tokenizer(tokenizer, again.tokenizer)] if tokenizer else proof


@torch.inference_mode()
def prove(by: str, model: GPT, copy: GPT, *, tolerance: float) -> list[str]:
    """Compare the logits on random tokens, and return the proof as lines; a RuntimeError if they differ."""
    tokens = torch.randint(model.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(1337))
    largest = reach = 0.0
    for window in tokens.split(model.config.block_size):
        wanted, got = model(window[None]), copy(window[None])
        largest = max(largest, float((wanted - got).abs().max().nan_to_num(torch.inf)))
        reach = max(reach, float(wanted.abs().max()))
    line = f"Logits  largest difference {largest:.1e} over {TOKENS:,} random tokens (they reach {reach:.1f})"
    if not largest <= tolerance * max(1.0, reach):
        raise RuntimeError(f"what was written is not the same model, so it was removed. {line}")
    return [f"Read back with {by}", line]


def prove_tokenizer(tokenizer: Tokenizer, copy: Tokenizer) -> str:
    """Compare the ids of texts, control tokens and merges, and return the proof; a RuntimeError if they differ."""
    every = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    texts = [*every, "".join(every)] if tokenizer.name == "char" else [*every, "".join(every), TEXT]
    ids = sum(tokenizer.encode(text) != copy.encode(text) for text in texts)

    def roles_of(one: Tokenizer) -> tuple[object, ...]:
        return one.special, one.start, one.eot, end_of_turn(one), one.template and one.template.source

    roles = roles_of(tokenizer) == roles_of(copy)
    merges = tokenizer_json(tokenizer)["model"] == tokenizer_json(copy)["model"]
    words = f"control tokens {'equal' if roles else 'DIFFER'}; vocabulary and merges {'equal' if merges else 'DIFFER'}"
    line = f"Tokens  {ids} differences in the ids of {len(texts):,} texts; {words}"
    if ids or not roles or not merges:
        raise RuntimeError(f"what was written is not the same tokenizer, so it was removed. {line}")
    return line


def model_card(loaded: LoadedCheckpoint, tokenizer: Tokenizer | None, proof: Sequence[str], form: str) -> str:
    """Return the text of README.md: what the model is, how it was trained and scored, and the proof of the export."""
    model, config, run = loaded.model, loaded.config, loaded.run
    facts = [f"context: {model.config.block_size:,} tokens", f"vocabulary: {model.vocab_size:,} tokens"]
    facts += [f"tokenizer: {tokenizer.name}, SHA-256 {tokenizer.hash}"] if tokenizer else ["tokenizer: none"]
    if run != loaded.path.resolve():
        manifest = read_manifest(loaded.path)
        loss, text = manifest.get("val_loss"), "mix" if config.data.mix else config.data.name
        facts.append(f"trained on: {int(manifest['step']):,} steps of {config.batch_tokens:,} tokens of data={text}")
        facts += [f"validation loss: {loss:.4f} nats per token"] if isinstance(loss, int | float) else []
    card = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return card.format(
        library="transformers" if form == "hf" else "gguf",
        family=family_of(model.config),
        name=run.name,
        parameters=count_parameters(model),
        version=__version__,
        facts="".join(f"- {fact}\n" for fact in facts),
        proof="\n".join(f"    {line}" for line in proof),
    )
