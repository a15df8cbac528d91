"""Any text in: files, folders, globs, lists, URLs of text, JSON lines, Parquet, .gz, .zst; what is read is said."""

import gzip
import hashlib
import json

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import Prepared, describe
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault
from tests.conftest import printed

STORIES = [f"Story {number}, naïve. " + "and then " * (number % 9) for number in range(60)]
TEXT = "".join(f"Line {number}: the naïve fox can't jump, and won't.\r\n" for number in range(120))


def made(source, tokenizer="byte", **keys) -> tuple[Prepared, list[str]]:
    """Prepare in ./data; return the tokens and what was printed."""
    data = DataConfig(**{"name": "text", "source": source} | keys)
    return printed(lambda: prepare(data, TokenizerConfig(tokenizer)))


def texts(split, tokenizer) -> list[str]:
    """The documents of a split."""
    stream = b"".join(tokenizer.token_bytes(token) or b"\0" for token in split.tokens(0, len(split)))
    return stream.decode().split("\0")


def documents(prepared) -> tuple[list[str], list[str]]:
    return texts(prepared.train, prepared.tokenizer), texts(prepared.val, prepared.tokenizer)


def rows(stories) -> str:
    return "".join(json.dumps({"text": story}) + "\n" for story in stories)


def write(path, text: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_a_text_is_kept_byte_by_byte_and_its_last_tenth_validates(folder, tokenizer):
    prepared, said = made(write(folder / "book.txt", TEXT), tokenizer)
    border = int(len(TEXT) * 0.9)
    assert documents(prepared) == ([TEXT[:border]], [TEXT[border:]])
    assert "data: reading 1 file, 5,770 bytes: 1 text (1 .txt)" in said
    assert any("the last 0.1 of the characters for validation" in line for line in describe(prepared))


def test_records_of_any_format_are_whole_documents_on_a_side_that_follows_from_their_content(folder):
    write(folder / "a" / "all.jsonl", rows(STORIES))
    train, val = documents(made("a/all.jsonl")[0])
    assert sorted(train + val) == sorted(STORIES)
    assert 0 < len(val) < 15
    for number, story in enumerate(reversed(STORIES)):
        write(folder / "b" / f"{number:02}.md", story)
    write(folder / "c" / "all.ndjson.gz", gzip.compress(rows(STORIES).encode()))
    write(folder / "d.txt", "\n<|endoftext|>\n".join(STORIES))
    write(folder / "e.txt", "\n\n".join(STORIES))
    others = [made("b")[0], made("b/*.md")[0], made("c")[0], made("d.txt", separator="<|endoftext|>")[0]]
    others.append(made("e.txt", separator=r"\n\n")[0])
    assert [set(documents(prepared)[1]) for prepared in others] == [set(val)] * 5
    assert documents(made(write(folder / "f", TEXT), separator="#")[0])[1] == [TEXT.strip()[int(5648 * 0.9) :]]
    assert any("59 times in the text, and is read as text. If it separates" in line for line in made("d.txt")[1])
    write(folder / "more.jsonl", rows([f"{story} Another." for story in STORIES] + STORIES * 2))
    train, more = documents(made("more.jsonl")[0])
    assert set(val) < set(more)
    assert not set(more) & set(train)  # duplicates are on one side


def test_a_folder_is_prepared_once_however_it_is_spelled(folder):
    write(folder / "texts" / "a.txt", TEXT)
    spellings = ["texts", "texts/", "./texts", str(folder / "texts")]
    assert len({made(spelling)[0].folder for spelling in spellings}) == 1


def test_a_pattern_stands_for_a_file_or_a_folder(folder):
    for name in ("src/a.py", "src/A.TXT", "src/deep/b.py", "build/c.py", "d.py"):
        write(folder / "t" / name, f"{name}\n")

    def read(source="t", **keys) -> list[str]:
        train, val = documents(made(source, val_fraction=0.5, **keys)[0])
        return sorted("".join(first + second for first, second in zip(train, val, strict=True)).split())

    assert read(exclude="build/") == read(exclude="BUILD") == ["d.py", "src/A.TXT", "src/a.py", "src/deep/b.py"]
    assert len(read(exclude=".*,.")) == 5
    assert read(include="src,*.none") == ["src/A.TXT", "src/a.py", "src/deep/b.py"]
    assert read(include="*.txt,build") == ["build/c.py", "src/A.TXT"]
    assert read(".", exclude="t/src") == ["build/c.py", "d.py"]
    assert read("t/d.py,t/src", exclude="d.py,*.TXT") == ["src/a.py", "src/deep/b.py"]
    with pytest.raises(UserFault, match=r"data.source holds no text; left out 1 \(in data.exclude=d.py\)"):
        made("t/d.py", exclude="d.py")


def test_a_glob_leaves_out_what_a_folder_leaves_out(folder):
    for name in ("a.py", "sub/b.py", "venv/lib/c.py", "sub/node_modules/d.py", "runs/mine/e.py", "data/text-x/f.py"):
        write(folder / "t" / name, f"the text of {name}")
    write(folder / "t" / "runs" / "mine" / "metrics.jsonl", '{"step": 1}')
    write(folder / "t" / "data" / "text-x" / "prepared.json", "{}")
    (folder / "t" / "linked").symlink_to(folder / "t" / "sub")
    for source in ("t", "t/**/*.py", "t/*"):
        said = "\n".join(made(source, val_fraction=0.3)[1])
        named = "reading 2 files", "(installed packages): sub/node_modules, venv", "tokens of minigpt): data/text-x"
        assert all(why in said for why in (*named, "run of minigpt): runs/mine", "link to a folder): linked"))
    assert made("t/venv/**/*.py")[0].summary["documents"] == 1  # typed


def test_a_folder_with_one_book_is_cut_at_its_end(folder):
    write(folder / "shelf" / "book.txt", TEXT)
    prepared, said = made("shelf")
    assert documents(prepared) == documents(made("shelf/book.txt")[0])
    assert any("the last 0.1 of the characters of each document for validation" in line for line in said)


def test_a_validation_text_of_ones_own_is_never_trained_on(folder):
    for name in ("a.txt", "b.txt", "val.txt"):
        write(folder / "all" / name, f"the text of {name}")
    prepared, said = made("all", val_source="all/val.txt")
    assert documents(prepared) == (["the text of a.txt", "the text of b.txt"], ["the text of val.txt"])
    assert "data: left out 1 (in data.val_source): val.txt" in said
    with pytest.raises(UserFault, match=r"data.source holds no text; left out 1 \(in data.val_source\): a.txt"):
        made("all/a.txt", val_source="all")


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "validation-0.jsonl", "test-0.jsonl"),
        ("train/a.md", "train/b.md", "valid/a.md", "test/a.md"),
        ("wiki.train.0.txt", "wiki.train.1.txt", "wiki.valid.txt", "wiki.test.txt"),
        tuple(f"data/{name}-0a1b2c3d4e5f6071.jsonl" for name in ("train-0-of-2", "train-1-of-2", "validation", "test")),
        ("data/train/0.jsonl", "data/train/1.jsonl", "data/dev/0.jsonl", "data/eval/0.jsonl"),
    ],
)  # fmt: skip
def test_a_split_that_somebody_made_is_kept_and_said(folder, names):
    for name in (*names, "README.md"):
        write(folder / "set" / name, rows([name]) if name.endswith("jsonl") else name)
    prepared, said = made("set")
    assert documents(prepared) == ([*names[:2]], [names[2]])
    assert f"data: left out 1 (the text to test on, by its name): {names[3]}" in said
    assert "for validation by their names" in said[-1]


