"""What is measured of a text: baselines and overlap, against slow twins; once for a text."""

import json
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.measures import baselines as module
from minigpt.data.measures import overlap as overlap_module
from minigpt.data.measures.baselines import baselines
from minigpt.data.measures.overlap import overlap, pieces
from minigpt.data.prepared import describe
from minigpt.data.preparing.prepare import prepare
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.sizing import law
from tests.conftest import printed

BYTE = build_tokenizer("byte")
EOT = BYTE.eot


def split_of(tokens) -> TokenSplit:
    """A split of byte tokens; 256 is end-of-text."""
    array = np.array(tokens, np.uint16)
    return TokenSplit("train", BYTE, [array], int((array != EOT).sum()), "")


def xz_size(content: bytes, size: int) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << size.bit_length()}]
    return len(lzma.compress(content, lzma.FORMAT_RAW, filters=filters))


@pytest.fixture
def prepared(tmp_path):
    text = "".join(f"def function_{n}(value):\n    return value * {n * n}\n\n" for n in range(3000))
    (tmp_path / "a.txt").write_text(text)
    data = DataConfig("text", str(tmp_path / "a.txt"), dir=str(tmp_path / "data"))
    return prepare(data, TokenizerConfig("bpe", vocab_size=300))


def test_baselines_are_what_slow_twins_say(prepared):
    ngram, xz = baselines(prepared)
    texts = [prepared.tokenizer.decode_bytes(split.tokens(0, len(split))) for split in (prepared.train, prepared.val)]
    assert 0 < ngram["bits_per_byte"] < 8
    assert ngram["name"] == "7-gram of bytes, Kneser-Ney"
    size = sum(map(len, texts))
    alone = 8 * (xz_size(b"".join(texts), size) - xz_size(texts[0], size)) / len(texts[1])
    assert xz["bits_per_byte"] == pytest.approx(alone, rel=0.02)
    assert xz["bits_per_byte"] < 8 * xz_size(texts[1], size) / len(texts[1])  # it has seen the training text


def test_baselines_are_measured_once_for_a_text(prepared, monkeypatch):
    rows, said = printed(lambda: baselines(prepared))
    assert len(said) == 1
    monkeypatch.setattr(module, "_measure", lambda *_: pytest.fail("measured again"))
    assert printed(lambda: baselines(prepared)) == (rows, [])
    path = prepared.folder / "baselines.json"
    for content in ("{", "[]", json.dumps({"fingerprint": "of other tokens", "rows": []})):
        path.write_text(content)
        monkeypatch.setattr(module, "_measure", lambda *_: [{"name": "anew"}])
        assert baselines(prepared) == [{"name": "anew"}]


def test_baselines_of_a_mixture_are_weighted_as_its_bits_per_byte_are(tmp_path):
    for name, text in (("a", "one two three four " * 300), ("b", "".join(f"{n * n} " for n in range(2000)))):
        (tmp_path / f"{name}.txt").write_text(text)
    mix = {str(tmp_path / "a.txt"): 0.7, str(tmp_path / "b.txt"): 0.3}
    data = DataConfig("text", dir=str(tmp_path / "data"), mix=mix)
    prepared = prepare(data, TokenizerConfig("bpe", vocab_size=280))
    rows = baselines(prepared)
    alone, said = printed(lambda: [baselines(part) for part in prepared.parts.values()])
    assert said == []
    vals = [part.val for part in prepared.parts.values()]
    weights = [share * val.bytes / len(val) for share, val in zip((0.7, 0.3), vals, strict=True)]
    for row, first, second in zip(rows, *alone, strict=True):
        mean = (weights[0] * first["bits_per_byte"] + weights[1] * second["bits_per_byte"]) / sum(weights)
        assert row["bits_per_byte"] == pytest.approx(mean)
        assert row["name"] == first["name"]
    assert len(rows) == 2
    assert alone[0][0]["after_part"] > alone[0][0]["bits_per_byte"]
    assert module.PART == law.PART


def test_of_a_large_text_xz_sees_a_part_and_says_so(prepared, monkeypatch):
    monkeypatch.setattr(overlap_module, "_PIECE_TOKENS", 1000)
    whole = baselines(prepared)
    file = prepared.folder / "baselines.json"
    file.write_text(file.read_text().replace('"repeats"', '"before"'))  # kept before repeats were measured
    monkeypatch.setattr(module, "XZ_BYTES", 20_000)
    ngram, xz = baselines(prepared)
    assert ngram == whole[0]
    assert xz["of"].endswith("of training text")
    assert xz["bits_per_byte"] > whole[1]["bits_per_byte"]


def test_xz_copies_what_it_has_seen_and_nothing_else():
    train = np.random.default_rng(0).bytes(20_000)
    assert 0 < module._xz_bytes(b"how much wood " * 80, b"would a woodchuck") <= 17
    assert module._xz_bytes(train, train[5_000:10_000]) < 200
    assert 10_950 < module._xz_bytes(train[:5_000], train[9_000:]) < 11_100


@given(n=st.integers(0, 200), wanted=st.integers(1, 200), size=st.integers(1, 30))
def test_pieces_are_all_or_a_part_spread_evenly(n, wanted, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap_module, "_PIECE_TOKENS", size)
        found = [piece.tolist() for piece in pieces(split_of(range(n)), wanted)]
    if n <= wanted:
        assert [token for piece in found for token in piece] == list(range(n))
    else:
        assert len(found) == max(1, wanted // size)
        assert found[0][0] == 0
        assert len(found) == 1 or found[-1][-1] == n - 1


TOKENS = st.lists(st.sampled_from([1, 2, EOT]), min_size=2, max_size=80)


@given(train=TOKENS, val=TOKENS, gram=st.integers(1, 6))
def test_overlap_equals_the_twin(train, val, gram):
    def grams(tokens):
        every = [tuple(tokens[i : i + gram]) for i in range(len(tokens) - gram + 1)]
        return [each for each in every if EOT not in each]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap_module, "GRAM_CHARACTERS", gram)
        found = overlap(split_of(train), split_of(val))
    seen, asked = set(grams(train)), grams(val)
    wanted = sum(each in seen for each in asked) / len(asked) if asked else None
    assert found == {"share": pytest.approx(wanted), "gram": gram, "of_train": 1.0, "of_val": 1.0}


def test_a_passage_that_both_splits_hold_is_found_wherever_it_lies():
    rng = np.random.default_rng(0)
    train, val = rng.integers(0, 256, 300_000), rng.integers(0, 256, 5_000)
    assert overlap(split_of(train), split_of(val))["share"] == 0
    train[200_000:201_000] = val[1_000:2_000]
    assert overlap(split_of(train), split_of(val))["share"] == pytest.approx(951 / 4951)


def test_it_is_printed_and_kept(tmp_path):
    (tmp_path / "texts").mkdir()
    for n in range(60):
        (tmp_path / "texts" / f"{n}").write_text(f"{n} is my number. " + "The same in all, word for word. " * 9)
    data = DataConfig("text", str(tmp_path / "texts"), dir=str(tmp_path / "data"))
    prepared, said = printed(lambda: prepare(data, TokenizerConfig("byte")))
    summary = prepared.summary
    assert summary["documents"] == 60
    assert summary["overlap"]["share"] > 0.9
    lines = describe(prepared)
    share = (
        f"{summary['overlap']['share']:.1%} of the validation text's 50-token sequences occur in the training text, too"
    )
    assert f"overlap    {share}" in lines
    assert f"data: overlap: {share}" in said
    assert any("the validation loss is too good to be true" in line for line in said)
