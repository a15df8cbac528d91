"""A small text that tests prepare, and what they look at of it."""

from pathlib import Path

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import Prepared
from minigpt.data.preparing.prepare import prepare

POEM = "".join(f"Line {n}: the naïve fox can't jump, and won't.\r\n" for n in range(120)).encode()


def keys(source: Path, **more) -> DataConfig:
    return DataConfig(name="text", source=str(source), dir=str(source.parent / "data"), **more)


def run(data: DataConfig, name="char", **more) -> tuple[Prepared, str]:
    """Prepare, and what it said."""
    said: list[str] = []
    return prepare(data, TokenizerConfig(name, **more), say=said.append), "\n".join(said)


def text_of(split, tokenizer) -> bytes:
    return tokenizer.decode_bytes(split.tokens(0, len(split)))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
