"""Folders, globs and lists are split by whole documents and the hash of their content; runs keep the rule they have."""

import contextlib
import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minigpt.config.compose import compose
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import describe
from minigpt.data.preparing.prepare import prepare
from minigpt.data.sources import download
from minigpt.data.sources.corpus import find_corpus
from minigpt.faults import UserFault
from minigpt.training.run import train

TEXTS = {f"{number:02}.txt": f"Document {number}. " + "word " * number for number in range(60)}


def write(folder, texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def prepared_from(source, **keys):
    said = []
    rule = keys.pop("rule", None)
    folder = keys.pop("dir", None) or str(source) + "-data"
    data = DataConfig("text", str(source), dir=folder, **keys)
    return prepare(data, TokenizerConfig("byte"), rule=rule, say=said.append), said


def documents(split, tokenizer) -> list[str]:
    stream = "".join("\0" if token == tokenizer.eot else chr(token) for token in split.tokens(0, len(split)))
    return stream.split("\0")


def sides(prepared) -> dict[str, set[str]]:
    return {split.name: set(documents(split, prepared.tokenizer)) for split in (prepared.train, prepared.val)}


def test_documents_stay_whole_and_on_their_side_when_others_are_added(tmp_path):
    first = sides(prepared_from(write(tmp_path / "a", TEXTS))[0])
    assert first["train"] | first["val"] == set(TEXTS.values())
    assert 0 < len(first["val"]) < 20
    more = {f"0{number}.md": f"Another one, {number}. " + "more " * number for number in range(60)}
    both = sides(prepared_from(write(tmp_path / "a", more))[0])
    assert first["val"] <= both["val"]
    assert first["train"] <= both["train"]


def test_it_hangs_on_the_content_and_not_on_names_order_or_format(tmp_path):
    plain = sides(prepared_from(write(tmp_path / "a", TEXTS))[0])
    renamed = {f"{99 - number:02}.md": text for number, text in enumerate(TEXTS.values())}
    assert sides(prepared_from(write(tmp_path / "b", renamed))[0]) == plain
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS.values())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "all.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert sides(prepared_from(tmp_path / "c")[0]) == plain
    assert sides(prepared_from(f"{tmp_path}/a/*.txt", dir=str(tmp_path / "d"))[0]) == plain


