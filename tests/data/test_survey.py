"""The survey: bytes kept, other encodings rewritten, everything counted, all bad files named."""

import hashlib

import pytest
from minigpt.data.sources.survey import survey

from minigpt.config.schema import DataConfig
from minigpt.data.readers import document
from minigpt.data.sources.corpus import Corpus, find_corpus
from minigpt.faults import UserFault


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(document, "CHUNK_BYTES", 5)


def open_text(folder, files: dict[str, bytes], *, raw=False, **keys) -> Corpus:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return find_corpus(DataConfig(name="text", source=str(folder), **keys), raw=raw)


def content(corpus: Corpus) -> bytes:
    survey(corpus)
    return b"".join(chunk for document in corpus.documents() for chunk in document.chunks)


def test_bytes_are_kept_and_counted(tmp_path, small_chunks):
    raw = (
        f"\ufeffone\r\ntwo\r\n\r\nthree {'-' * 512}\0\0 é中🙂\n".encode()
    )  # in the first 512 bytes they'd be binary data
    corpus = open_text(tmp_path, {"a": raw, "b": b"\r"})
    found = survey(corpus, alphabet=True)
    assert content(corpus) == raw + b"\r"
    assert (found.documents, found.bytes, found.characters) == (2, len(raw) + 1, len(raw.decode()) + 1)
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


def test_all_bad_files_are_named_at_once(tmp_path, small_chunks):
    with pytest.raises(UserFault) as fault:
        survey(open_text(tmp_path, {"a": b"caf\xe9", "b": b"good", "c": b"0123456789\xff"}))
    assert [sentence.partition(" is not")[0].rpartition("/")[2] for sentence in fault.value.faults] == [
        "a: byte 0xE9 at offset 3",
        "c: byte 0xFF at offset 10",
    ]


def test_a_thousand_bad_files_are_not_a_thousand_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("minigpt.data.sources.survey.MAX_NAMED", 2)
    with pytest.raises(UserFault) as fault:
        survey(open_text(tmp_path, dict.fromkeys("abcde", b"\xe9")))
    assert len(fault.value.faults) == 3
    assert fault.value.faults[-1] == "3 more files can't be read"


def test_bad_bytes_are_replaced_or_kept_on_request(tmp_path, small_chunks):
    raw = b"0123\xe9 caf\xe2\x82"
    assert content(open_text(tmp_path, {"a": raw}, errors="replace")) == "0123� caf�".encode()
    assert content(open_text(tmp_path, {"a": raw}, raw=True)) == raw


def test_white_space_alone_is_refused(tmp_path):
    with pytest.raises(UserFault, match=r"nothing but white space \(6 bytes in .*/a, .*/b\)"):
        survey(open_text(tmp_path, {"a": b" \n\t", "b": b"\r\n "}))


def test_a_file_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    corpus = open_text(tmp_path, {"a": b"0123456789"})

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserFault, match="a can't be read: Permission denied"):
        survey(corpus)
