"""The seam for formats: a reader that is defined here, from a file to prepared tokens."""

import shlex

import pytest

from minigpt.config.compose import compose
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
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


@pytest.mark.parametrize(
    "name", ["notes [draft].txt", "a,b.txt", "$HOME's*.txt", " ${x}?\n.txt", "sub/it [id].txt", "naïve.gz"]
)
def test_the_remedy_leaves_out_that_file_and_no_other_whatever_its_name_holds(tmp_path, name):
    (tmp_path / "text" / "sub").mkdir(parents=True)
    (tmp_path / "text" / "b.txt").write_text("how much wood " * 99)
    (tmp_path / "text" / name).write_bytes(b"caf\xe9 au lait " * 99)
    words = ["data=text", f"data.source={tmp_path / 'text'}", f"data.dir={tmp_path / 'data'}", "tokenizer=char"]

    def prepared(*more):
        config = compose("prepare", [*words, *more])
        return prepare(config.data, config.tokenizer, say=str)

    with pytest.raises(UserFault) as fault:
        prepared()
    typed = str(fault.value)[str(fault.value).index("data.exclude=") :]
    assert prepared(shlex.split(typed)[0].removesuffix(".")).summary["documents"] == 1
