"""The score of a whole text: against a plain loop, and in each of its units."""

import json
import math

import pytest
import torch

import minigpt
from minigpt.data.readers.document import ReadOptions
from minigpt.evaluation.evaluate import _open_text
from minigpt.evaluation.texts import encode_documents, read_text, score_text, write_tokens


def plain_losses(gpt, tokens: list[int], stride: int) -> list[float]:
    """Token by token, each from its own forward pass over what its window has before it."""
    block_size, losses = gpt.model.config.block_size, []
    for place in range(1, len(tokens)):
        # the first window that reaches so far
        window = max(0, math.ceil((place - block_size) / stride)) * stride
        logits = gpt.model(torch.tensor([tokens[window:place]]))[0, -1]
        losses.append(-logits.double().log_softmax(-1)[tokens[place]].item())
    return losses


@pytest.mark.parametrize("name", ["byte", "bpe", "char"])
@pytest.mark.parametrize("stride", [None, 3, 1])
def test_every_token_but_the_first_is_scored_by_the_rule(runs, text, name, stride):
    gpt = minigpt.load(runs[name])
    content = text.read_text()[-150:]
    tokens = encode_documents(gpt.tokenizer, [[content.encode()]])
    with torch.inference_mode():
        wanted = plain_losses(gpt, gpt.tokenizer.encode(content), stride or gpt.model.config.block_size)
    scored = score_text(gpt.model, tokens, stride=stride)
    assert scored.nats.tolist() == pytest.approx(wanted, abs=1e-4)
    assert len(wanted) == len(tokens) - 1 == scored.score.tokens
    figures = scored.figures()
    size = len(content.encode()) - len(gpt.tokenizer.token_bytes(gpt.tokenizer.encode(content)[0]))
    assert figures["bytes"] == size
    assert figures["nats_per_token"] == pytest.approx(sum(wanted) / len(wanted), rel=1e-5)
    assert figures["bits_per_byte"] == pytest.approx(sum(wanted) / math.log(2) / size, rel=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(sum(wanted) / len(wanted)), rel=1e-4)
    words = len(content.split()) + content.count("\n")
    assert figures["word_perplexity"] == pytest.approx(math.exp(sum(wanted) / words), rel=1e-3)
    if stride is None:
        assert gpt.loss(content) == pytest.approx(figures["nats_per_token"])


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_words_and_lines_are_those_of_the_whole_text_however_it_is_cut(byte, size):
    content = " \n = Wörld =\n\n two\twords  here\r\nthe énd".encode()
    text = encode_documents(byte.tokenizer, [[content[at : at + size] for at in range(0, len(content), size)]])
    assert (text.bytes, text.words, text.lines) == (len(content), len(content.split()), 4)


def test_records_are_documents_with_end_of_text_between_them(byte, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    text = read_text(tmp_path / "a.jsonl", byte.tokenizer, ReadOptions(key="body"), lambda size: None)
    assert text.tokens(0, 99).tolist() == [*b"one", byte.tokenizer.eot, *b"two"]
    assert (text.bytes, text.words, text.lines) == (6, 2, 0)


def test_bytes_that_are_no_utf8_are_read_as_training_reads_them(byte, tmp_path):
    (tmp_path / "latin.txt").write_bytes("é is good".encode("cp1252"))
    for errors, size in {"strict": 9, "cp1252": 10}.items():
        (text,) = _open_text(str(tmp_path / "latin.txt"), [byte], ReadOptions(errors=errors))
        assert text.bytes == size


def test_each_token_is_written_with_its_place(byte, tmp_path):
    content = "chück\n".encode()
    scored = score_text(byte.model, encode_documents(byte.tokenizer, [[content]]))
    write_tokens(tmp_path / "tokens.jsonl", ["x.txt"], [scored])
    rows = [json.loads(line) for line in (tmp_path / "tokens.jsonl").read_text().splitlines()]
    assert [row["token"] for row in rows] == list(content)
    assert [row["place"] for row in rows] == list(range(len(content)))
    assert rows[0] == {"file": "x.txt", "place": 0, "token": 99, "text": "c", "nats": None, "right": None}
    assert sum(row["nats"] for row in rows[1:]) == pytest.approx(scored.score.nats)
    assert rows[2]["text"] == "\ufffd"  # half a character
