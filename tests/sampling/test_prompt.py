"""Prompts to tokens."""

import pytest

from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from minigpt.sampling.write import encode_prompt, start_token

BYTE = build_tokenizer("byte")
CHAR = build_tokenizer("char", alphabet="\nabé")


def test_text_is_text():
    assert encode_prompt(BYTE, "é \n") == [0xC3, 0xA9, 32, 10]
    assert encode_prompt(CHAR, "bé") == CHAR.encode("bé")
    assert encode_prompt(BYTE, "<|endoftext|>") == list(b"<|endoftext|>")
    assert encode_prompt(BYTE, b"<|endoftext|>") == list(b"<|endoftext|>")


def test_the_control_token_when_asked_for():
    assert encode_prompt(BYTE, "a<|endoftext|>b", allow_special=True) == [97, 256, 98]
    assert encode_prompt(BYTE, b"a<|endoftext|>b", allow_special=True) == [97, 256, 98]
    with pytest.raises(UserFault, match="byte 0xff at offset 1"):
        encode_prompt(BYTE, b"a\xff", allow_special=True)


def test_a_file_may_hold_any_bytes_where_the_tokenizer_takes_them():
    assert encode_prompt(BYTE, b"\xff\x00\r\n") == [255, 0, 13, 10]
    with pytest.raises(UserFault, match="UTF-8"):
        encode_prompt(CHAR, b"a\xff")


def test_an_unknown_character_is_named_with_its_position():
    with pytest.raises(UserFault, match=r"'z'.*position 2"):
        encode_prompt(CHAR, "abz")
    with pytest.raises(UserFault, match=r"'z'.*position 2"):
        encode_prompt(CHAR, b"abz")


def test_an_empty_prompt_starts_somewhere():
    assert encode_prompt(BYTE, "") == encode_prompt(BYTE, b"") == [256]
    assert start_token(BYTE) == (256, "<|endoftext|>")
    assert start_token(CHAR) == (CHAR.encode("\n")[0], "a newline")
    assert start_token(build_tokenizer("char", alphabet="xyz")) == (0, "'x', the first character of its alphabet")


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(UserFault, match="surrogate"):
        encode_prompt(BYTE, "a\ud800")
