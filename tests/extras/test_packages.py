"""Formats that need a package of their own, .zst and .parquet, whole, in parts and damaged; and preparing on Ray."""

import json

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import units
from minigpt.data.preparing.prepare import prepare
from minigpt.data.readers import read
from minigpt.data.readers.document import BadFile, File, ReadOptions

TEXTS = ["first, naïve", "second\nline", "third"]


def texts_of(path, begin=0, end=None, **options) -> list[str]:
    file = File(path, path.name, path.stat().st_size)
    return [b"".join(document.chunks).decode() for document in read(file, ReadOptions(**options), begin, end)]


def test_zstd_of_several_frames_and_damaged(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    pack = zstandard.ZstdCompressor().compress
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(pack(lines[0]) + skippable + pack(lines[1]) + pack(lines[2]) + skippable)
    assert texts_of(path) == TEXTS
    for content in (path.read_bytes()[:-20], b"no zstd at all", pack(lines[0]) + b"garbage"):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=r"a\.jsonl\.zst is cut or no zstd file .*data\.exclude=a\.jsonl\.zst"):
            texts_of(path)


def test_a_column_of_parquet_is_documents_and_its_row_groups_are_parts(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    column = pyarrow.array([*TEXTS, None] * 50).dictionary_encode()
    pq.write_table(pyarrow.table({"text": column, "n": list(range(200))}), path, row_group_size=30)
    whole = texts_of(path)
    assert whole == [*TEXTS, ""] * 50
    size = path.stat().st_size
    parts = [texts_of(path, begin, begin + size // 5) for begin in range(0, size, size // 5)]
    assert sum(parts, []) == whole  # noqa: RUF017  six short lists
    assert all(len(part) < 120 for part in parts)
    with pytest.raises(BadFile, match=r"its column 'n' holds int64, wanted text; it has text \(dictionary"):
        texts_of(path, key="n")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadFile, match=r"a\.parquet is cut, damaged or no Parquet file"):
        texts_of(path)


def test_a_ray_cluster_makes_the_same_shards(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(units, "UNIT_BYTES", 20_000)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"record {n * n}"}) + "\n" for n in range(4000)))

    def made(engine: str) -> dict[str, bytes]:
        data = DataConfig("text", str(tmp_path / "a.jsonl"), dir=str(tmp_path / engine))
        work = WorkConfig(1, engine=engine)
        folder = prepare(data, TokenizerConfig("bpe", 300), work=work, say=lambda line: None).folder
        return {path.name: path.read_bytes() for path in folder.glob("*.*")}

    assert made("ray") == made("processes")
