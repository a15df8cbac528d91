"""CSV and JSON files that hold several texts, and files in another encoding."""

import bz2
import gzip
import hashlib
import itertools
import json
import lzma
import tarfile

import pytest

from minigpt.faults import UserFault
from tests.promises.test_text_in import STORIES, TEXT, documents, made, write

CSV = "id,body\r\n" + "".join(f'{n},"{story}\nit said ""no"""\r\n' for n, story in enumerate(STORIES)) + "60,\r\n61\r\n"
TABLES = {
    "a.csv": CSV,
    "semicolons.csv": "\ufeff" + CSV.replace("id,body", "id;body").replace(',"', ';"').replace("60,", "60;"),
    "tabs.tsv": CSV.replace("id,body", "id\tbody").replace(',"', '\t"').replace("60,", "60\t"),
    "packed.csv.gz": gzip.compress(CSV.encode()),
    "packed.csv.bz2": bz2.compress(CSV.encode()),
    "packed.csv.xz": lzma.compress(CSV.encode()),
    "windows.csv": ("\n" + CSV).encode("utf-16"),
    "macintosh.csv": CSV.replace("\r\n", "\r").encode(),
    "lines.json": "".join(json.dumps({"id": 1, "body": f'{story}\nit said "no"'}) + "\n" for story in STORIES),
    "array.json": json.dumps(
        [{"id": 1, "body": f'{story}\nit said "no"'} for story in STORIES] + [{"body": None}], indent=1
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_a_document(folder, name):
    encoding = "utf-16" if name == "windows.csv" else "utf-8"
    prepared, said = made(write(folder / name, TABLES[name]), key="body", encoding=encoding)
    train, val = documents(prepared)
    assert sorted(train + val) == sorted(f'{story}\nit said "no"' for story in STORIES)
    assert val
    assert any(": 1 table (1 ." in line for line in said)


def test_a_column_that_is_missing_is_named_and_a_table_without_a_text_is_plain(folder):
    source = write(folder / "a.csv", CSV)
    with pytest.raises(
        UserFault, match=r"a.csv, row 1: .* no text under 'story'. .* data.key=id or data.key=body; [^.]+$"
    ):
        made(source, key="story")
    train, val = documents(made(source)[0])
    assert "".join(train + val) == CSV
    write(folder / "settings.json", '[\n {"path": "x"}\n]\n' * 9)
    assert "reading 1 file" in made(str(folder / "settings.json"))[1][0]
    for part in ("train", "test"):
        write(folder / "code" / f"{part}.json", '[{"type": "text"}]')
    write(folder / "code" / "main.py", TEXT)
    assert made("code")[0].summary["bytes"] == len(TEXT.encode()) + 36
    with pytest.raises(UserFault, match=r"lost.csv can't be read as CSV \(a row has more cells than the header"):
        made(write(folder / "lost.csv", "text\nfirst, and more\n"))
    with pytest.raises(UserFault, match=r"not valid utf-8 .*data.encoding=cp1252, or"):
        made(write(folder / "excel.csv", "id;text\n1;Größe\n".encode("cp1252") * 9))
    with pytest.raises(UserFault, match=r"cut.json can't be read as JSON \(Unterminated"):
        made(write(folder / "cut.json", '[{"text": "a"}, {"te'))


def test_the_columns_of_a_table_without_a_text_are_named_unless_they_are_its_first_row(folder):
    write(folder / "t" / "a.csv", "id,text\n1,words\n" * 99)
    write(folder / "t" / "b.csv", "title,review\nGood,It works\n" * 99)
    write(folder / "u" / "c.csv", "Good," + "It works. " * 40 + "\n")
    assert any(line.endswith("data.key=NAME, like title, review; chats: docs/DATA.md") for line in made("t")[1])
    assert any(line.endswith("data.key=NAME; chats: docs/DATA.md") for line in made("u")[1])


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("„Über die Größe“ – sagte er … dass die Straße naß sei.\n", "cp1252"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたか頓と見当がつかぬ。\n", "cp932"),
        ("从前有座山，山里有座庙，庙里有个老和尚在讲故事。\n", "gb18030"),
        ("Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.\n", "cp1251"),
        ("Plain words in a Windows file.\n", "utf-16"),
        ("לא ניתן לפתוח את הקובץ. המסמך נשמר בהצלחה, אבל התיקייה אינה קיימת\n", "cp1255"),
        ("Δεν είναι δυνατό το άνοιγμα του αρχείου. Το έγγραφο αποθηκεύτηκε επιτυχώς\n", "cp1253"),
    ],
)
def test_the_encoding_of_a_text_that_is_not_utf8_is_named(folder, text, encoding):
    source = write(folder / "book.txt", (text * 2000).encode(encoding))
    with pytest.raises(UserFault, match=rf"not valid utf-8 .*Type data.encoding={encoding}(,|$)") as fault:
        made(source, "char")
    assert "data.exclude" not in str(fault.value)  # it is the only file
    train, val = documents(made(source, "char", encoding=encoding)[0])
    assert "".join(train + val) == text * 2000


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt.bz2", bz2.compress(b"words " * 999)[:-9], r"a.txt.bz2 is cut or no .bz2 file"),
        ("a.txt.bz2", bz2.compress(b"words ") + b"X" + bz2.compress(b"words ")[1:], r"no .bz2 file \(Invalid data"),
        ("a.txt.xz", lzma.compress(b"words ") + b"X" + lzma.compress(b"words ")[1:], r"no .xz file \(Input format"),
        ("a.tgz", gzip.compress(b"words"), r"a tar archive: tar -xf unpacks it"),
        ("notes.tar.gz", gzip.compress(tarfile.TarInfo("a.txt").tobuf()), r"a tar archive: tar -xf unpacks it"),
        ("a.txt.bz2", b"plain words", r"a.txt.bz2 is cut or no .bz2 file \(Invalid data stream"),
        ("a.txt.xz", lzma.compress(b"words " * 999)[:-9], r"a.txt.xz is cut or no .xz file"),
        ("a.txt.xz", b"plain words", r"a.txt.xz is cut or no .xz file \(Input format not supported"),
        ("a.txt", bz2.compress(b"words"), r"bzip2 data without .bz2"),
        # Some bad bytes in a good text are not taken for another encoding.
        ("b.txt", b"plain words\n" * 50_000 + b"it\x92s\n", "Type data.encoding=cp1252, or data.errors=cp1252 "),
        ("b.txt", "Größe, Straße\n".encode() * 99 + b"\xff\n", r"\(invalid start byte\)\. Type data.errors=cp1252 to"),
        ("b.txt", "Все счастливые семьи".encode()[:-1], r"\(unexpected end of data\)\. Type data.errors=cp1252 to"),
    ],
    ids=itertools.count(),
)
def test_data_that_is_damaged_is_named_with_what_to_type(folder, name, content, says):
    with pytest.raises(UserFault, match=says):
        made(write(folder / name, content), "char")


