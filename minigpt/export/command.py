"""minigpt export: write a folder under a temporary name, read it back, prove that it is the same model, rename it."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint
from minigpt.config.commands import ExportConfig
from minigpt.export.card import model_card
from minigpt.export.huggingface import write_huggingface
from minigpt.export.proof import prove, sample_of, tokenizer_of
from minigpt.export.reload import reload_huggingface
from minigpt.faults import StorageFailure, UserFault

TOLERANCE = {"f32": 5e-5, "f16": 1e-2, "q8_0": 0.1}  # of the logits, relative to the largest


def export(config: ExportConfig, say: Callable[[str], object] = print) -> None:
    """Write a checkpoint's model in another format, and print the proof that it is the same model.

    Raises:
        UserFault: no such checkpoint, a format that can't express it, or a folder that exists already.
        StorageFailure: the folder can't be written.
        RuntimeError: the export is not the same model; it was removed.
    """
    out = Path(os.path.expanduser(str(config.dir)))
    _refuse_existing(out)
    loaded = load_checkpoint(str(config.checkpoint), config.which)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        lines = _write(temporary, loaded, config)
        _refuse_existing(out)
        os.rename(temporary, out)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageFailure(
            f"dir={config.dir} can't be written: {reason}. Free some space, or choose another folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for line in [*lines, f"Wrote   {out}: {', '.join(sorted(path.name for path in out.iterdir()))}"]:
        say(line)


def _write(folder: Path, loaded: LoadedCheckpoint, config: ExportConfig) -> list[str]:
    tokenizer = tokenizer_of(loaded)
    if config.format == "gguf":
        from minigpt.export.gguf import read_gguf, write_gguf  # the only file that needs the package

        file = write_gguf(folder, loaded.model, tokenizer, config.type)
        reloaded = read_gguf(file)
    else:
        write_huggingface(folder, loaded.model, tokenizer)
        reloaded = reload_huggingface(folder)
    tolerance = TOLERANCE[config.type if config.format == "gguf" else "f32"]
    lines = prove(loaded, sample_of(loaded, str(config.checkpoint), config.which), reloaded, tolerance=tolerance)
    (folder / "README.md").write_text(model_card(loaded, lines, config.format), encoding="utf-8")
    return lines


def _refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        raise UserFault(f"dir={out} is there already, and an export overwrites nothing. Give a new folder")
