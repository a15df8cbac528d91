"""Tokens of llm.c and nanoGPT, used where they lie: the same tokens, no copy, every fault named."""

import os
import struct

import numpy as np
import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import DamagedShards
from minigpt.data.preparing import in_place
from minigpt.data.preparing.prepare import prepare
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from tests.conftest import printed

TOKENS = np.frombuffer("héllo, tokens of bytes. ".encode() * 40, dtype=np.uint8).astype(np.uint16)
TOKENS = np.concatenate([TOKENS, [256], TOKENS]).astype("<u2")


def shard(tokens, *, magic=20240520, version=1, dtype="<u2", count=None) -> bytes:
    header = struct.pack("<256i", magic, version, len(tokens) if count is None else count, *[0] * 253)
    return header + np.asarray(tokens).astype(dtype).tobytes()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokens").mkdir()
    return tmp_path


def make(folder, files: dict[str, bytes], *, tokenizer="byte", source="tokens", **keys):
    for name, content in files.items():
        (folder / "tokens" / name).write_bytes(content)
    data = DataConfig(name="text", source=str(folder / source), dir=str(folder / "data"), **keys)
    return prepare(data, TokenizerConfig(name=tokenizer))


NANOGPT = {"train.bin": TOKENS.tobytes(), "val.bin": TOKENS[:99].tobytes()}
LLM_C = {
    "x_train_000001.bin": shard(TOKENS[:700]),
    "x_train_000002.bin": shard(TOKENS[700:750]),
    "x_train_000003.bin": shard(TOKENS[750:]),
    "x_val_000000.bin": shard(TOKENS[:99]),
}
WIDE = {
    "train.bin": shard(TOKENS, magic=20240801, version=7, dtype="<u4"),
    "val.bin": shard(TOKENS[:99], magic=20240801, version=7, dtype="<u4"),
}


@pytest.mark.parametrize("files", [NANOGPT, LLM_C, WIDE], ids=["nanoGPT", "llm.c", "llm.c uint32"])
def test_tokens_are_used_where_they_are(folder, files):
    (folder / "tokens" / "readme.md").write_text("text beside tokens")
    prepared, said = printed(lambda: make(folder, files))
    np.testing.assert_array_equal(prepared.train.tokens(0, 9999), TOKENS)
    windows = prepared.train.windows(np.array([0, 690, 740]), 70)
    np.testing.assert_array_equal(windows[1:], [TOKENS[690:760], TOKENS[740:810]])
    np.testing.assert_array_equal(prepared.val.tokens(0, 9999), TOKENS[:99])
    text = build_tokenizer("byte").decode_bytes([*TOKENS, *TOKENS[:99]])
    assert prepared.summary["bytes"] == prepared.train.bytes + prepared.val.bytes == len(text)
    assert prepared.summary["characters"] == len(text.decode(errors="ignore"))
    assert prepared.summary["documents"] == 1
    shards = sorted(prepared.folder.glob("*.bin"))
    assert {os.path.realpath(path) for path in shards} == {str(folder / "tokens" / name) for name in files}
    assert said[0] == "data: left out 1 (beside tokens, which are used; data.exclude=*.bin reads text): readme.md"
    assert said[1].endswith(f": {len(files)} tokens ({len(files)} .bin)")
    assert "tokenizer=byte" in said[2]
    found, again = printed(lambda: make(folder, {}))
    assert found.fingerprint == prepared.fingerprint
    assert again[0].startswith(f"data: {prepared.folder}: ")  # found, not read


