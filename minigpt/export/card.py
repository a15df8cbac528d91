"""The model card: what an exported model is, how it was trained and scored, and the proof of the export."""

import json
from collections.abc import Sequence
from pathlib import Path

from minigpt import __version__
from minigpt.checkpoint.folder import read_manifest
from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.convert import to_dict
from minigpt.export.architecture import family_of
from minigpt.export.proof import tokenizer_of
from minigpt.faults import UserFault
from minigpt.rundir.run_directory import RunDirectory

_HEAD = """---
library_name: {library}
pipeline_tag: text-generation
tags: [minigpt, {family}]
---
# {name}

A GPT of {parameters:,} parameters in the shape of {family}, trained with minigpt {version}.

"""


def model_card(loaded: LoadedCheckpoint, proof: Sequence[str], form: str) -> str:
    """Return the text of the card, README.md."""
    model, config = loaded.model, loaded.config
    tokenizer, path = tokenizer_of(loaded), loaded.path.resolve()
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    facts = [f"context: {model.config.block_size:,} tokens", f"vocabulary: {model.vocab_size:,} tokens"]
    facts += [f"tokenizer: {tokenizer.name}, SHA-256 {tokenizer.hash}"] if tokenizer else ["tokenizer: none"]
    if run != path:
        manifest = read_manifest(loaded.path)
        step, loss = int(manifest["step"]), manifest.get("val_loss")
        text = "mix" if config.data.mix else config.data.name
        facts.append(f"trained on: {step:,} steps of {config.batch_tokens:,} tokens of data={text}")
        facts += [f"validation loss: {loss:.4f} nats per token"] if isinstance(loss, int | float) else []
        facts += _fingerprint(run)
    settings = json.dumps(to_dict(config)["model"], indent=1)
    head = _HEAD.format(
        library="transformers" if form == "hf" else "gguf",
        family=family_of(model.config),
        name=run.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        version=__version__,
    )
    listed = "".join(f"- {fact}\n" for fact in facts)
    proved = "".join(f"    {line}\n" for line in proof)
    return f"{head}{listed}\n## Read back after writing\n\n{proved}\n## Architecture\n\n```json\n{settings}\n```\n"


def _fingerprint(run: Path) -> list[str]:
    try:
        saved = RunDirectory(run, writes=False).read_json("data.json")
    except UserFault:
        return []
    return [f"data fingerprint: {saved['fingerprint']}"] if saved and "fingerprint" in saved else []
