"""Reading: bytes kept, other encodings rewritten, bad bytes named, and the split where it is said to be."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config.schema import DataConfig
from minigpt.data import corpus as corpus_module
from minigpt.data.corpus import Corpus, find_corpus
from minigpt.data.reading import Span, describe_split, read, split, survey, text_bytes
from minigpt.faults import UserFault


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", 5)


def open_text(folder, files: dict[str, bytes], *, raw=False, **keys) -> Corpus:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return find_corpus(DataConfig(name="text", source=str(folder), **keys), raw=raw)


def content(corpus: Corpus) -> bytes:
    found = survey(corpus)
    spans = [Span(document, 0, size) for document, size in zip(corpus.documents, found.bytes, strict=True)]
    return b"".join(chunk for span in spans for chunk in read(corpus, span))


def test_bytes_are_kept_and_counted(tmp_path, small_chunks):
    raw = "\ufeffone\r\ntwo\r\n\r\nthree\0\0 é中🙂\n".encode()
    corpus = open_text(tmp_path, {"a": raw, "b": b"\r"})
    found = survey(corpus, alphabet=True)
    assert content(corpus) == raw + b"\r"
    assert found.bytes == [len(raw), 1]
    assert found.characters == [len(raw.decode()), 1]
    assert (found.crlf, found.nul, found.marks) == (3, 2, 1)
    assert found.alphabet == set(raw.decode())


def test_the_sha256_is_that_of_the_file_or_of_sha256sums_list(tmp_path):
    one = hashlib.sha256(b"one").hexdigest()
    two = hashlib.sha256(b"two").hexdigest()
    assert survey(open_text(tmp_path, {"b": b"one"})).sha256 == one
    both = survey(open_text(tmp_path, {"a": b"two"})).sha256
    assert both == hashlib.sha256(f"{two}  a\n{one}  b\n".encode()).hexdigest()


@pytest.mark.parametrize(
    ("encoding", "text"), [("latin-1", "naïve café\r\n"), ("utf-16", "日本 🙂 text"), ("cp1252", "“smart” €")]
)
def test_other_encodings_become_utf8(tmp_path, small_chunks, encoding, text):
    for raw in (False, True):  # a stated encoding holds for bytes too
        corpus = open_text(tmp_path, {"a": text.encode(encoding)}, encoding=encoding, raw=raw)
        assert content(corpus) == text.encode()


@pytest.mark.parametrize(
    ("raw", "encoding", "sentence"),
    [
        (b"0123456789\xe9 caf", "utf-8", r"a: byte 0xE9 at offset 10 is not valid utf-8 \(invalid continuation"),
        (b"01234567\xe2\x82", "utf-8", r"a: byte 0xE2 at offset 8 is not valid utf-8 \(unexpected end"),
        (b"0123\xf0\x9f\x99x", "utf-8", r"a: byte 0xF0 at offset 4"),
        (b"abcdef\x81", "cp1252", r"a: byte 0x81 at offset 6 is not valid cp1252"),
        ("abcd".encode("utf-16-le") + b"\x00\xdc", "utf-16-le", r"a: byte 0x00 at offset 8"),
    ],
)
def test_bytes_that_are_no_text_are_named(tmp_path, small_chunks, raw, encoding, sentence):
    with pytest.raises(UserFault, match=sentence) as fault:
        survey(open_text(tmp_path, {"a": raw}, encoding=encoding))
    for remedy in ("data.encoding=latin-1", "data.errors=replace", "tokenizer=byte"):
        assert remedy in str(fault.value)


def test_bad_bytes_are_replaced_or_kept_on_request(tmp_path, small_chunks):
    raw = b"0123\xe9 caf\xe2\x82"
    assert content(open_text(tmp_path, {"a": raw}, errors="replace")) == "0123� caf�".encode()
    assert content(open_text(tmp_path, {"a": raw}, raw=True)) == raw


def test_white_space_alone_is_refused(tmp_path):
    with pytest.raises(UserFault, match=r"nothing but white space \(6 bytes in .*/a, .*/b\)"):
        survey(open_text(tmp_path, {"a": b" \n\t", "b": b"\r\n "}))


@given(text=st.text(st.sampled_from("aé中🙂\n"), min_size=2, max_size=60), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_split_is_by_characters_as_python_counts_them(text, data, tmp_path_factory):
    cuts = sorted(data.draw(st.lists(st.integers(1, len(text) - 1), max_size=3, unique=True)))
    files = {str(i): text[a:b].encode() for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(text)], strict=True))}
    fraction = data.draw(st.sampled_from([0.1, 0.25, 0.5, 0.9]))
    border = int(len(text) * (1 - fraction))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "CHUNK_BYTES", 3)
        corpus = open_text(tmp_path_factory.mktemp("text"), files)
        if not text.strip():
            return
        found = survey(corpus)
        if not 0 < border < len(text):
            with pytest.raises(UserFault, match="split is empty"):
                split(corpus, found, fraction)
            return
        train, val = split(corpus, found, fraction)
        assert b"".join(b"".join(read(corpus, span)) for span in train) == text[:border].encode()
        assert b"".join(b"".join(read(corpus, span)) for span in val) == text[border:].encode()
        assert text_bytes(train) == len(text[:border].encode())


def test_bytes_that_are_no_utf8_are_split_by_bytes(tmp_path):
    corpus = open_text(tmp_path, {"a": b"\x80" * 37 + b"abc"}, raw=True)
    train, val = split(corpus, survey(corpus), 0.1)
    assert (text_bytes(train), text_bytes(val)) == (36, 4)


def test_tiny_shakespeares_numbers():
    assert int(1_115_394 * (1 - 0.1)) == 1_003_854


@pytest.mark.parametrize(
    ("fraction", "sentence"), [(1e-20, r"val split is empty.*larger"), (0.99, r"train split is empty.*smaller")]
)
def test_an_empty_side_is_refused(tmp_path, fraction, sentence):
    corpus = open_text(tmp_path, {"a": b"x" * 50})
    with pytest.raises(UserFault, match=sentence):
        split(corpus, survey(corpus), fraction)


def test_stdlib_is_split_by_whole_files_and_only_by_their_paths():
    corpus = find_corpus(DataConfig())
    found = survey(corpus)
    train, val = split(corpus, found, 0.1)
    assert 0.05 < text_bytes(val) / sum(found.bytes) < 0.15
    assert {span.document for span in train} | {span.document for span in val} == set(corpus.documents)
    assert not {span.document for span in train} & {span.document for span in val}
    assert {"http/client.py", "configparser.py"} <= {span.document.label for span in val}
    fewer = Corpus("stdlib", corpus.documents[::3])
    held_out = {span.document for span in split(fewer, survey(fewer), 0.1)[1]}
    assert held_out == {span.document for span in val} & set(fewer.documents)


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path):
    corpus = open_text(tmp_path, {"a": b"0123456789"})
    span = Span(corpus.documents[0], 2, 10)
    (tmp_path / "a").write_bytes(b"01234")
    with pytest.raises(UserFault, match="became shorter while it was read"):
        list(read(corpus, span))


def test_a_file_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    corpus = open_text(tmp_path, {"a": b"0123456789"})

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserFault, match="a can't be read: Permission denied"):
        survey(corpus)


def test_the_rules_are_described():
    assert describe_split("text", 0.1) == "the last 0.1 of the characters for validation"
    assert "hash of their path" in describe_split("stdlib", 0.1)
