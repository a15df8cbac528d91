"""Shards: llm.c's format, windows across their borders, and every kind of damage named."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minigpt.data import shards
from minigpt.data.shards import SplitWriter, TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault

BYTE = build_tokenizer("byte")
CHAR = build_tokenizer("char", alphabet="abc")


def write_split(folder, name, pieces, *, text_bytes, tokenizer, shard_tokens=100):
    with SplitWriter(folder, name, tokenizer=tokenizer, shard_tokens=shard_tokens) as writer:
        for tokens in pieces:
            writer.write(tokens)
        writer.bytes = text_bytes
        return writer.finish()


def write(folder, tokens, *, shard_tokens=100, tokenizer=BYTE, name="train"):
    """A split of these tokens, delivered in pieces of 7."""
    tokens = np.asarray(tokens, dtype=np.uint16)
    pieces = np.split(tokens, range(7, len(tokens), 7))
    write_split(folder, name, pieces, text_bytes=5 * len(tokens), tokenizer=tokenizer, shard_tokens=shard_tokens)
    return TokenSplit(folder, name, tokenizer=tokenizer)


def test_the_file_is_what_llm_c_reads(tmp_path):
    write(tmp_path, [3, 1, 4, 1, 5])
    raw = (tmp_path / "train-000.bin").read_bytes()
    header = np.frombuffer(raw[:1024], dtype="<i4")
    assert header[:3].tolist() == [20240520, 1, 5]
    assert not header[3:].any()
    assert np.frombuffer(raw[1024:], dtype="<u2").tolist() == [3, 1, 4, 1, 5]


def test_the_sidecar_counts(tmp_path):
    split = write(tmp_path, range(23), shard_tokens=10)
    sidecar = json.loads((tmp_path / "train.json").read_text())
    assert [shard["tokens"] for shard in sidecar["shards"]] == [10, 10, 3]
    assert (sidecar["tokens"], sidecar["bytes"], sidecar["max_token"], sidecar["dtype"]) == (23, 115, 22, "uint16")
    assert (sidecar["tokenizer_hash"], sidecar["vocab_size"]) == (BYTE.hash, 257)
    assert (len(split), split.bytes, split.fingerprint) == (23, 115, sidecar["fingerprint"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "train-000.bin", "train-001.bin", "train-002.bin", "train.json",
    ]  # fmt: skip


def test_fingerprints_follow_tokens_and_tokenizer(tmp_path):
    def of(name, tokens, tokenizer):
        return write(tmp_path, tokens, tokenizer=tokenizer, name=name).fingerprint

    prints = [of("a", [0, 1, 2], BYTE), of("b", [0, 1, 1], BYTE), of("c", [0, 1, 2], CHAR)]
    assert len(set(prints)) == 3
    assert of("d", [0, 1, 2], BYTE) == prints[0]


@given(n=st.integers(1, 300), shard_tokens=st.integers(1, 120), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_windows_and_slices_are_those_of_one_array(n, shard_tokens, data, tmp_path_factory):
    tokens = np.random.default_rng(n).integers(0, 257, n).astype(np.uint16)
    split = write(tmp_path_factory.mktemp("split"), tokens, shard_tokens=shard_tokens)
    length = data.draw(st.integers(1, n))
    starts = np.array(data.draw(st.lists(st.integers(0, n - length), max_size=9)), dtype=np.int64)
    windows = split.windows(starts, length)
    assert windows.dtype == np.int64
    assert windows.shape == (len(starts), length)
    np.testing.assert_array_equal(windows, [tokens[start : start + length] for start in starts] or windows)
    start, stop = data.draw(st.integers(0, n + 5)), data.draw(st.integers(0, n + 5))
    np.testing.assert_array_equal(split.tokens(start, stop), tokens[start:stop])


@pytest.mark.parametrize("start", [-1, 19])
def test_a_window_outside_the_split_is_refused(tmp_path, start):
    split = write(tmp_path, range(23))
    with pytest.raises(IndexError, match="outside the train split of 23 tokens"):
        split.windows(np.array([3, start]), 5)


def overwrite(path, offset, content):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda path: path.write_bytes(b""),
            r"train-001.bin is 0 bytes; wanted 1,044: a header and 10 uint16 tokens",
        ),
        (
            lambda path: overwrite(path, 1044, b"x"),
            r"is 1,045 bytes; wanted 1,044",
        ),
        (lambda path: path.write_bytes(b"ab" * 200), r"is 400 bytes; wanted 1,044"),
        (
            lambda path: overwrite(path, 0, b"\1\2\3\4"),
            r"begins with the numbers \[67305985, 1, 10\]; .* with \[20240520, 1, 10\]",
        ),
        (lambda path: overwrite(path, 4, b"\7"), r"begins with the numbers \[20240520, 7, 10\];"),
        (lambda path: overwrite(path, 8, b"\6"), r"begins with the numbers \[20240520, 1, 6\]; a shard of 10 uint16"),
        (lambda path: overwrite(path, 1044, b"xy"), r"is 1,046 bytes; wanted 1,044: a header and 10 "),
        (lambda path: overwrite(path, 1030, b"\x99\x99"), r"holds token id 39321 at position 3; .* is 257"),
        (lambda path: overwrite(path, 1030, b"\x01\x00"), r"was changed since it was made: its SHA-256"),
        (lambda path: path.unlink(), r"train-001.bin can't be read: No such file"),
    ],
)
def test_damage_to_a_shard_is_named(tmp_path, harm, sentence):
    write(tmp_path, range(23), shard_tokens=10)
    harm(tmp_path / "train-001.bin")
    with pytest.raises(UserFault, match=sentence):
        TokenSplit(tmp_path, "train", tokenizer=BYTE)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "other"}, "not a sidecar of ours"),
        ({"version": 2}, "not a sidecar of ours"),
        ({"tokens": 24}, r"hold \[10, 10, 3\] tokens, not 24"),
        ({"shard_tokens": 9}, r"hold \[10, 10, 3\] tokens"),
        ({"bytes": "many"}, "lacks the counts"),
        ({"shards": [{"file": "../train-000.bin", "tokens": 10, "sha256": "0"}]}, "lacks the counts"),
        ({"shards": None}, "lacks the counts"),
        ({"shards": []}, "lacks the counts"),
        ({"shards": [{"file": "val-000.bin", "tokens": 10, "sha256": "0"}]}, "lacks the counts"),
        ({"shard_tokens": 0}, "lacks the counts"),
        ({"dtype": "int64"}, "lacks the counts or the dtype"),
        ({"dtype": "uint32"}, "train-000.bin is 1,044 bytes; wanted 1,064: a header and 10 uint32 tokens"),
        ({"bytes": -1}, "lacks the counts"),
        ({"tokens": True}, "lacks the counts"),
        ({"max_token": 10**400}, "lacks the counts"),
        ({"fingerprint": None}, "lacks the counts"),
    ],
)
def test_damage_to_the_sidecar_is_named(tmp_path, changes, sentence):
    write(tmp_path, range(23), shard_tokens=10)
    path = tmp_path / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserFault, match=sentence):
        TokenSplit(tmp_path, "train", tokenizer=BYTE)


def test_a_sidecar_that_is_missing_or_no_json_is_named(tmp_path):
    write(tmp_path, range(23))
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(UserFault, match=r"train.json is not JSON"):
        TokenSplit(tmp_path, "train", tokenizer=BYTE)
    (tmp_path / "train.json").write_text("[" * 100_000)
    with pytest.raises(UserFault, match=r"train.json is not JSON"):
        TokenSplit(tmp_path, "train", tokenizer=BYTE)
    with pytest.raises(UserFault, match=r"val.json can't be read: No such file"):
        TokenSplit(tmp_path, "val", tokenizer=BYTE)


def test_tokens_of_another_tokenizer_are_refused(tmp_path):
    write(tmp_path, [0, 1, 2])
    with pytest.raises(UserFault, match=rf"by a byte tokenizer with SHA-256 {BYTE.hash[:12]}.*here is char"):
        TokenSplit(tmp_path, "train", tokenizer=CHAR)


def test_a_token_outside_the_vocabulary_is_named_in_unchanged_files_too(tmp_path):
    pieces = [np.array([0, 1, 2, 0, 9], dtype=np.uint16)]
    write_split(tmp_path, "val", pieces, text_bytes=5, tokenizer=CHAR)
    with pytest.raises(UserFault, match=r"val-000.bin holds token id 9 at position 4; .* char tokenizer is 3"):
        TokenSplit(tmp_path, "val", tokenizer=CHAR)


def test_large_splits_are_not_hashed_at_each_opening(tmp_path, monkeypatch):
    write(tmp_path, range(23))
    monkeypatch.setattr(shards, "VERIFY_BYTES", 45)
    monkeypatch.setattr(shards, "sha256_of", lambda path: pytest.fail("hashed"))
    assert len(TokenSplit(tmp_path, "train", tokenizer=BYTE)) == 23


def test_a_source_that_fails_leaves_nothing_behind(tmp_path):
    def pieces():
        yield np.arange(15, dtype=np.uint16)
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError, match="source broke"):
        write_split(tmp_path, "train", pieces(), text_bytes=9, tokenizer=BYTE, shard_tokens=10)
    assert [path.name for path in tmp_path.iterdir()] == ["train-000.bin"]  # a whole shard, but without a sidecar
