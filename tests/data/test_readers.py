"""The seam for formats: a reader that is defined here, from a file to prepared tokens."""

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepare import prepare
from minigpt.data.readers import READERS
from minigpt.data.readers.document import BadFile, Document
from minigpt.faults import UserFault


def read_cards(file, options):
    """A document per card; cards are separated by lines of dashes, and begin with a title."""
    text = b"".join(file.chunks()).decode(options.encoding)
    for number, card in enumerate(text.split("\n----\n")):
        title, _, body = card.partition("\n")
        if not title.startswith("# "):
            raise BadFile(f"{file.path}: card {number} has no title")
        yield Document(f"{file.label}:{number}", iter([body.encode()]))


@pytest.fixture
def cards(monkeypatch, tmp_path):
    monkeypatch.setitem(READERS, ".cards", read_cards)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.cards").write_text("# one\nfirst\n----\n# two\nsecond\n----\n# three\nthird")
    (tmp_path / "text" / "b.txt").write_text("and plain text")
    return DataConfig(name="text", source=str(tmp_path / "text"), dir=str(tmp_path / "data"), val_fraction=0.3)


def test_a_reader_defined_here_is_used_by_its_suffix(cards):
    prepared = prepare(cards, TokenizerConfig(name="byte"), rule="tail", say=lambda _: None)
    tokens = [*prepared.train.tokens(0, 999), *prepared.val.tokens(0, 999)]
    stream = "".join("|" if token == 256 else chr(token) for token in tokens)
    assert stream == "first|second|third|and plain text"
    assert prepared.summary["documents"] == 4


def test_its_faults_are_named(cards, tmp_path):
    (tmp_path / "text" / "c.cards").write_text("no title")
    with pytest.raises(UserFault, match=r"c\.cards: card 0 has no title"):
        prepare(cards, TokenizerConfig(name="byte"), say=lambda _: None)
