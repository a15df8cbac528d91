"""Formats that need a package of their own, .zst and .parquet: whole, damaged, and fuzzed. See `make test-extras`."""

import json
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
from minigpt.data.readers import packed, parquet, read
from minigpt.data.readers.document import BadFile, File, ReadOptions
from minigpt.faults import UserFault

zstandard = pytest.importorskip("zstandard", reason="make test-extras installs zstandard, pyarrow and fsspec")
pyarrow = pytest.importorskip("pyarrow", reason="make test-extras installs zstandard, pyarrow and fsspec")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["first, naïve", "second\nline", "third"]


def texts_of(path, **options) -> list[str]:
    options = ReadOptions(**options)
    return [b"".join(each.chunks).decode() for each in read(File(path, path.name), options)]


def table(path, **columns):
    pq.write_table(pyarrow.table(columns), path)
    return path


def test_zstd_of_several_frames(tmp_path):
    pack = zstandard.ZstdCompressor().compress
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    (tmp_path / "a.jsonl.zst").write_bytes(pack(lines[0]) + skippable + pack(lines[1]) + pack(lines[2]) + skippable)
    assert texts_of(tmp_path / "a.jsonl.zst") == TEXTS


def test_zstd_of_the_longest_window(tmp_path):
    long = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)  # zstd --long=31
    packing = zstandard.ZstdCompressor(compression_params=long).compressobj()
    (tmp_path / "a.txt.zst").write_bytes(packing.compress(b"text" * 99) + packing.flush())
    assert texts_of(tmp_path / "a.txt.zst") == ["text" * 99]


def test_damaged_zstd_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "MIN_BOMB_BYTES", 1 << 20)
    whole = zstandard.ZstdCompressor().compress(b"some text " * 99)
    damaged = {
        "cut": (whole[:-3], "is cut or no zstd file (its end is missing)"),
        "other": (b"no zstd at all", "is cut or no zstd file (zstd decompressor error: Unknown frame"),
        "more behind": (whole + b"garbage", "is cut or no zstd file (zstd decompressor error: Unknown frame"),
        "bomb": (zstandard.ZstdCompressor().compress(bytes(1 << 27)), "is a decompression bomb: of "),
    }
    for name, (content, says) in damaged.items():
        path = tmp_path / f"{name}.txt.zst"
        path.write_bytes(content)
        with pytest.raises(BadFile) as fault:
            texts_of(path)
        assert f"{path} {says}" in str(fault.value) or says in str(fault.value)
        assert f"data.exclude={shlex.quote(path.name)}" in str(fault.value)


def test_a_column_of_parquet_is_documents(tmp_path):
    path = table(tmp_path / "a.parquet", id=[1, 2, 3, 4], text=[*TEXTS, None])
    assert texts_of(path) == [*TEXTS, ""]
    assert texts_of(table(tmp_path / "b.parquet", body=[b"bytes", b"more"]), key="body") == ["bytes", "more"]


def test_damaged_parquet_is_named(tmp_path, monkeypatch):
    whole = table(tmp_path / "a.parquet", text=TEXTS, n=[1, 2, 3]).read_bytes()
    cases = {
        "cut": (whole[:-9], "cut.parquet is cut, damaged or no Parquet file"),
        "empty": (b"PAR1", "empty.parquet is cut, damaged or no Parquet file"),
    }
    for name, (content, says) in cases.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
        with pytest.raises(BadFile, match=says):
            texts_of(tmp_path / f"{name}.parquet")
    with pytest.raises(
        BadFile, match=r"no column 'body', wanted text; it has text \(string\), n \(int64\).*data\.key=COL"
    ):
        texts_of(tmp_path / "a.parquet", key="body")
    with pytest.raises(BadFile, match=r"its column 'n' holds int64, wanted text"):
        texts_of(tmp_path / "a.parquet", key="n")
    latin = table(tmp_path / "latin.parquet", text=[b"fine", b"caf\xe9"])
    with pytest.raises(BadFile, match=r"latin\.parquet, row 2: .*data\.errors=replace"):
        texts_of(latin)
    assert texts_of(latin, errors="replace") == ["fine", "caf�"]
    monkeypatch.setattr(parquet, "bomb_bytes", lambda path: 1 << 20)
    with pytest.raises(BadFile, match="is a decompression bomb"):
        texts_of(table(tmp_path / "bomb.parquet", text=["x" * 9999] * 200))


def test_a_folder_of_all_formats(tmp_path):
    (tmp_path / "texts").mkdir()
    table(tmp_path / "texts" / "a.parquet", text=TEXTS)
    (tmp_path / "texts" / "b.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(b"plain " * 20))
    said: list[str] = []
    data = DataConfig(name="text", source=str(tmp_path / "texts"), dir=str(tmp_path / "data"))
    prepared = prepare(data, TokenizerConfig(name="byte"), say=said.append)
    assert prepared.summary["documents"] == 4
    assert "1 Parquet (1 .parquet), 1 text (1 .txt.zst)" in said[0]


FLIPS = st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=FLIPS, cut=st.integers(0, 400), name=st.sampled_from(["a.txt.zst", "a.jsonl.zst", "a.parquet"]))
def test_flipped_bytes_end_in_a_named_fault_or_in_documents(tmp_path, flips, cut, name):
    """A flip that Parquet can't detect gives other text: the source's SHA-256 is in the summary."""
    path = tmp_path / name
    if name.endswith(".parquet"):
        table(path, text=TEXTS * 9, n=list(range(27)))
    else:
        lines = b"\n".join(json.dumps({"text": text}).encode() for text in TEXTS * 9)
        path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(lines))
    whole = path.read_bytes()
    wanted = texts_of(path)
    content = bytearray(whole)
    for place, byte in flips:
        content[place % len(content)] = byte
    path.write_bytes(content[: len(content) - cut % len(content)])
    try:
        got = texts_of(path)
    except UserFault as error:
        fault = str(error)
    else:
        fault = str(path) if got == wanted or name.endswith(".parquet") else "silently other text"
    assert str(path) in fault


def test_a_parquet_bomb_is_named_before_it_is_unpacked(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pyarrow.table({"text": pyarrow.array(["x" * (80 << 20)])}), path, compression="zstd")
    before = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(BadFile, match="decompression bomb"):
        list(read(File(path, path.name), ReadOptions()))
    assert pyarrow.default_memory_pool().max_memory() == before


def test_a_column_of_categories_is_text(tmp_path):
    path = tmp_path / "a.parquet"
    words = pyarrow.array(["one", None, "two", "one"]).dictionary_encode()
    pq.write_table(pyarrow.table({"text": words}), path)
    texts = [b"".join(document.chunks) for document in read(File(path, path.name), ReadOptions())]
    assert texts == [b"one", b"", b"two", b"one"]
