"""Prepare: found again by the same keys, the same bytes every time."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import describe
from minigpt.data.preparing import make
from minigpt.data.preparing import prepare as module
from minigpt.data.preparing.prepare import prepare
from minigpt.data.sources.corpus import SHAKESPEARE_SHA256, SourceGone
from minigpt.data.tokenizer import END_OF_TEXT
from minigpt.faults import UserFault
from tests.data.poem import POEM, keys, run, text_of, tree


@pytest.mark.parametrize(("name", "vocab_size"), [("byte", 0), ("char", 0), ("bpe", 300)])
def test_the_tokens_are_the_text_split_where_it_is_said(source, name, vocab_size):
    prepared, _ = run(keys(source, val_fraction=0.25), name, vocab_size=vocab_size)
    text = POEM.decode()
    border = len(text[: int(len(text) * 0.75)].encode())
    assert text_of(prepared.train, prepared.tokenizer) == POEM[:border]
    assert text_of(prepared.val, prepared.tokenizer) == POEM[border:]
    assert (prepared.train.bytes, prepared.val.bytes) == (border, len(POEM) - border)


def test_documents_are_separated_by_end_of_text(tmp_path):
    for name, text in (("b", "second"), ("a", "first, it is long"), ("c", "third")):
        (tmp_path / name).write_text(text)
    data = DataConfig(name="text", source=str(tmp_path), dir=str(tmp_path / "out"), val_fraction=0.25)
    prepared, _ = run(data, "byte", rule="tail")
    stream = "".join(END_OF_TEXT if token == 256 else chr(token) for token in prepared.train.tokens(0, 99))
    assert stream == f"first, it is long{END_OF_TEXT}seco"  # int(28 * 0.75) characters
    assert text_of(prepared.val, prepared.tokenizer) == b"ndthird"
    assert prepared.val.tokens(0, 99).tolist().index(256) == 2
    with_char, _ = run(data, "char", rule="tail")
    assert text_of(with_char.train, with_char.tokenizer) == b"first, it is longseco"


def test_the_same_keys_find_it_again_without_reading(source, monkeypatch):
    first, said = run(keys(source))
    assert "reading 1 file, " in said
    monkeypatch.setattr(module, "survey", lambda *_, **__: pytest.fail("read again"))
    second, said = run(keys(source))
    assert second.folder == first.folder
    assert second.fingerprint == first.fingerprint
    assert second.summary == first.summary
    assert said.count("\n") == 0


def test_other_keys_have_other_folders(source):
    folders = {
        run(keys(source, **data), name, **more)[0].folder
        for data, name, more in (
            ({}, "char", {}),
            ({}, "byte", {}),
            ({}, "bpe", {"vocab_size": 270}),
            ({}, "bpe", {"vocab_size": 280}),
            ({"val_fraction": 0.2}, "char", {}),
            ({"encoding": "cp437"}, "char", {}),
            ({"errors": "replace"}, "char", {}),
        )
    }
    assert len(folders) == 7


def test_vocab_size_matters_to_bpe_only(source):
    assert run(keys(source), "char", vocab_size=5)[0].folder == run(keys(source), "char", vocab_size=6)[0].folder


def test_a_touched_source_is_the_same_and_a_changed_one_is_not(source):
    first, _ = run(keys(source))
    os.utime(source, ns=(1, 1))
    touched, said = run(keys(source))
    assert touched.folder == first.folder
    assert "reading" in said
    assert "reading" not in run(keys(source))[1]
    source.write_bytes(POEM + b"One more.\n")
    changed, said = run(keys(source))
    assert "changed since" in said
    assert changed.folder != first.folder
    assert changed.fingerprint != first.fingerprint
    source.write_bytes(POEM)
    assert run(keys(source))[0].fingerprint == first.fingerprint


def test_tokens_outlive_their_source(source):
    first, _ = run(keys(source))
    source.unlink()
    again, said = run(keys(source))
    assert again.fingerprint == first.fingerprint
    assert "does not exist" in said
    assert "prepared from it earlier" in said
    with pytest.raises(SourceGone, match="does not exist"):
        run(keys(source), "byte")


def test_two_folders_with_one_data_dir_hold_the_same_bytes(source, tmp_path):
    first, _ = run(keys(source), "bpe", vocab_size=290)
    data = keys(source)
    data.dir = str(tmp_path / "elsewhere")
    second, _ = run(data, "bpe", vocab_size=290)
    assert tree(first.folder) == tree(second.folder)
    assert first.folder.name == second.folder.name


def test_the_summary_tells_what_was_read(source):
    source.write_bytes(b"\xef\xbb\xbf" + POEM + b"\0\0")
    prepared, _ = run(keys(source), "bpe", vocab_size=60_000)
    lines = "\n".join(describe(prepared))
    assert f"{len(POEM) + 5:,} bytes, {len(POEM.decode()) + 3:,} characters" in lines
    for note in (
        "120 lines end in CR LF",
        "documents with a byte-order mark in front: 1",
        "2 NUL bytes",
        "BPE tokens, fewer",
    ):
        assert f"note       {note}" in lines or note in lines
    assert prepared.summary["sha256"] in lines
    assert str(prepared.folder) in lines
    assert prepared.summary["train"]["bytes"] > 2 * prepared.summary["train"]["tokens"]


def test_stdlib_shows_pythons_version(tmp_path, monkeypatch):
    monkeypatch.setattr("minigpt.data.sources.corpus._STDLIB", ["json", "email", "http", "logging", "xml", "wave"])
    prepared, _ = run(DataConfig(dir=str(tmp_path)), "byte")
    assert f"Python {sys.version.split()[0]}" in describe(prepared)[0]
    assert prepared.summary["documents"] > 30
    assert np.count_nonzero(prepared.train.tokens(0, len(prepared.train)) == 256) > 20


def test_bpe_learns_from_the_training_text_only_and_not_from_all_of_a_long_one(source, monkeypatch):
    source.write_bytes(b"train words only " * 90 + b"zqzqzq " * 100)
    prepared, _ = run(keys(source, val_fraction=0.4), "bpe", vocab_size=400)
    learned = [prepared.tokenizer.token_bytes(token) for token in range(256, prepared.tokenizer.vocab_size)]
    assert b" words" in learned
    assert not any(b"zq" in token for token in learned)


def test_bpe_learns_a_long_text_from_a_random_sample_of_it(source, monkeypatch):
    """Blocks from all over the training text, the same each time; a text that is not too long is learned whole."""
    words = [f"word {n * n} " for n in range(2000)]
    source.write_text("".join(words))
    whole, said = run(keys(source), "bpe", vocab_size=350)
    assert "learning 350 tokens from up to " in said
    monkeypatch.setattr(make, "BLOCK_BYTES", 200)
    drawn: list[list[bytes]] = []
    real = make.sample_blocks

    def sample(documents, fraction):
        drawn.append([b"".join(block) for block in real(documents, fraction)])
        return ([block] for block in drawn[-1])

    monkeypatch.setattr(make, "sample_blocks", sample)
    for name in ("sampled", "again"):
        monkeypatch.setattr(make, "LEARN_BYTES", 4000)
        data = keys(source)
        data.dir += name
        prepared, said = run(data, "bpe", vocab_size=350)
    size = whole.train.bytes
    assert f"learning 350 tokens from a random 4,000 bytes of {size:,} bytes of the training text" in said
    assert "the vocabulary is learned from a random 4,000 bytes of the training text" in prepared.summary["notes"]
    assert whole.tokenizer.hash != prepared.tokenizer.hash
    assert drawn[0] == drawn[1]
    assert 2500 < sum(map(len, drawn[0])) < 5500
    places = [source.read_bytes().index(block) for block in drawn[0]]
    assert len(places) > 10
    assert min(places) < size / 4 < 3 * size / 4 < max(places) < size
    monkeypatch.setattr(make, "LEARN_BYTES", size)  # all of the training text: nothing is drawn
    data.dir += "whole"
    assert run(data, "bpe", vocab_size=350)[0].tokenizer.hash == whole.tokenizer.hash
    assert len(drawn) == 2


def test_the_sample_is_the_same_on_every_machine():
    text = b"".join(b"%06d " % n for n in range(20_000))
    blocks = [b"".join(block)[:6] for block in make.sample_blocks([[text]], 0.5)]
    assert blocks == [b" 00702", b" 00936", b" 01170", b" 01638"]


def test_a_long_text_is_reported_on(source, monkeypatch):
    monkeypatch.setattr("minigpt.screen.LINE_SECONDS", 0.0)
    _, said = run(keys(source))
    assert "data: encoding with tokenizer=char: 0 of 0 MB, " in said
    assert "MB/s" in said


@pytest.mark.parametrize(("name", "vocab_size"), [("char", 0), ("bpe", 300)])
def test_a_given_tokenizer_is_used_and_none_is_learned(source, tmp_path, name, vocab_size):
    """A folder of their own keeps these tokens, and is found again without reading the text."""
    theirs = run(keys(source), name, vocab_size=vocab_size)[0].tokenizer
    other = tmp_path / "other.txt"
    other.write_bytes(POEM.decode().replace("fox", "hen").replace("ï", "i")[:2000].encode())
    own = run(keys(other), name, vocab_size=vocab_size)[0]
    assert own.tokenizer.hash != theirs.hash
    for words in ("reading", ""):
        said: list[str] = []
        made = prepare(keys(other), TokenizerConfig(name, vocab_size), given=theirs, say=said.append)
        assert made.tokenizer.hash == theirs.hash
        assert made.folder != own.folder
        assert text_of(made.train, theirs) + text_of(made.val, theirs) == other.read_bytes()
        assert ("reading" in "".join(said)) == bool(words)


def test_a_given_alphabet_that_lacks_a_character_is_named(source, tmp_path):
    theirs = run(keys(source))[0].tokenizer
    other = tmp_path / "other.txt"
    other.write_bytes(POEM.replace(b"fox", b"yak"))
    with pytest.raises(UserFault, match=r"'y'.*is not in the alphabet.*tokenizer=char"):
        prepare(keys(other), TokenizerConfig("char"), given=theirs)


def test_an_impossible_tokenizer_is_named_before_the_text_is_looked_for(tmp_path):
    data = DataConfig(name="text", source=str(tmp_path / "nowhere"))
    with pytest.raises(UserFault, match=r"vocab_size=256 is too small for tokenizer=bpe; wanted at least 257"):
        run(data, "bpe", vocab_size=256)
    with pytest.raises(UserFault, match="'bep' is not known; wanted one of byte, char, bpe, gpt2"):
        module.require_vocabulary(data, TokenizerConfig("bep"))


@pytest.mark.parametrize(("text", "says"), [(b"ab", "train split has 1 token"), (b"a" * 10, "val split has 1 token")])
def test_a_split_that_training_would_refuse_is_refused_here(source, text, says):
    source.write_bytes(text)
    with pytest.raises(
        UserFault, match=rf"{says}.*at least 2\. Use more text or a (smaller|larger) data\.val_fraction"
    ):
        run(keys(source), "byte")


def test_the_block_size_that_a_short_text_allows_is_said(source):
    source.write_bytes(b"a" * 100)
    assert "so few tokens allow model.block_size=89 at most" in run(keys(source), "byte")[0].summary["notes"]
    source.write_bytes(POEM)
    assert not any("block_size" in note for note in run(keys(source), "byte")[0].summary["notes"])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_a_fraction_outside_0_to_1_is_refused(source, fraction):
    with pytest.raises(UserFault, match="split has no text"):
        run(keys(source, val_fraction=fraction))


def test_shakespeare_is_found_without_file_and_network(tmp_path, monkeypatch):
    data = DataConfig(name="shakespeare_char", source=str(tmp_path / "copy.txt"), dir=str(tmp_path / "data"))
    Path(data.source).write_bytes(POEM)
    monkeypatch.setattr("minigpt.data.sources.corpus.sha256_of", lambda path: SHAKESPEARE_SHA256)
    first, _ = run(data)
    data.source = None
    monkeypatch.setattr("minigpt.data.sources.corpus.download", lambda *_: pytest.fail("went to the network"))
    assert run(data)[0].folder == first.folder