@pytest.mark.parametrize("beside", [{}, {"LICENSE.txt": "free"}, {"val.jsonl": rows(["held out"])}])
def test_a_text_to_test_on_is_never_trained_on(folder, beside):
    files = {"train.jsonl": rows(STORIES), "test.jsonl": rows(["tested"]), "README.md": "card"} | beside
    for name, content in files.items():
        write(folder / "set" / name, content)
    held_out = "set/val.jsonl" if "val.jsonl" in beside else None
    prepared, said = made("set", val_source=held_out)
    train, val = documents(prepared)
    assert val
    assert {*STORIES} <= {*train, *val}
    assert "tested" not in train + val
    assert "data: left out 1 (the text to test on, by its name): test.jsonl" in said


def test_what_is_read_and_what_is_left_out_is_said(folder):
    texts = {"a.txt": TEXT, "sub/b.csv": "a,b\n" * 99, "r.jsonl": '{"text": "one"}\n\n{"text": null}\n'}
    others = {"pic": b"\x89PNG\r\n\x1a\n", "d.bin": b"ab\0cd", "e.txt": b"", ".git/x": b"x"}
    for name, content in {**texts, **others, "bom.txt": b"\xef\xbb\xbftext with a mark, and latin-1: \xe9"}.items():
        write(folder / "t" / name, content)
    (folder / "t" / "broken").symlink_to("nowhere")
    (folder / "t" / "linked").symlink_to(folder)
    for place in ("site-packages", "sub/node_modules"):
        write(folder / "t" / place / "code.js", "let x = 1\n")
    prepared, said = made("t")
    assert sorted(said[:7]) == [
        "data: left out 1 (a PNG picture): pic",
        "data: left out 1 (a broken link): broken",
        "data: left out 1 (a link to a folder): linked",
        "data: left out 1 (binary data: it holds NUL bytes): d.bin",
        "data: left out 1 (empty): e.txt",
        "data: left out 1 (hidden): .git",
        "data: left out 2 (installed packages): site-packages, sub/node_modules",
    ]
    assert said[7:12] == [
        "data: reading 4 files, 6,233 bytes: 3 text (2 .txt of 5,805 bytes, 1 .csv of 396 bytes), "
        "1 JSON lines (1 .jsonl)",
        "data: the text of a record is its 'text'; another key or column: data.key=KEY",
        "data: without a column or key 'text', CSV and JSON are read as plain text; to read another one: "
        "data.key=NAME, like a, b; chats: docs/DATA.md",
        "data: not UTF-8, taken as bytes: 1 document, bom.txt first",
        "data: without text, passed over: 1 record, r.jsonl, line 3 first",
    ]
    assert "of each document for validation" in prepared.summary["split"]
    assert made("t", exclude="*.csv,bom*")[0].summary["bytes"] == len(TEXT.encode()) + 3


