"""data.check=true: what is suspicious is listed, what is not is not, and memory stays bounded."""

import json

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
from minigpt.data.sources import suspicious as module
from minigpt.data.sources.corpus import find_corpus
from minigpt.data.sources.suspicious import suspicious

PLAIN = [f"The document with the number {number} says {'word ' * number}and ends.\n" for number in range(20)]


def check(folder, texts, **keys) -> str:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "all.jsonl").write_text(lines)
    return "\n".join(suspicious(find_corpus(DataConfig("text", str(folder), **keys), raw=False)))


def test_nothing_is_suspicious_about_plain_text(tmp_path):
    assert (
        check(tmp_path / "a", [*PLAIN, "na\u00efve caf\u00e9 \u201csmart\u201d \u20ac\n"])
        == "nothing suspicious was found"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "caf\u00e9".encode().decode("latin-1"),
            "1 pieces of text that were decoded wrongly once, such as \u00c3\u00a9",
        ),
        ("it\u2019s".encode().decode("cp1252"), "1 pieces of text that were decoded wrongly once"),
        ("a \ufffd and \ufffd", "2 characters U+FFFD"),
        ("a bell \x07", "1 control characters"),
        ("", "1 empty documents"),
        (" \n\t", "1 documents with nothing but white space"),
        (PLAIN[3], "1 documents that are the same as an earlier one"),
        ("x" * 100_001, "1 lines of more than 100,000 bytes"),
        ("word " * 9000, "one document is larger than all others together: all.jsonl:21, 45,000 of "),
    ],
)
def test_each_is_named_with_its_place(tmp_path, text, says):
    found = check(tmp_path / "a", [*PLAIN, text])
    assert says in found
    assert "all.jsonl:21" in found
    assert found.count("\n") <= ("x" * 100 in text)


def test_repeated_lines_are_listed_those_that_take_most_first(tmp_path):
    line, footer = "Cookies make this page better, accept them.", "All rights of this page are reserved by the owner."
    found = check(tmp_path / "a", [f"{line}\n{text}  {footer}\n{footer}\n" for text in PLAIN])
    listed = found.split("\n")
    assert listed[0].startswith("2 lines of 30 bytes or more stand 10 times or more: ")
    assert [each.strip() for each in listed[1:3]] == [f"40 times: {footer!r}", f"20 times: {line!r}"]


def test_memory_is_bounded_and_frequent_lines_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINES", 50)
    line = "This line stands in each of the documents."
    texts = [f"{line}\n" + "".join(f"{n} other line {i} of the document\n" for i in range(5)) for n in range(100)]
    found = check(tmp_path / "a", texts)
    (counted,) = [int(each.split()[0]) for each in found.split("\n") if repr(line) in each]
    assert 80 <= counted <= 100  # others were forgotten


def test_it_is_a_setting_that_looks_at_known_tokens_too_and_names_no_others(tmp_path):
    (tmp_path / "texts").mkdir()
    for number, text in enumerate([*PLAIN, PLAIN[0], ""]):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(text)
    (tmp_path / "texts" / "bad.txt").write_bytes(b"\xff")
    said: list[str] = []
    data = DataConfig("text", str(tmp_path / "texts"), dir=str(tmp_path / "data"), exclude="bad.txt")
    first = prepare(data, TokenizerConfig("byte"), say=said.append)
    assert not any("check" in line for line in said)
    data.check = True
    again = prepare(data, TokenizerConfig("byte"), say=said.append)
    assert again.folder == first.folder
    assert "data: check: 1 documents that are the same as an earlier one; first in 20.txt" in said
    data.exclude = None
    corpus = find_corpus(data)
    assert "same as an earlier one" in "".join(suspicious(corpus))  # the file that is no text is the survey's to name
