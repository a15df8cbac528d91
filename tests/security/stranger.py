"""A run that a stranger may have changed, and what its use may answer."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import MANIFEST, sealed
from minigpt.config.compose import compose
from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault
from minigpt.training.run import train

ROOT = Path(__file__).parents[2]
TINY = [
    "data=text",
    "tokenizer=bpe",
    "tokenizer.vocab_size=280",
    "model=gpt-nano",
    "model.n_layer=2",
    "model.n_embd=16",
    "model.n_head=2",
    "model.block_size=8",
    "batch_tokens=64",
    "trainer.max_steps=6",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "schedule.warmup_steps=1",
    "validate.every_steps=3",
    "checkpoint.every_steps=3",
    "samples.every_steps=3",
    "samples.max_new_tokens=4",
    "logger.every_steps=2",
]
NAMES = ("model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json")
FAULTS = (UserFault, NoUsableCheckpoint, StorageFailure)


def arguments(place: Path, *extra: str) -> list[str]:
    return [
        *TINY,
        f"data.source={place / 'text.txt'}",
        f"data.dir={place / 'data'}",
        f"run.dir={place / 'run'}",
        *extra,
    ]


def copy(made: Path, place: Path) -> Path:
    """A run, its tokens and its text somewhere else, where the tokens are found again."""
    for name in ("run", "data"):
        shutil.copytree(made / name, place / name)
    shutil.copy2(made / "text.txt", place / "text.txt")
    (file,) = place.glob("data/*/prepared.json")
    file.write_text(file.read_text().replace(str(made), str(place)))
    return place


def newest(place: Path) -> Path:
    return max((place / "run" / "checkpoints").glob("step-?????????"))


def put(folder: Path, name: str, content: bytes) -> None:
    """Change a checkpoint's file as somebody does who knows how its manifest is made."""
    (folder / name).write_bytes(content)
    reseal(folder)


def reseal(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes()) | changes
    for name, entry in manifest["files"].items():
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_bytes(sealed(manifest))


def refused(function: Callable[[], object], kinds: type | tuple[type, ...] = UserFault) -> str:
    """The sentence a call is refused with, in less than 5 s."""
    began = time.monotonic()
    with pytest.raises(kinds) as fault:
        function()
    assert time.monotonic() - began < 5
    assert fault.value.exit_code in (2, 3, 4)
    assert len(str(fault.value)) < 2000
    assert str(fault.value).replace("\n", "").isprintable()
    return str(fault.value)


def continue_it(place: Path) -> int:
    return train(compose("train", arguments(place, "trainer.max_steps=8")))


def config_with(changes: dict) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_bytes())
        for key, value in changes.items():
            *way, last = key.split("/")
            part = config
            for each in way:
                part = part.setdefault(each, {})
            part[last] = value
        put(checkpoint, "config.json", json.dumps(config).encode())

    return change
