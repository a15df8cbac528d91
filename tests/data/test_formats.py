"""Files that are more than plain text: JSON lines, gzip, pictures, links; read, left out with the reason, or named."""

import gzip
import json
import os

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault

RECORDS = [{"text": "first, naïve"}, {"text": ""}, {"id": 3, "text": "second\nline"}, {"text": "third"}]
PACKED = gzip.compress(b"x" * 999)
JSONL = "\n".join(map(json.dumps, RECORDS)).encode()


@pytest.fixture
def texts(tmp_path):
    """Writes files into a folder and prepares it with tokenizer=byte: (the stream of both splits, what was said)."""
    folder = tmp_path / "texts"
    folder.mkdir()

    def make(files: dict[str, bytes], *, source="", **keys):
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        said: list[str] = []
        data = DataConfig(
            name="text", source=str(folder / source), dir=str(tmp_path / "data"), val_fraction=0.3, **keys
        )
        prepared = prepare(data, TokenizerConfig(name="byte"), rule="tail", say=said.append)
        tokens = [*prepared.train.tokens(0, 9999), *prepared.val.tokens(0, 9999)]
        text = b"".join(b"|" if token == 256 else bytes([token]) for token in tokens)
        return text.decode(errors="replace"), "\n".join(said)

    make.folder = folder
    return make


def test_json_lines_are_documents_and_not_braces(texts):
    """Finding 34."""
    text, said = texts({"a.jsonl": JSONL})
    assert text == "first, naïve|second\nline|third"
    assert "reading 1 file" in said


def test_a_file_of_json_lines_alone(texts):
    assert texts({"a.jsonl": JSONL + b"\r\n\r\n"}, source="a.jsonl")[0] == "first, naïve|second\nline|third"


def test_the_key_of_the_text_is_a_setting(texts):
    records = b'\xef\xbb\xbf{"body": "one two"}\n{"body": "three"}'
    assert texts({"a.ndjson": records}, key="body")[0] == "one two|three"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"text": null}', "line 2: the record has 'text': null; wanted a text under 'text'"),
        (b'{"body": "x"}', "line 2: the record has 'body'; wanted a text under 'text'. Name another key: data.key=KEY"),
        (b'{"text": 5}', "line 2: the record has 'text'"),
        (b"[1, 2]", "line 2: the record is not an object"),
        (b'{"text": "cut', "line 2 is not JSON (Unterminated string"),
        (b"[" * 100_000, "line 2 is not JSON (maximum recursion"),
        (b'{"text": "\xff"}', "line 2: 'utf-8' codec can't decode byte 0xff"),
        (b'{"text": "\\ud800"}', "line 2: 'utf-8' codec can't encode character"),
    ],
)
def test_a_bad_record_is_named_with_its_line(texts, line, says):
    with pytest.raises(UserFault) as fault:
        texts({"a.jsonl": b'{"text": "fine"}\n' + line + b"\n", "b.jsonl": b"no"})
    assert f"a.jsonl, {says}" in str(fault.value)
    assert "b.jsonl, line 1 is not JSON" in str(fault.value)  # all bad files at once


def test_bad_characters_in_records_are_replaced_on_request(texts):
    text, _ = texts({"a.jsonl": b'{"text": "caf\xe9"}\n{"text": "a\\ud800b"}'}, errors="replace")
    assert text == "caf�a?b"


def test_gzip_is_unpacked_whatever_is_in_it(texts):
    two = gzip.compress(b"of two ") + gzip.compress(b"members")
    text, said = texts({"a.jsonl.gz": gzip.compress(JSONL), "b.txt.gz": two, "c.md": b"plain"})
    assert text == "first, naïve|second\nline|third|of two members|plain"
    assert "reading 3 files, 142 bytes: 1 JSON lines (1 .jsonl.gz), 2 text (1 .txt.gz, 1 .md)" in said


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"x" * 999)[:-9],
        b"no gzip",
        gzip.compress(b"x" * 999)[:12] + b"\xff" * 50,
        gzip.compress(b"x") + b"y",
    ],
    ids=["cut", "other", "flipped", "more behind"],
)
def test_bad_gzip_is_named_and_so_are_the_others(texts, content):
    with pytest.raises(UserFault) as fault:
        texts({"a.txt.gz": content, "b.txt": b"fine", "c.txt.gz": content})
    assert len(fault.value.faults) == 2
    assert all("is cut or no gzip file" in sentence for sentence in fault.value.faults)


