"""The seam for tokenizers: one that is defined here, with 100,000 tokens of 32 bits, from the text to a trained run."""

import json
import re

import numpy as np
import pytest

from minigpt.config.compose import compose
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.measures.kneser_ney import KneserNey
from minigpt.data.prepared import open_prepared
from minigpt.data.preparing.prepare import prepare
from minigpt.data.tokenizer import load_tokenizer
from minigpt.data.tokenizers import TOKENIZERS
from minigpt.data.tokenizers.scheme import Scheme
from minigpt.training.run import train

TEXT = "".join(f"{number % 97:05d}{99_998 - number % 83:05d}" for number in range(600))


class NumberEncoder:
    """Five digits are a token, and end-of-text is the last of 100,000."""

    def __init__(self, tokens):
        pass

    def runs(self, chunks):
        yield b"".join(chunks)

    def encode_chunks(self, chunks):
        text = b"".join(chunks)
        yield np.array([int(text[place : place + 5]) for place in range(0, len(text), 5)])


NUMBER = Scheme(
    NumberEncoder,
    vocabulary=lambda vocab_size, alphabet, train: [b"%05d" % number for number in range(99_999)],
    takes_any_bytes=True,
)


@pytest.fixture(autouse=True)
def number_encoder(monkeypatch):
    monkeypatch.setitem(TOKENIZERS, "number", NUMBER)


def test_a_tokenizer_of_32_bits_goes_through_shards_batches_and_scores(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT)
    data = DataConfig(name="text", source=str(tmp_path), dir=str(tmp_path / "data"), val_fraction=0.25)
    prepared = prepare(data, TokenizerConfig(name="number"))
    raw = (prepared.folder / "train-000.bin").read_bytes()
    assert np.frombuffer(raw[:12], dtype="<i4").tolist() == [20240801, 7, 1801]  # llm.c's for Llama 3
    assert np.frombuffer(raw[1024:], dtype="<u4").tolist() == prepared.train.tokens(0, 9999).tolist()
    assert prepared.train.tokens(899, 902).tolist() == [99_998 - 449 % 83, 99_999, 0]
    assert prepared.val.tokens(0, 0).dtype == np.uint32
    text = prepared.tokenizer.decode_bytes(prepared.train.tokens(0, 9999))
    assert text == (TEXT[:4500] * 2).encode()
    val = prepared.tokenizer.decode_bytes(prepared.val.tokens(0, 9999))
    assert np.log2(KneserNey(text).probabilities(val)).mean() > -2
    batch = MicroBatches(prepared.train, seed=1, block_size=7, micro_batch=5, accumulate=1)[3]
    assert batch.tokens.max() > 65_536
    assert open_prepared(data.dir, prepared.facts).tokenizer.hash == prepared.tokenizer.hash
    assert load_tokenizer(prepared.tokenizer.to_json()).vocab_size == 100_000


def test_a_run_trains_validates_and_samples_with_it(run):
    (run.folder / "text.txt").write_text(TEXT)
    arguments = run.arguments("trainer.max_steps=2", "samples.every_steps=2", "samples.max_new_tokens=3")
    config = compose("train", arguments)
    config.tokenizer.name = "number"
    config.samples.prompt, config.samples.temperature, config.samples.repetition_penalty = "00007", 0.0, 1e3
    assert train(config) == 0
    assert run.rows()[-1]["val/bits_per_byte"] > 0
    numbers = re.findall(r"\d{5}", json.loads((run.path / "samples.jsonl").read_text())["text"])
    assert numbers[0] == "00007"  # the prompt
    assert len(set(numbers)) == len(numbers) == 4  # the penalty
