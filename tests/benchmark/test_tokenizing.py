"""Tokenizers are timed on text that they give back, and nothing is fetched for it."""

import pytest

from minigpt.benchmark import tokenizing
from minigpt.data.tokenizer import build_tokenizer
from minigpt.data.tokenizers import gpt2


@pytest.fixture(autouse=True)
def little_text(monkeypatch):
    monkeypatch.setattr(tokenizing, "TEXT_BYTES", 20_000)
    monkeypatch.setattr(tokenizing, "VOCAB_SIZE", 300)


def test_each_tokenizer_is_measured_and_gpt2_only_where_its_file_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpt2, "download", lambda *_: pytest.fail("a benchmark fetches nothing"))
    found = tokenizing.measure({"rounds": 2})
    assert [row[0] for row in found["rows"]] == ["byte", "char", "bpe"]
    assert [row[1] for row in found["rows"][:2]] == [1.0, 1.0]
    assert found["rows"][2][1] > 1.2
    assert all(len(speeds) == 2 and min(speeds) > 0 for row in found["rows"] for speeds in row[2:])


def test_the_text_is_whole_lines_of_the_corpus():
    text = tokenizing.read_text()
    assert 19_000 < len(text) <= 20_000
    assert text.endswith(b"\n")
    assert b"import " in text


def test_a_tokenizer_that_loses_text_is_found_out():
    class Loses:
        name = "loses"

        def encode_bytes(self, text):
            return build_tokenizer("byte").encode_bytes(text[1:])

        def decode_bytes(self, tokens):
            return build_tokenizer("byte").decode_bytes(tokens)

    tokenizing.there_and_back(build_tokenizer("byte"), b"text")
    with pytest.raises(AssertionError, match="loses does not give its text back"):
        tokenizing.there_and_back(Loses(), b"text")