def test_llm_cs_uint16_are_gpt2s_unless_another_is_stated(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(in_place, "build_tokenizer", lambda name: asked.append(name) or build_tokenizer("byte"))
    assert make(folder, LLM_C, tokenizer="bpe").tokenizer.name == "byte"
    assert asked == ["gpt2"]


@pytest.mark.parametrize("files", [NANOGPT, WIDE])
def test_other_tokens_need_their_tokenizer_named(folder, files):
    with pytest.raises(UserFault, match=r"tokens, and tokenizer=bpe is learned from text\. Name .*tokenizer=gpt2"):
        make(folder, files, tokenizer="bpe")
    (folder / "tokens" / "meta.pkl").touch()
    with pytest.raises(UserFault, match=r"meta\.pkl, a pickle, which is never opened"):
        make(folder, {}, tokenizer="char")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"train.bin": NANOGPT["train.bin"][:-1]}, r"train\.bin is 4,001 bytes; wanted 4,000"),
        ({"val.bin": np.array([5, 300], "<u2").tobytes()}, r"val\.bin holds token id 300 at position 1; .* is 257"),
        ({"train.bin": shard(TOKENS)[:-2]}, r"train\.bin is 5,024 bytes; wanted 5,026: a header and 2,001"),
    ],
)
def test_damaged_tokens_are_named(folder, files, says):
    with pytest.raises(UserFault, match=says):
        make(folder, NANOGPT | files)


def test_a_split_that_is_missing_is_named(folder):
    with pytest.raises(UserFault, match="no tokens for val: the files to validate on have val in their names"):
        make(folder, {"a_train_1.bin": shard(TOKENS)})


def test_tokens_to_validate_on_are_not_trained_on(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "test_0.bin").write_bytes(shard(TOKENS[:50]))
    prepared = make(folder, LLM_C, val_source=str(folder / "mine"))
    np.testing.assert_array_equal(prepared.val.tokens(0, 9999), TOKENS[:50])
    assert len(prepared.train) == len(TOKENS) + 99
    assert "data.val_source" in prepared.summary["split"] or "mine" in prepared.summary["split"]


def test_tokens_of_our_own_are_a_mixture_of_one(folder, tmp_path):
    (tmp_path / "a.txt").write_text("how much wood would a woodchuck chuck " * 60)
    data = DataConfig(name="text", source=str(tmp_path / "a.txt"), dir=str(tmp_path / "own"))
    own = prepare(data, TokenizerConfig(name="byte"))
    with pytest.raises(UserFault, match=r"data\.mix=.*:1"):
        prepare(DataConfig("text", str(own.folder), dir=str(tmp_path / "new")), TokenizerConfig("byte"))
    mix = DataConfig(mix={str(own.folder): 1.0}, dir=str(tmp_path / "new"))
    assert prepare(mix, TokenizerConfig("byte")).train.tokens(0, 9).tolist() == own.train.tokens(0, 9).tolist()


def test_a_text_to_validate_tokens_on_is_refused(folder):
    (folder / "val.txt").write_text("some text")
    with pytest.raises(UserFault, match=r"hold tokens and text \(val\.txt\)"):
        make(folder, NANOGPT, val_source=str(folder / "val.txt"))


def test_files_that_only_look_like_tokens(folder):
    (folder / "tokens" / "a.txt").write_bytes(b"some text " * 99)
    evaluation = shard(TOKENS, magic=20240522)
    files = {"hellaswag_val.bin": evaluation, "train.bin": NANOGPT["train.bin"]}
    _, said = printed(lambda: make(folder, files))
    assert "data: left out 2 (binary data: it holds NUL bytes): hellaswag_val.bin, train.bin" in said
    for name in ("hellaswag_val.bin", "train.bin"):  # tokenizer=byte is not to learn their bytes
        with pytest.raises(UserFault, match="wanted text"):
            make(folder, {}, source=f"tokens/{name}")


def test_tokens_that_change_or_go_are_noticed(folder):
    first = make(folder, NANOGPT)
    (folder / "tokens" / "train.bin").write_bytes(TOKENS[::-1].tobytes())
    assert make(folder, {}).fingerprint != first.fingerprint
    (folder / "tokens" / "train.bin").unlink()
    (folder / "tokens" / "val.bin").unlink()
    (folder / "tokens").rmdir()
    data = DataConfig(name="text", source=str(folder / "tokens"), dir=str(folder / "data"))
    with pytest.raises(DamagedShards, match=r"train-000\.bin can't be read"):
        prepare(data, TokenizerConfig(name="byte"))
