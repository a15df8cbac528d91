"""Shards: llm.c's format, windows across their borders, and every kind of damage named."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.data import shards
from minigpt.data.shards import HEADER_BYTES, HEADS, open_split, shard_name, write_sidecar
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from minigpt.files import sha256_of

BYTE = build_tokenizer("byte")
CHAR = build_tokenizer("char", alphabet="abc")


def write(folder, tokens, *, shard_tokens=100, tokenizer=BYTE, name="train", dtype="uint16"):
    """A split of these tokens, as llm.c writes it."""
    tokens, entries = np.asarray(tokens, dtype=dtype), []
    for number, start in enumerate(range(0, len(tokens), shard_tokens)):
        part, path = tokens[start : start + shard_tokens], folder / shard_name(name, number)
        head = struct.pack("<3i", *HEADS[dtype], len(part))
        path.write_bytes(head.ljust(HEADER_BYTES, b"\0") + part.tobytes())
        form = {"dtype": dtype, "header_bytes": HEADER_BYTES, "tokens": len(part), "bytes": 5 * len(part)}
        entries.append({"file": path.name, "sha256": sha256_of(path), **form})
    write_sidecar(folder, name, tokenizer, entries)
    return open_split(folder, name, tokenizer)


def test_fingerprints_follow_tokens_and_tokenizer(tmp_path):
    def of(name, tokens, tokenizer):
        return write(tmp_path, tokens, tokenizer=tokenizer, name=name).fingerprint

    prints = [of("a", [0, 1, 2], BYTE), of("b", [0, 1, 1], BYTE), of("c", [0, 1, 2], CHAR)]
    assert len(set(prints)) == 3
    assert of("d", [0, 1, 2], BYTE) == prints[0]


@given(data=st.data(), shard_tokens=st.integers(1, 30), dtype=st.sampled_from(sorted(HEADS)))
def test_windows_and_ranges_equal_slices_of_the_whole(tmp_path_factory, data, shard_tokens, dtype):
    whole = np.arange(data.draw(st.integers(2, 90)))
    split = write(tmp_path_factory.mktemp("split"), whole, shard_tokens=shard_tokens, dtype=dtype)
    length = data.draw(st.integers(1, len(whole)))
    starts = np.array(data.draw(st.lists(st.integers(0, len(whole) - length), max_size=5)), dtype=np.int64)
    windows = split.windows(starts, length)
    assert windows.dtype == np.int64
    np.testing.assert_array_equal(windows, whole[starts[:, None] + np.arange(length)])
    a, b = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99))
    np.testing.assert_array_equal(split.tokens(a, b), whole[a:b])


def overwrite(path, place, content):
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(content)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda path: overwrite(path, 1044, b"xy"), r"is 1,046 bytes; wanted 1,044: a header and 10 "),
        (lambda path: overwrite(path, 1030, b"\x01\x00"), r"was changed since it was made: its SHA-256"),
        (lambda path: path.unlink(), r"train-001.bin can't be read: No such file"),
    ],
)
def test_damage_to_a_shard_is_named(tmp_path, harm, sentence):
    write(tmp_path, range(23), shard_tokens=10)
    harm(tmp_path / "train-001.bin")
    with pytest.raises(UserFault, match=sentence):
        open_split(tmp_path, "train", BYTE)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shards": [{"file": "train-000.bin", "tokens": 23, "sha256": "0"}]}, "is damaged"),
        ({"shards": None}, "is damaged"),
        ({"dtype": "uint32"}, "train-000.bin is 1,044 bytes; wanted 1,064: a header and 10 uint32 tokens"),
        ({"fingerprint": None}, "is damaged"),
    ],
)
def test_damage_to_the_sidecar_is_named(tmp_path, changes, sentence):
    write(tmp_path, range(23), shard_tokens=10)
    path = tmp_path / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserFault, match=sentence):
        open_split(tmp_path, "train", BYTE)


def test_large_splits_are_not_hashed_at_each_opening(tmp_path, monkeypatch):
    write(tmp_path, range(23))
    monkeypatch.setattr(shards, "VERIFY_BYTES", 45)
    monkeypatch.setattr(shards, "sha256_of", lambda path: pytest.fail("hashed"))
    assert len(open_split(tmp_path, "train", BYTE)) == 23
