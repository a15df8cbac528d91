"""Tokenizers: round trips, text that stays text, and files that are checked before they are used."""

import base64
import copy
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer
from minigpt.data.tokenizers.bpe import PATTERN, _run_interruptibly, grouped
from minigpt.data.tokenizers.scheme import END_OF_TEXT, SINGLE_BYTES
from minigpt.faults import UserFault
from minigpt.files import read_json, write_json

SENTENCE = "It's 12 o'clock, and naïve 中文 words  go\n\n  on — we'll see… 🙂 don't they've\r\n"
TRAIN = [[(SENTENCE * 5).encode()], [b"def f(x):\n    return x\n" * 9, b"\xff\xfe broken \xff\xfe"]]
BYTE = build_tokenizer("byte")
CHAR = build_tokenizer("char", alphabet=SENTENCE)
BPE = build_tokenizer("bpe", vocab_size=320, train=TRAIN)
BYTES = (
    st.binary(max_size=80)
    | st.text(max_size=60).map(str.encode)
    | st.lists(
        st.sampled_from([b"a", b" ", b"\n", b"'s", "é".encode(), b"\xff", b"\xe2\x82", b"12", b"<|endoftext|>"]),
        max_size=30,
    ).map(b"".join)
)


def parts_of(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("tokenizer", [BYTE, BPE], ids=lambda tokenizer: tokenizer.name)
@given(data=BYTES)
def test_any_bytes_round_trip(tokenizer: Tokenizer, data: bytes):
    tokens = tokenizer.encode_bytes(data)
    assert tokens.dtype == np.uint16
    assert tokenizer.decode_bytes(tokens) == data
    assert b"".join(map(tokenizer.token_bytes, tokens.tolist())) == data
    assert tokenizer.eot not in tokens.tolist()


@pytest.mark.parametrize("tokenizer", [BYTE, BPE], ids=lambda tokenizer: tokenizer.name)
@given(text=st.text(max_size=60))
def test_text_and_its_bytes_have_the_same_tokens(tokenizer: Tokenizer, text: str):
    assert tokenizer.encode(text) == tokenizer.encode_bytes(text.encode()).tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(st.sampled_from(SENTENCE), max_size=60))
def test_char_round_trips_its_alphabet(text: str):
    tokens = CHAR.encode(text)
    assert len(tokens) == len(text)
    assert CHAR.decode(tokens) == text


@given(text=st.text(st.sampled_from(SENTENCE + "xyzπ"), max_size=80))
@settings(max_examples=200)
def test_valid_text_is_encoded_as_tiktoken_does(text: str):
    assert BPE.encode(text) == plain_tiktoken().encode_ordinary(text)


@pytest.mark.parametrize("tokenizer", [BYTE, CHAR, BPE], ids=lambda tokenizer: tokenizer.name)
@given(text=st.text(st.sampled_from(SENTENCE), max_size=100), places=st.lists(st.integers(0, 300), max_size=6))
def test_chunks_of_a_text_give_the_tokens_of_the_whole(tokenizer: Tokenizer, text: str, places: list[int]):
    data = text.encode()
    chunks = list(tokenizer.encode_chunks(parts_of(data, places)))
    together = np.concatenate(chunks) if chunks else []
    np.testing.assert_array_equal(together, tokenizer.encode_bytes(data))


def test_a_text_of_many_runs_is_encoded_as_tiktoken_encodes_it_whole():
    text = "".join(random.Random(3).choices(SENTENCE, k=200_000))
    assert BPE.encode(text) == plain_tiktoken().encode_ordinary(text)


@cache
def plain_tiktoken() -> tiktoken.Encoding:
    ranks = {BPE.token_bytes(token): token for token in range(BPE.vocab_size - 1)}
    return tiktoken.Encoding("twin", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


@pytest.mark.parametrize("tokenizer", [BYTE, BPE], ids=lambda tokenizer: tokenizer.name)
def test_end_of_text_in_a_text_is_text_unless_asked_for(tokenizer: Tokenizer):
    text = f"a{END_OF_TEXT}b{END_OF_TEXT}"
    assert tokenizer.eot == tokenizer.vocab_size - 1
    assert tokenizer.eot not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    a, b = tokenizer.encode("a"), tokenizer.encode("b")
    assert tokenizer.encode(text, allow_special=True) == [*a, tokenizer.eot, *b, tokenizer.eot]


def test_char_has_no_end_of_text():
    tokenizer = build_tokenizer("char", alphabet="<|endoftx>")
    assert tokenizer.eot is None
    assert tokenizer.decode(tokenizer.encode(END_OF_TEXT, allow_special=True)) == END_OF_TEXT


def test_sizes_and_order_of_the_vocabularies():
    assert (BYTE.vocab_size, BYTE.eot, BYTE.token_bytes(200), BYTE.token_bytes(256)) == (257, 256, b"\xc8", b"")
    assert [CHAR.decode([token]) for token in range(CHAR.vocab_size)] == sorted(set(SENTENCE))
    assert (BPE.vocab_size, BPE.eot) == (320, 319)
    assert [BPE.token_bytes(token) for token in range(256)] == [bytes([b]) for b in range(256)]
    assert all(len(BPE.token_bytes(token)) > 1 for token in range(256, 319))


def test_an_unknown_character_is_named_with_its_position():
    with pytest.raises(UserFault, match=r"'ß' \(U\+00DF\) at position 5 .*alphabet of \d+ .*tokenizer=bpe"):
        CHAR.encode("words" + "ßü")
    with pytest.raises(UserFault, match=r"'🙃' \(U\+1F643\) at position 70,000 "):
        CHAR.encode("a" * 70_000 + "🙃")
    with pytest.raises(UserFault, match=r"byte 0xFF 1 bytes after character 0"):
        CHAR.encode_bytes(b"a\xff")


@pytest.mark.parametrize("tokenizer", [BYTE, CHAR, BPE], ids=lambda tokenizer: tokenizer.name)
def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer):
    with pytest.raises(UserFault, match=r"lone surrogate U\+DC80 at character 2"):
        tokenizer.encode("go\udc80")