def test_what_is_no_text_is_left_out_of_a_folder_with_the_reason(texts):
    """U6: tokenizer=byte took pictures for text."""
    files = {
        "a.txt": b"some text to read",
        "b.png": b"\x89PNG\r\n\x1a\n" + bytes(50),
        "c.table": b"PAR1" + bytes(9),
        "d.bin": b"ab\0cd",
        "e.txt": b"",
        "f.gz": b"\x1f\x8b",
        "g": b"\x1f\x8b\x08\x00 packed",
    }
    os.symlink("nowhere", texts.folder / "h.txt")
    del files["f.gz"]
    text, said = texts(files)
    assert text == "some text to read"
    for line in (
        "left out 1 (a PNG picture): b.png",
        "left out 1 (a Parquet table without .parquet at the end of its name): c.table",
        "left out 1 (binary data: it holds NUL bytes): d.bin",
        "left out 1 (empty): e.txt",
        "left out 1 (gzip data without .gz at the end of its name): g",
        "left out 1 (a broken link): h.txt",
    ):
        assert line in said


def test_a_folder_of_pictures_is_refused_with_the_reasons(texts):
    with pytest.raises(UserFault, match=r"holds no text.*; left out 4 \(a PNG picture\): a, b, c \.\.\."):
        texts(dict.fromkeys("abcd", b"\x89PNG"))


def test_patterns_choose_among_the_files_of_a_folder(texts):
    files = {name: f"<{name}>".encode() for name in ("a.txt", "b.md", "c.log", "sub/d.txt", "sub/e.md")}
    text, said = texts(files, include="*.txt,*.md", exclude="sub/*.md")
    assert text == "<a.txt>|<b.md>|<sub/d.txt>"
    assert "left out 1 (not in data.include=*.txt,*.md): c.log" in said
    assert "left out 1 (in data.exclude=sub/*.md): sub/e.md" in said
    assert texts({}, include="*.log")[0] == "<c.log>"


def test_an_encoding_whose_line_ends_are_no_single_bytes_is_named(texts):
    content = '{"text": "aa"}\n{"text": "bb"}\n'
    assert (
        texts({"a.jsonl": content.encode("cp1252")}, encoding="cp1252")[0] == "aabb"
    )  # one to train on, one to validate
    with pytest.raises(
        UserFault, match=r"a\.jsonl: lines of JSON can't be told apart in data\.encoding=utf-16\. Convert"
    ):
        texts({"a.jsonl": content.encode("utf-16")}, encoding="utf-16")


def test_the_remedy_fits_the_file(texts, tmp_path):
    data = DataConfig(name="text", source=str(texts.folder), dir=str(tmp_path / "data"))
    (texts.folder / "a.txt").write_bytes("sixteen".encode("utf-16"))
    (texts.folder / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserFault) as fault:
        prepare(data, TokenizerConfig(name="char"), say=lambda _: None)
    remedies = {sentence.partition(":")[0][-5:]: sentence for sentence in fault.value.faults}
    assert "data.encoding=utf-16;" in remedies["a.txt"]
    assert "data.encoding=latin-1;" in remedies["b.txt"]
    (texts.folder / "c.txt").write_bytes(b"\x89PNG")
    data.source += "/c.txt"
    with pytest.raises(UserFault, match=r"c\.txt is a PNG picture; wanted text\. Convert it"):
        prepare(data, TokenizerConfig(name="char"), say=lambda _: None)


def test_tokens_of_a_version_that_read_json_lines_as_text_are_not_taken_for_these(texts, tmp_path):
    texts({"a.txt": JSONL}, source="a.txt")
    (path,) = (tmp_path / "data").glob("*/prepared.json")
    content = json.loads(path.read_text())
    os.rename(texts.folder / "a.txt", texts.folder / "a.jsonl")
    content["keys"]["source"] = str(texts.folder / "a.jsonl")
    path.write_text(json.dumps(content))
    assert texts({}, source="a.jsonl")[0] == "first, naïve|second\nline|third"
    os.unlink(texts.folder / "a.jsonl")
    assert "prepared from it earlier" in texts({}, source="a.jsonl")[1]
