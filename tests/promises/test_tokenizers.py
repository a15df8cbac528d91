"""Tokenizers byte, char, bpe, gpt2, any tokenizer.json: encoded text decodes to its bytes; ids are those of the peers.

The peers are `tiktoken` for bpe and gpt2, and the library `tokenizers` for a tokenizer.json.
"""

import hashlib
import json
import random
import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

import minigpt
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer, read_tokenizer_json
from minigpt.data.tokenizers import bpe, file
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE, MARKED, PATTERN, gpt2_ranks
from minigpt.data.tokenizers.scheme import END_OF_TEXT
from minigpt.evaluation.texts import encode_documents
from minigpt.faults import UserFault
from minigpt.files import read_json, write_json
from minigpt.formats.tokenizer_json import tokenizer_json
from minigpt.sampling.write import encode_prompt
from tests.conftest import LETTERS

SENTENCE = "It's 12 o'clock, WE'LL see: naïve 中文。\n words  go\n\n  on — «we’ll» see…\t🙂 3.14159/2718 don't\r\n"
PIECES = [*"aZéßñcd019 .,!?'/-_(){}\"«—…\n\r\t¼²٣中文。　한국어กិ\u0301\u00a0🙂", "'s", " the", "    ", "<think>"]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"  # Llama 3's pattern begins so
LLAMA3 = WORDS + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TRAIN = [[(SENTENCE * 5).encode()], [b"def f(x):\n    return x\n" * 9, b"\xff\xfe broken \xff\xfe"]]
BYTE = build_tokenizer("byte")
CHAR = build_tokenizer("char", alphabet=SENTENCE)
BPE = build_tokenizer("bpe", vocab_size=320, train=TRAIN)
MARKS = "होरीराम ने दोनों बैलों को, 2024 में\n\n  «घर» दिया…\tภาษาไทยที่นี่ اَلْعَرَبِيَّةُ।\r\n"
MARKED_BPE = build_tokenizer("bpe", vocab_size=500, train=[[(MARKS * 9).encode()], [b"and some English"]])
BYTES = st.binary(max_size=80) | st.text(LETTERS, max_size=60).map(str.encode)
by_name = pytest.mark.parametrize("tokenizer", [BYTE, BPE, MARKED_BPE], ids=lambda tokenizer: tokenizer.name)


@cache
def fuzz(count: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return ["", " ", "  a ", *("".join(dice.choices(PIECES, k=dice.randrange(30))) for _ in range(count))]


@by_name
@given(data=BYTES, places=st.lists(st.integers(0, 300), max_size=6))
def test_any_bytes_round_trip_however_they_come(tokenizer: Tokenizer, data: bytes, places: list[int]):
    tokens = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(tokens) == data
    assert tokenizer.eot not in tokens.tolist()
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    chunks = [*tokenizer.encode_chunks(data[a:b] for a, b in pairwise(edges))]
    np.testing.assert_array_equal(np.concatenate(chunks) if chunks else [], tokens)


@pytest.mark.parametrize(("tokenizer", "pattern"), [(BPE, PATTERN), (MARKED_BPE, MARKED)], ids=["gpt2", "marked"])
def test_ids_of_bpe_are_those_of_tiktoken_and_of_its_tokenizer_json(tokenizer: Tokenizer, pattern: str):
    assert tokenizer.pattern == pattern
    ranks = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size - 1)}
    twin = tiktoken.Encoding("twin", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    library = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tokenizer)))
    library.encode_special_tokens = True
    long = "".join(random.Random(3).choices(SENTENCE + MARKS, k=200_000))
    for text in [*fuzz(300), long, f"a {END_OF_TEXT} b" * 3]:
        assert tokenizer.encode(text) == twin.encode_ordinary(text) == library.encode(text).ids
    assert load_tokenizer(tokenizer.to_json()).encode(long) == tokenizer.encode(long)


def test_control_tokens_are_text_unless_asked_for():
    asked = BPE.encode(f"a{END_OF_TEXT}b", allow_special=True)
    assert asked == [*BPE.encode("a"), BPE.eot, *BPE.encode("b")]


def test_char_knows_its_alphabet_alone():
    assert CHAR.decode(CHAR.encode(SENTENCE)) == SENTENCE
    assert [CHAR.decode([token]) for token in range(CHAR.vocab_size)] == sorted(set(SENTENCE))
    assert CHAR.eot is None
    with pytest.raises(UserFault, match=r"'ß' \(U\+00DF\) at position 70,000 .*alphabet of \d+ .*tokenizer=bpe"):
        CHAR.encode("s" * 70_000 + "ßü")
    with pytest.raises(UserFault, match=r"byte 0xFF 1 bytes after character 0"):
        CHAR.encode_bytes(b"s\xff")


