"""Formats that need a package of their own, .zst and .parquet: whole and damaged. See `make test-extras`."""

import json

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import units
from minigpt.data.preparing.prepare import prepare
from minigpt.data.readers import read
from minigpt.data.readers.document import BadFile, File, ReadOptions

zstandard = pytest.importorskip("zstandard", reason="make test-extras installs zstandard, pyarrow and fsspec")
pyarrow = pytest.importorskip("pyarrow", reason="make test-extras installs zstandard, pyarrow and fsspec")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["first, naïve", "second\nline", "third"]


def texts_of(path, **options) -> list[str]:
    return [b"".join(document.chunks).decode() for document in read(File(path, path.name), ReadOptions(**options))]


def table(path, **columns):
    pq.write_table(pyarrow.table(columns), path)
    return path


def test_zstd_of_several_frames_and_of_the_longest_window(tmp_path):
    pack = zstandard.ZstdCompressor().compress
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
    (tmp_path / "a.jsonl.zst").write_bytes(pack(lines[0]) + pack(lines[1]) + pack(lines[2]))
    assert texts_of(tmp_path / "a.jsonl.zst") == TEXTS
    long = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)  # zstd --long=31
    packing = zstandard.ZstdCompressor(compression_params=long).compressobj()
    (tmp_path / "a.txt.zst").write_bytes(packing.compress(b"text" * 99) + packing.flush())
    assert texts_of(tmp_path / "a.txt.zst") == ["text" * 99]


def test_a_column_of_parquet_is_documents(tmp_path):
    assert texts_of(table(tmp_path / "a.parquet", id=[1, 2, 3], text=TEXTS)) == TEXTS
    assert texts_of(table(tmp_path / "b.parquet", body=[b"bytes", b"more"]), key="body") == ["bytes", "more"]
    words = pyarrow.array(["one", "two", "one"]).dictionary_encode()
    assert texts_of(table(tmp_path / "c.parquet", text=words)) == ["one", "two", "one"]


def test_damaged_files_are_named(tmp_path):
    zst = zstandard.ZstdCompressor().compress(b"some text " * 99)
    parquet = table(tmp_path / "a.parquet", text=TEXTS, n=[1, 2, 3]).read_bytes()
    for name, content in {"a.txt.zst": zst[:-3], "b.txt.zst": b"no zstd at all", "c.parquet": parquet[:-9]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadFile, match=name):
            texts_of(tmp_path / name)
    with pytest.raises(BadFile, match="body"):
        texts_of(tmp_path / "a.parquet", key="body")


def test_a_folder_of_all_formats(tmp_path):
    (tmp_path / "texts").mkdir()
    table(tmp_path / "texts" / "a.parquet", text=TEXTS)
    (tmp_path / "texts" / "b.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(b"plain " * 20))
    data = DataConfig(name="text", source=str(tmp_path / "texts"), dir=str(tmp_path / "data"), val_fraction=0.5)
    prepared = prepare(data, TokenizerConfig(name="byte"))
    assert prepared.summary["documents"] == 4


def test_ray_gives_the_tokens_of_one_process(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="make test-extras installs ray")
    monkeypatch.setattr(units, "UNIT_BYTES", 3000)  # several units, some of them parts of a file
    (tmp_path / "texts").mkdir()
    for name in "abc":
        (tmp_path / "texts" / f"{name}.txt").write_text("".join(f"{name} has {n * n % 97} words\n" for n in range(300)))
    prepared = []
    for work in (WorkConfig(workers=1), WorkConfig(engine="ray")):
        data = DataConfig(name="text", source=str(tmp_path / "texts"), dir=str(tmp_path / work.engine))
        prepared.append(prepare(data, TokenizerConfig(vocab_size=300), work=work))
    assert len(list(prepared[1].folder.glob("train-*.bin"))) > 1
    assert prepared[0].fingerprint == prepared[1].fingerprint