def test_all_files_that_can_not_be_read_are_named_with_the_remedy(folder):
    write(folder / "t" / "a.txt", "fine")
    write(folder / "t" / "b.txt", b"0123456789\xe9")
    write(folder / "t" / "c.jsonl", '{"text": "x"}\n{"body": "y", "head": "z"}\n')
    write(folder / "t" / "d.jsonl", '{"text": "cut')
    write(folder / "t" / "e.txt.gz", gzip.compress(b"x" * 999)[:-9])
    with pytest.raises(UserFault) as fault:
        made("t", "char")
    names = ("b.txt: byte 0xE9 at offset 10", "has no text under 'text'", "line 1 is not JSON", "cut or no .gz file")
    remedies = ("data.errors=replace", "data.key=body or data.key=head", "name the file .txt", "data.exclude=e.txt.gz")
    for sentence, name, remedy in zip(fault.value.faults, names, remedies, strict=True):
        assert name in sentence
        assert remedy in sentence
    with pytest.raises(UserFault, match="does not exist"):
        made("nowhere")
    with pytest.raises(UserFault, match="matches no file"):
        made("*.mdx")


def test_a_text_at_a_url_is_fetched_once_and_its_tokens_outlive_the_copy(folder, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({"/corpus/a.txt": TEXT.encode(), "/corpus/b.jsonl": rows(STORIES).encode(), "/corpus/c": b"\x89PNG"})
    try:
        prepared, said = made("memory://corpus")
        assert "data: fetching 3 files, 9,943 bytes" in "".join(said)
        train, val = documents(prepared)
        assert sorted(train + val) == sorted([TEXT, *STORIES])
        for copy in (folder / "data" / "fetched").rglob("*"):
            copy.is_dir() or copy.unlink()
        again, said = made("memory://corpus")
        assert again.folder == prepared.folder
        assert "fetching" not in "".join(said)
    finally:
        memory.rm("/corpus", recursive=True)
    again, said = made("memory://corpus")
    assert "can't be read" in said[0]
    assert again.folder == prepared.folder


def test_passages_of_any_source_in_the_validation_text_of_another_are_counted(folder):
    words = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(630)]
    write(folder / "a.txt", " ".join(words[:300]))
    write(folder / "b.txt", " ".join(words[300:600] + words[:30]))
    both, said = made(None, name="stdlib", mix={"a.txt": 0.5, "b.txt": 0.5})
    assert max(part.summary["overlap"]["share"] for part in both.parts.values()) < 0.1
    assert 0.3 < both.summary["overlap"]["share"] < 0.6
    assert said[-1].startswith("data: overlap: ")
    assert describe(both)[-1].startswith("overlap")


def test_tiny_shakespeare_is_known_by_its_checksum(folder):
    with pytest.raises(UserFault, match=r"not Tiny Shakespeare: its SHA-256 is [0-9a-f]{64}, wanted 86c4e6aa"):
        made(write(folder / "input.txt", TEXT), name="shakespeare_char")