@pytest.mark.parametrize("token", [-1, 257, 65535])
def test_a_token_outside_the_vocabulary_is_named(token: int):
    with pytest.raises(ValueError, match=rf"token {token} at position 1 is outside .*0 to 256"):
        BYTE.decode_bytes([7, token])


@pytest.mark.parametrize(
    "data",
    [
        b"a" * 2**20,
        b" " * 2**20,
        b" " * (2**20 + 5) + b"x",
        b"\n" * 10_000,
        "é".encode() * 2**19,
        b"\x80" * 2**20,
        b"a\xff" * 2**18,
        random.Random(1).randbytes(2**19),
    ],
    ids=["letter", "blanks", "blanks then a letter", "blank lines", "accents", "continuation", "alternating", "random"],
)
def test_strange_text_is_encoded_in_seconds(data: bytes):
    begun = time.perf_counter()
    tokens = BPE.encode_bytes(data)
    assert time.perf_counter() - begun < 20
    assert BPE.decode_bytes(tokens) == data


def test_bpe_learns_the_same_in_every_process():
    program = (
        "from minigpt.data.tokenizer import build_tokenizer\n"
        f"print(build_tokenizer('bpe', vocab_size=320, train={TRAIN!r}).hash)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "4711", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == BPE.hash


def test_bpe_learns_from_text_only_and_as_much_as_there_is():
    tokenizer = build_tokenizer("bpe", vocab_size=500, train=[[b"low lower \xff\xffab\xff\xff"], [b"lowest low"]])
    learned = {tokenizer.token_bytes(token) for token in range(256, tokenizer.vocab_size - 1)}
    assert {b"low", b" low"} <= learned
    assert tokenizer.vocab_size < 300
    assert not any(b"\xff" in token for token in learned)


def test_learning_obeys_a_signal_at_once():
    """U7: the trainer looks at no signal until it is done."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    begun = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            _run_interruptibly(lambda text: time.sleep(2), ())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert time.perf_counter() - begun < 1.5


LEARN = """
import signal, sys, time
from minigpt.data.tokenizers.bpe import train_ranks

def text():
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while True:
        time.sleep(0.001)
    yield b""

signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    train_ranks(300, [text()])
except KeyboardInterrupt:
    print("stopped")
"""


def test_a_process_whose_learning_was_stopped_ends_with_its_exit_code():
    """Python ends a thread by unwinding its stack, which aborts the process (SIGABRT) where Rust called Python."""
    done = subprocess.run([sys.executable, "-c", LEARN], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopped\n", "")


def test_a_fault_in_the_text_is_a_fault_of_learning():
    def broken():
        yield b"some text"
        raise UserFault("the disk is gone")

    with pytest.raises(UserFault, match="the disk is gone"):
        build_tokenizer("bpe", vocab_size=300, train=[broken()])


def test_a_large_vocabulary_is_checked_in_a_moment():
    """Finding 24: a set of all tokens was made 256 times."""
    tokens = [*SINGLE_BYTES, *(number.to_bytes(3, "big") for number in range(50_000))]
    begun = time.perf_counter()
    with pytest.raises(ValueError, match="byte 0x00 has no token; all 256 bytes must be there"):
        Tokenizer("bpe", tokens[1:])
    assert time.perf_counter() - begun < 0.25


def test_tiktoken_takes_its_fast_path_and_text_stays_text():
    """Finding 25: without a special token of its own it is 1.6 times as slow, and so it is with PATTERN as it is."""
    assert BPE._encoder._encoding.special_tokens_set == {END_OF_TEXT}
    assert BPE._encoder._encoding._pat_str == grouped(PATTERN) != PATTERN
    text = f"a {END_OF_TEXT} b" * 3
    assert BPE.encode(text) == plain_tiktoken().encode_ordinary(text)


def test_the_longest_merges_first_pair_is_the_most_frequent():
    tokenizer = build_tokenizer("bpe", vocab_size=258, train=[[b"ab ab ab cd cd"]])
    assert tokenizer.token_bytes(256) == b"ab"


@pytest.mark.parametrize("tokenizer", [BYTE, CHAR, BPE], ids=lambda tokenizer: tokenizer.name)
def test_it_survives_its_file(tokenizer: Tokenizer, tmp_path):
    write_json(tmp_path / "tokenizer.json", tokenizer.to_json())
    twin = load_tokenizer(read_json(tmp_path / "tokenizer.json"))
    assert (twin.name, twin.vocab_size, twin.eot, twin.hash) == (
        tokenizer.name, tokenizer.vocab_size, tokenizer.eot, tokenizer.hash,
    )  # fmt: skip
    assert twin.encode(SENTENCE) == tokenizer.encode(SENTENCE)


def test_hashes_tell_tokenizers_apart():
    others = [
        BYTE,
        CHAR,
        BPE,
        build_tokenizer("char", alphabet=SENTENCE + "Q"),
        build_tokenizer("bpe", vocab_size=319, train=TRAIN),
    ]
    assert len({tokenizer.hash for tokenizer in others}) == len(others)


def _change(**changes):
    return lambda content: content | changes


def _token(place: int, value: bytes):
    def change(content):
        content["tokens"][place] = base64.b64encode(value).decode()
        return content

    return change


def _drop(key: str):
    return lambda content: {k: v for k, v in content.items() if k != key}


@pytest.mark.parametrize(
    ("tokenizer", "change", "sentence"),
    [
        (BPE, lambda content: [content], 'wanted "format"'),
        (BPE, _drop("format"), '"format" is null, '),
        (BPE, _change(version=2), '"version" is 2, '),
        (BPE, _change(name="word"), "'word' is not known; wanted one of byte, char, bpe, gpt2"),
        (BPE, _change(name=["bpe"]), '"name": one of byte, char, bpe, gpt2'),
        (BPE, _drop("tokens"), '"tokens": a list of base64'),
        (BPE, _change(tokens=[1, 2]), '"tokens": a list of base64'),
        (BPE, lambda content: content | {"tokens": [*content["tokens"][:-1], "é!"]}, "only ASCII"),
        (BPE, lambda content: content | {"tokens": [*content["tokens"][:-1], "e!"]}, "a list of base64"),
        (BPE, lambda content: content | {"tokens": dict.fromkeys(content["tokens"])}, '"tokens" is a group'),
        (BPE, _change(vocab_size=321), '"vocab_size" is 321, and with 319 tokens of tokenizer=bpe it must be 320'),
        (BPE, _change(eot=3), '"eot" is 3, '),
        (BPE, _token(7, b"\x08"), "empty or appears twice"),
        (BPE, _token(7, b""), "empty or appears twice"),
        (BPE, _token(7, b"zzzzzzzz"), "byte 0x07 has no token"),
        (BPE, _change(pattern="(a+)+$"), '"pattern" is '),
        (BYTE, _token(7, b"zz"), "all 256 bytes"),
        (CHAR, _token(0, b"ab"), "not one UTF-8 character"),
        (CHAR, _token(0, b"\xff"), "not one UTF-8 character"),
        (CHAR, lambda content: content | {"tokens": [], "vocab_size": 0}, "not one UTF-8 character"),
    ],
)
def test_a_file_with_a_fault_is_refused(tokenizer: Tokenizer, change, sentence: str):
    with pytest.raises(UserFault, match="not a usable tokenizer") as fault:
        load_tokenizer(change(copy.deepcopy(tokenizer.to_json())))
    assert sentence in str(fault.value)


def test_a_vocabulary_of_impossible_size_is_refused_before_any_work():
    def never():
        raise AssertionError("the text was read")
        yield

    with pytest.raises(UserFault, match="at least 257"):
        build_tokenizer("bpe", vocab_size=256, train=never())


@pytest.mark.parametrize(("count", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_a_vocabulary_beyond_16_bits_has_32(count: int, dtype: type):
    alphabet = [chr(code) for code in range(0x1_0000, 0x1_0000 + count)]
    tokenizer = build_tokenizer("char", alphabet=alphabet)
    tokens = tokenizer.encode_bytes(f"{alphabet[-1]}{alphabet[3]}".encode())
    assert tokens.dtype == dtype
    assert tokens.tolist() == [count - 1, 3]
    assert load_tokenizer(tokenizer.to_json()).decode(tokens) == alphabet[-1] + alphabet[3]
    assert tokenizer.encode_bytes(b"").dtype == dtype


def test_an_unknown_name_is_refused():
    with pytest.raises(UserFault, match="'gpt4' is not known; wanted one of byte, char, bpe, gpt2"):
        build_tokenizer("gpt4")


@pytest.mark.parametrize(("tokenizer", "n_tokens"), [(BYTE, 10_000_000), (BPE, 3_000_000)], ids=["byte", "bpe"])
def test_ten_megabytes_are_decoded_in_seconds(tokenizer: Tokenizer, n_tokens: int):
    tokens = np.random.default_rng(0).integers(32, tokenizer.vocab_size, n_tokens).astype(np.uint16)
    begun = time.perf_counter()
    text = tokenizer.decode_bytes(tokens)
    assert time.perf_counter() - begun < 20
    assert text[:900].startswith(b"".join(map(tokenizer.token_bytes, tokens[:200].tolist())))
