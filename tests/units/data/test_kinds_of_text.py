"""Records of one line, as people have them: names, posts, poems."""

import json

import pytest

import minigpt
from minigpt import cli
from minigpt.data.readers.document import ReadOptions
from minigpt.evaluation.texts import read_text
from minigpt.faults import UserFault
from tests.promises.test_text_in import made


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("names.txt", "".join(f"name{number}\n" for number in range(99)), "data.separator=\\n"),
        ("posts.csv", "id,body\n" + "".join(f"{number},post{number}\n" for number in range(99)), "data.key=body"),
    ],
)
def test_evaluate_reads_a_file_as_the_run_did(run, tmp_path, name, text, form):
    (tmp_path / name).write_text(text)
    path = run(f"data.source={tmp_path / name}", form, "trainer.max_steps=2")
    for typed in ([], [form]):
        figures = tmp_path / f"{len(typed)}.json"
        cli._dispatch(["evaluate", str(path), f"file={tmp_path / name}", f"json={figures}", *typed])
    assert json.loads((tmp_path / "0.json").read_text()) == json.loads((tmp_path / "1.json").read_text())


def test_a_newline_at_the_end_is_no_record_and_a_separator_that_divides_nothing_is_named(folder):
    (folder / "names.txt").write_text("anna\nbert\ncarl\n" * 20)
    (folder / "poems.txt").write_bytes(b"one\r\n\r\ntwo\r\n\r\n" * 40)

    assert "passed over" not in "".join(made("names.txt", separator="\\n")[1])
    assert r"data.separator='\n\n' divides none of the files" in "".join(made("poems.txt", separator="\\n\\n")[1])
    assert "divides none" not in "".join(made("poems.txt", separator="\\r\\n\\r\\n")[1])


def test_a_separator_divides_text_with_a_byte_order_mark(folder):
    (folder / "poems.txt").write_bytes("one\n\ntwo\n\nthree".encode("utf-8-sig"))
    prepared, _ = made("poems.txt", encoding="utf-8-sig", separator="\\n\\n")
    assert prepared.summary["documents"] == 3
    with pytest.raises(UserFault, match=r"data\.encoding=utf-16-le"):
        minigpt.compose(["data=text", f"data.source={folder}", "data.encoding=utf-16", "data.separator=x"])


def test_a_text_to_score_is_given_no_setting_of_a_corpus(folder):
    (folder / "a.txt").write_bytes("é".encode("cp1252") * 99)
    (folder / "rows.jsonl").write_text('[{"text": "one"}, {"text": "two"}]')
    (folder / "text.txt").write_text("fine\n" * 99)
    tokenizer = made("text.txt")[0].tokenizer
    with pytest.raises(UserFault) as fault:
        read_text(folder / "a.txt", tokenizer, ReadOptions(), lambda size: None)
    assert "data.errors=replace" in str(fault.value)
    assert "data.exclude" not in str(fault.value)
    with pytest.raises(UserFault, match=r"name the file \.json"):
        read_text(folder / "rows.jsonl", tokenizer, ReadOptions(), lambda size: None)


def test_char_has_no_end_of_text_to_put_between_records():
    with pytest.raises(UserFault, match="would run into each other"):
        minigpt.compose(["data=text", "data.source=names.txt", "tokenizer=char", "data.separator=\\n"])