@by_name
def test_what_is_no_text_and_no_token_is_refused(tokenizer: Tokenizer):
    with pytest.raises(UserFault, match=r"lone surrogate U\+DC80 at character 2"):
        tokenizer.encode("go\udc80")
    with pytest.raises(ValueError, match="token 65535 is outside "):
        tokenizer.decode_bytes([7, 65535])


def test_bpe_learns_from_text_only_and_as_much_as_there_is():
    tokenizer = build_tokenizer("bpe", vocab_size=500, train=[[b"low lower \xff\xffab\xff\xff"], [b"lowest low"]])
    learned = {tokenizer.token_bytes(token) for token in range(256, tokenizer.vocab_size - 1)}
    assert {b"low", b" low"} <= learned
    assert tokenizer.vocab_size < 300
    assert not any(b"\xff" in token for token in learned)
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(b" " * 2**20)) == b" " * 2**20  # too much for one regex
    with pytest.raises(UserFault, match="at least 257"):
        build_tokenizer("bpe", vocab_size=256)


VOCAB_BPE = "#version: 0.2\nĠ t\nh e\nĠt he\nÃ ©\n".encode()


def test_gpt2_is_read_from_tiktokens_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bpe, "GPT2_SHA256", hashlib.sha256(VOCAB_BPE).hexdigest())
    (tmp_path / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee").write_bytes(VOCAB_BPE)
    tokenizer = build_tokenizer("gpt2")
    assert (tokenizer.vocab_size, tokenizer.eot, tokenizer.token_bytes(188)) == (261, 260, b"\x00")
    assert tokenizer.encode("the the é") == [83, 257, 258, 220, 259]
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(b"the \xff\xe9")) == b"the \xff\xe9"

    def unreachable(url):
        raise ConnectionError("no network")

    (tmp_path / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee").unlink()
    monkeypatch.setattr("tiktoken.load.read_file", unreachable)
    with pytest.raises(UserFault, match=r"no network.*TIKTOKEN_CACHE_DIR, or use tokenizer=bpe"):
        gpt2_ranks()


@cache
def library(kind: str) -> str:
    """A tokenizer.json: of the kind of GPT-2, Llama 3 or Qwen (which normalizes); or of SentencePiece, as Llama 2."""
    if kind.startswith("sentencepiece"):
        names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        if kind == "sentencepiece":
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        made.train_from_iterator(
            [SENTENCE], trainers.BpeTrainer(vocab_size=500, special_tokens=names, show_progress=False)
        )
        content = json.loads(made.to_str())
        content["added_tokens"] = content["added_tokens"][:3]
        made = tokenizers.Tokenizer.from_str(json.dumps(content))
        begin = ("<s>", made.token_to_id("<s>"))
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])
        return made.to_str()
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=kind == "llama"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    made.pre_tokenizer = byte_level if kind == "gpt2" else pre_tokenizers.Sequence([split, byte_level])
    made.decoder = decoders.ByteLevel()
    made.normalizer = normalizers.NFC() if kind == "qwen" else None
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=[*CHARACTER_TO_BYTE], show_progress=False)
    made.train_from_iterator([SENTENCE * 3, *fuzz(300, seed=5)], trainer)
    made.add_special_tokens([END_OF_TEXT, "<|im_end|>"])
    made.add_tokens([AddedToken("<think>", normalized=False)])
    return made.to_str()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen", "sentencepiece", "sentencepiece-words"])
def test_ids_of_a_tokenizer_json_are_those_of_the_tokenizers_library(kind: str, tmp_path, monkeypatch):
    """Also those of a long text, which is cut into many runs, and of its copy in a checkpoint."""
    monkeypatch.setattr(file, "RUN_BYTES", 500)
    (tmp_path / "tokenizer.json").write_text(library(kind))
    tokenizer, twin = read_tokenizer_json(tmp_path / "tokenizer.json"), tokenizers.Tokenizer.from_str(library(kind))
    copy, twin.encode_special_tokens = load_tokenizer(json.loads(json.dumps(tokenizer.to_json()))), True
    for text in [*fuzz(500, seed=7), "".join(fuzz(500, seed=8))]:
        ids = twin.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == copy.encode(text) == ids, repr(text)
        if kind != "qwen" and not (kind == "sentencepiece-words" and text.startswith(" ")):
            assert tokenizer.decode(ids) == text
    raw = b"ab \xff\xfe c \xe2\x82 d"
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(raw)) == raw
    assert tokenizer.hash == copy.hash
    named = f"a {tokenizer.names[tokenizer.eot]}"
    assert tokenizer.eot not in tokenizer.encode(named)
    assert tokenizer.encode(named, allow_special=True)[-1] == tokenizer.eot
    assert tokenizer.start == ([1] if kind.startswith("sentencepiece") else [])


