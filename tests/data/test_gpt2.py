"""GPT-2's vocabulary from tiktoken's cache: found, damaged, missing. The file here is a small one made up."""

import hashlib

import pytest

from minigpt.data.tokenizer import build_tokenizer
from minigpt.data.tokenizers import gpt2
from minigpt.data.tokenizers.gpt2 import gpt2_ranks
from minigpt.faults import UserFault

VOCAB_BPE = "#version: 0.2\nĠ t\nh e\nĠt he\nÃ ©\n".encode()
FILE_NAME = "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"  # sha1 of the file's address, as tiktoken names it


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, a vocabulary of four merges, and no network."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.setattr(gpt2, "VOCAB_SHA256", hashlib.sha256(VOCAB_BPE).hexdigest())
    monkeypatch.setattr(gpt2, "download", unreachable)
    return tmp_path / "cache"


def unreachable(url, sha256):
    raise ConnectionError("no answer within 2 s")


def put(folder, content=VOCAB_BPE):
    folder.mkdir(exist_ok=True)
    (folder / FILE_NAME).write_bytes(content)


def test_ranks_are_gpt2s_bytes_and_then_the_merges(cache):
    put(cache)
    tokens = gpt2_ranks()
    assert tokens[:3] == [b"!", b'"', b"#"]
    assert tokens[188:191] == [b"\x00", b"\x01", b"\x02"]
    assert tokens[220] == b" "
    assert sorted(tokens[:256]) == [bytes([b]) for b in range(256)]
    assert tokens[256:] == [b" t", b"he", b" the", "é".encode()]


def test_the_tokenizer_encodes_and_its_file_needs_no_cache(cache):
    put(cache)
    tokenizer = build_tokenizer("gpt2")
    assert (tokenizer.vocab_size, tokenizer.eot) == (261, 260)
    assert tokenizer.encode("the the é") == [83, 257, 258, 220, 259]
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(b"the \xff\xe9")) == b"the \xff\xe9"


@pytest.mark.parametrize("variable", ["DATA_GYM_CACHE_DIR", None])
def test_the_other_places_of_tiktokens_cache(cache, tmp_path, monkeypatch, variable):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    folder = tmp_path / "data-gym-cache"
    if variable:
        monkeypatch.setenv(variable, str(folder))
    else:
        monkeypatch.setattr(gpt2.tempfile, "gettempdir", lambda: str(tmp_path))
    put(folder)
    assert len(gpt2_ranks()) == 260


def test_a_missing_file_is_named_with_its_place_and_the_ways_out(cache):
    with pytest.raises(UserFault) as fault:
        gpt2_ranks()
    place = f"{cache / FILE_NAME} is missing"
    for part in (place, gpt2.VOCAB_URL, "no answer within 2 s", "TIKTOKEN_CACHE_DIR", "tokenizer=bpe"):
        assert part in str(fault.value)


def test_a_damaged_file_is_named(cache):
    put(cache, VOCAB_BPE[:-1])
    with pytest.raises(UserFault, match="is damaged"):
        gpt2_ranks()


@pytest.mark.parametrize("before", [None, b"damaged"])
def test_a_fetched_file_is_kept_in_the_cache(cache, monkeypatch, before):
    if before:
        put(cache, before)
    monkeypatch.setattr(gpt2, "download", lambda url, sha256: VOCAB_BPE)
    assert len(gpt2_ranks()) == 260
    assert (cache / FILE_NAME).read_bytes() == VOCAB_BPE


def test_a_cache_that_cannot_be_written_does_not_matter(cache, monkeypatch):
    cache.write_text("a file where a folder should be")
    monkeypatch.setattr(gpt2, "download", lambda url, sha256: VOCAB_BPE)
    assert len(gpt2_ranks()) == 260