@given(texts=st.lists(st.text("ab ", min_size=1, max_size=9), min_size=20, max_size=40), fraction=st.floats(0.05, 0.6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exact_duplicates_are_on_one_side(tmp_path_factory, texts, fraction):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with contextlib.suppress(UserFault):  # too little text, or none
        prepared, _ = prepared_from(f"{folder}/*.jsonl", val_fraction=fraction, dir=str(folder / "data"))
        if "whole documents" in prepared.summary["split"]:
            found = sides(prepared)
            assert not found["train"] & found["val"]
            assert found["train"] | found["val"] == set(texts)


def test_a_larger_fraction_holds_out_more_of_the_same(tmp_path):
    write(tmp_path / "a", TEXTS)
    tenth, third = (sides(prepared_from(tmp_path / "a", val_fraction=fraction)[0])["val"] for fraction in (0.1, 0.33))
    assert tenth < third


def test_few_or_unequal_documents_are_cut_near_the_end_and_the_screen_says_so(tmp_path):
    texts = {"book.txt": "a long text " * 500, "note.txt": "a note"}
    held_out = []
    for number in range(40):  # the hash holds out the book, the note, both or neither
        prepared, said = prepared_from(write(tmp_path / f"{number}", texts | {"note.txt": f"a note {number}"}))
        held_out.append(len(prepared.val) / (len(prepared.train) + len(prepared.val)))
        assert "the last 0.1 of the characters" in prepared.summary["split"]
        assert any("split by whole documents, validation has" in line for line in said)
        assert any("data.val_source=FILE" in note for note in prepared.summary["notes"])
    assert max(held_out) < 0.11


def test_a_file_and_a_list_of_one_keep_the_old_rule(tmp_path):
    write(tmp_path / "a", TEXTS)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS.values())
    (tmp_path / "all.jsonl").write_text(lines)
    for source in (tmp_path / "all.jsonl", json.dumps([str(tmp_path / "all.jsonl")])):
        assert prepared_from(source, dir=str(tmp_path / "data"))[0].rule == "tail"
    assert prepared_from(f"{tmp_path}/all.json*", dir=str(tmp_path / "data"))[0].rule == "content"


@pytest.mark.parametrize(
    ("url", "label", "rule"),
    [
        ("https://host/a%20b.txt?token=x", "a b.txt", "tail"),
        ("https://host/texts/", "a.txt", "content"),
        ("s3://bucket/texts", "a.txt", "content"),
        ("s3://bucket/*.txt", "a.txt", "content"),
    ],
)
def test_what_an_address_names(tmp_path, monkeypatch, url, label, rule):
    (tmp_path / "copy").write_text("text")
    file = download.File(tmp_path / "copy", label)
    monkeypatch.setattr("minigpt.data.sources.find.fetch", lambda *_: [file])
    assert find_corpus(DataConfig("text", url, dir=str(tmp_path))).rule == rule


def test_a_split_that_somebody_made_is_named(tmp_path):
    folder = write(tmp_path / "wiki", {f"wiki.{name}.tokens": name * 900 for name in ("train", "valid", "test")})
    _, said = prepared_from(folder)
    (line,) = [line for line in said if "looks like a split" in line]
    assert line.endswith(f"data.val_source={folder}/wiki.valid.tokens data.exclude=wiki.test.tokens")
    _, said = prepared_from(folder, val_source=f"{folder}/wiki.valid.tokens", exclude="wiki.test.tokens")
    assert not any("looks like a split" in line for line in said)


TINY = "model=gpt-nano model.block_size=8 batch_tokens=16 trainer.device=cpu trainer.compile=off samples.every_steps=0"


def test_a_run_keeps_the_rule_and_the_tokens_that_it_began_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "texts", TEXTS)
    arguments = [*TINY.split(), "data=text", "data.source=texts", "tokenizer=byte", "run.dir=old"]
    older, _ = prepared_from("texts", dir="data", rule="tail")  # as a version up to 0.1.0 has left them
    (tmp_path / "old").mkdir()
    facts = {"fingerprint": older.fingerprint, "tokenizer": older.tokenizer.hash}
    (tmp_path / "old" / "data.json").write_text(json.dumps(facts))
    assert train(compose("train", [*arguments, "trainer.max_steps=1"])) == 0
    assert json.loads((tmp_path / "old" / "data.json").read_text()) == facts
    assert train(compose("train", [*arguments, "trainer.max_steps=2", "run.dir=new"])) == 0
    facts = json.loads((tmp_path / "new" / "data.json").read_text())
    assert facts["split"] == "content"
    assert facts["fingerprint"] != older.fingerprint
    said = capsys.readouterr().out
    assert f"{older.folder} is split by the rule of versions up to 0.1.0" in said
    assert train(compose("train", [*arguments, "trainer.max_steps=2"])) == 0  # goes on, though newer tokens are there
    for path in (tmp_path / "data").glob("*/*"):
        path.unlink()
    assert train(compose("train", [*arguments, "trainer.max_steps=3"])) == 0  # its tokens are made again
    assert json.loads((tmp_path / "old" / "data.json").read_text())["fingerprint"] == older.fingerprint


def test_the_rule_stands_with_the_tokens(tmp_path):
    prepared, said = prepared_from(write(tmp_path / "a", TEXTS))
    assert "whole documents by the hash of their content, about 0.1 of them for validation" in said[-1]
    assert json.loads((prepared.folder / "prepared.json").read_text())["keys"]["split"] == "content"
    assert any(line.startswith("validation") and "whole documents" in line for line in describe(prepared))