@pytest.mark.parametrize(
    ("eot", "config", "eot_name", "end_name"),
    [
        (None, {}, END_OF_TEXT, None),
        (None, {"eos_token": "<|im_end|>"}, END_OF_TEXT, "<|im_end|>"),  # which ends a turn, not a text
        (None, {"eos_token": {"content": END_OF_TEXT}}, END_OF_TEXT, None),
        ("<think>", {"eos_token": "<|im_end|>"}, "<think>", "<|im_end|>"),
    ],
)
def test_the_files_say_which_tokens_begin_and_end_a_text(eot, config, eot_name, end_name, tmp_path):
    (tmp_path / "tokenizer.json").write_text(library("llama"))
    write_json(tmp_path / "tokenizer_config.json", config | {"bos_token": "<|im_end|>", "add_bos_token": True})
    tokenizer = read_tokenizer_json(tmp_path / "tokenizer.json", eot)
    assert tokenizer.eot == tokenizer.special[eot_name]
    assert tokenizer.rules.end == tokenizer.special.get(end_name)
    assert tokenizer.start == [tokenizer.special["<|im_end|>"]]
    assert tokenizer.eot not in tokenizer.encode(f"a {eot_name} b")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: [content], "can't be used as a tokenizer.json in Hugging Face's format"),
        (lambda content: build_tokenizer("byte").to_json(), "it is minigpt's own; minigpt export writes one"),
        (lambda content: content | {"model": content["model"] | {"type": "Markov"}}, "Exception: "),
        (lambda content: content | {"normalizer": {"type": "Lowercase"}}, "does not give text back as it was"),
        (lambda content: content | {"added_tokens": []}, "nothing says which of its added tokens ends a text"),
    ],
)
def test_a_file_that_would_lose_text_is_refused(change, sentence, tmp_path):
    write_json(tmp_path / "tokenizer.json", change(json.loads(library("llama"))))
    with pytest.raises(UserFault, match=re.escape(sentence)) as fault:
        read_tokenizer_json(tmp_path / "tokenizer.json")
    assert str(tmp_path / "tokenizer.json") in str(fault.value)


@pytest.mark.parametrize("tokenizer", [BYTE, CHAR, BPE], ids=lambda tokenizer: tokenizer.name)
def test_a_tokenizer_survives_its_file_and_damage_is_named(tokenizer: Tokenizer, tmp_path):
    write_json(tmp_path / "tokenizer.json", tokenizer.to_json())
    content = read_json(tmp_path / "tokenizer.json")
    twin = load_tokenizer(content)
    assert (twin.hash, twin.encode(SENTENCE)) == (tokenizer.hash, tokenizer.encode(SENTENCE))
    for change in ({"name": "word"}, {"tokens": [1]}, {"vocab_size": 3}, {"tokens": content["tokens"][1:]}):
        with pytest.raises(UserFault):
            load_tokenizer(content | change, "tokenizer.json")


def test_the_token_that_begins_a_text_stands_before_documents_prompts_and_scored_texts(run, tmp_path):
    (tmp_path / "tokenizer.json").write_text(library("sentencepiece"))
    (run.folder / "texts").mkdir()
    for number in range(40):
        (run.folder / "texts" / f"{number}.txt").write_text(f"wood {number}" * 20)
    words = ["tokenizer=file", f"tokenizer.file={tmp_path / 'tokenizer.json'}", f"data.source={run.folder / 'texts'}"]
    gpt = minigpt.load(run(*words, "trainer.max_steps=1"))
    tokens = next(iter((run.folder / "data").glob("*/train-000.bin"))).read_bytes()[1024:]
    tokens, bos, eot = np.frombuffer(tokens, "<u2"), 1, 2
    assert tokens[0] == bos
    assert (tokens[1:][tokens[:-1] == eot] == bos).all()
    assert (tokens == bos).sum() == (tokens == eot).sum() + 1 > 20
    assert encode_prompt(gpt.tokenizer, "wood")[0] == encode_prompt(gpt.tokenizer, "")[0] == bos
    assert encode_documents(gpt.tokenizer, [[b"wood"], [b"wood"]]).tokens(0, 1).tolist() == [bos]