def test_web_pages_and_notebooks_are_said_to_be_read_with_their_markup(folder):
    write(folder / "notes" / "a.html", f"<p>{TEXT}</p>")
    write(folder / "notes" / "b.ipynb", json.dumps({"cells": [{"source": [TEXT]}]}))
    assert any(".html, .ipynb: read with all markup" in line for line in made("notes")[1])


def test_old_files_among_new_ones_are_read_as_windows_wrote_them(folder):
    old, new = "„Über die Größe“ – sagte er … dass die Straße naß sei.\n" * 99, "Größe, naïve, ½, €, 日本\n" * 9_000
    write(folder / "notes" / "new.txt", new)
    write(folder / "notes" / "old.txt", old.encode("cp1252"))
    with pytest.raises(UserFault, match=r"old.txt: byte 0x84 .*data.errors=cp1252 to read the bytes that are no UTF-8"):
        made("notes", "char")
    write(folder / "notes" / "mixed.jsonl", b'{"text": "caf\xe9 \xc3\xa9 \\ud800"}\n')
    borders = [(text, int(len(text) * 0.9)) for text in ("café é ?", new, old)]
    wanted = ["".join(text[:end] for text, end in borders), "".join(text[end:] for text, end in borders)]
    for tokenizer in ("char", "byte"):
        assert ["".join(side) for side in documents(made("notes", tokenizer, errors="cp1252")[0])] == wanted
    write(folder / "notes" / "wide.txt", TEXT.encode("utf-16"))
    assert any("left out 1 (UTF-16: iconv -f utf-16" in line for line in made("notes", errors="cp1252")[1])


def test_an_encoding_that_was_typed_for_utf8_is_named(folder):
    with pytest.raises(UserFault, match=r"not valid ascii .*Type no data.encoding: this is UTF-8"):
        made(write(folder / "book.txt", "Größe, Straße\n" * 99), "char", encoding="ascii")


def test_a_split_by_documents_that_holds_out_a_third_is_not_made(folder):
    def is_held_out(text: str) -> bool:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) < 0.1 * 2**64

    long = next(filter(is_held_out, (f"{TEXT}{number}" for number in range(99))))
    short = itertools.filterfalse(is_held_out, (f"{TEXT[:220]}{number}" for number in range(99)))
    for number, text in enumerate([long, *itertools.islice(short, 49)]):
        write(folder / "unequal" / f"{number}.txt", text)
    prepared, said = made("unequal")
    assert prepared.val.bytes < 0.11 * prepared.summary["bytes"]
    assert any("the text is cut near its end instead" in line for line in said)


def test_the_folder_of_the_tokens_is_named_after_the_text(folder):
    assert "text-吾輩_गोदान_1_.txt" in made(write(folder / "吾輩 गोदान(1).txt", TEXT))[0].folder.name
