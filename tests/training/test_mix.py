"""Runs on a mixture of sources: from what is typed to the rows, the screen, the report and the comparison."""

import json
import re

import pytest

from minigpt.compare.command import compare
from minigpt.compare.sides import open_run
from minigpt.config.compose import compose
from minigpt.config.convert import value_from_text
from minigpt.data.mix import MixedSplit
from minigpt.data.prepared import describe
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault
from minigpt.redact import redact_values
from minigpt.report.runs import describe_run
from minigpt.training.run import train

KIND = dict[str, float]


@pytest.mark.parametrize(
    "text",
    [
        "texts/:0.7,more.jsonl:0.3",
        "{texts/: 0.7, more.jsonl: 0.3}",
        "{texts/:0.7,more.jsonl:.3}",
        '{"texts/": 0.7, "more.jsonl": 0.3}',
    ],
)
def test_it_is_typed_with_braces_or_without(text):
    assert value_from_text(KIND, text) == {"texts/": 0.7, "more.jsonl": 0.3}


def test_what_a_shell_makes_of_unquoted_braces_and_colons_in_addresses():
    config = compose("train", ["data.mix=stdlib:1", "data.mix=https://host/a.txt:2"])
    assert config.data.mix == {"stdlib": 1.0, "https://host/a.txt": 2.0}


@pytest.mark.parametrize(
    "words",
    [
        ["data.mix=stdlib:0.5,shakespeare_char:0.3,stdlib:0.2"],
        ["data.mix=stdlib:0.5", "data.mix=stdlib:0.2"],
        ['data.mix={"stdlib": 0.5, "stdlib": 0.2}'],
    ],
)
def test_a_source_that_is_named_twice_loses_no_share_without_a_word(words):
    with pytest.raises(UserFault, match=r"data\.mix names 'stdlib' twice\. Give each source one share"):
        compose("train", words)


@pytest.fixture
def mixed(run):
    """Trains on two small sources: mixed(name, *words)."""
    (run.folder / "wood").mkdir()
    (run.folder / "wood" / "a.txt").write_text("how much wood would a woodchuck chuck if " * 40)
    (run.folder / "notes.jsonl").write_text("".join(json.dumps({"text": f"note {n}."}) + "\n" for n in range(200)))

    def start(name, *extra, first="0.75", second="0.25", code=0):
        run.path = run.folder / name
        words = [word for word in run.arguments() if not word.startswith(("data.source", "data=text"))]
        mix = f"data.mix={{{run.folder / 'wood'}/: {first}, {run.folder / 'notes.jsonl'}: {second}}}"
        assert train(compose("train", [*words, mix, "trainer.precision=fp64", *extra])) == code
        return run.path

    start.run = run
    return start


@pytest.mark.report
def test_each_source_has_a_validation_loss_in_rows_screen_and_report(mixed, capsys):
    path = mixed("one")
    row, screen = mixed.run.rows()[-1], capsys.readouterr().out
    wood, notes = row["val/loss/wood"], row["val/loss/notes"]
    assert wood != notes
    assert row["val/loss"] == pytest.approx(0.75 * wood + 0.25 * notes, rel=1e-12)
    assert re.search(rf"step 6/6 .*  wood {wood:.4f}  notes {notes:.4f}", screen)
    assert f"  notes  {notes:.4f} nats per token" in screen
    assert "passes over wood (75.00%)" in screen
    report = (path / "report.html").read_text()
    assert "validation loss on notes" in report
    assert "wood, notes.jsonl" in describe_run(path)[1]
    assert f"{notes:.4f}" in report


def test_a_run_that_was_interrupted_ends_with_the_same_bytes_and_other_shares_are_another_run(mixed):
    whole = mixed("whole", "schedule=constant")
    parts = mixed("parts", "trainer.max_steps=3", "schedule=constant")
    mixed("parts", "schedule=constant")
    model = "checkpoints/step-000000006/model.safetensors"
    assert (parts / model).read_bytes() == (whole / model).read_bytes()
    with pytest.raises(UserFault, match=r"data\.mix: .*0\.75.* -> .*0\.5"):
        mixed("whole", "trainer.max_steps=7", first="0.5", second="0.5")


def test_runs_on_mixtures_are_compared(mixed):
    one, other = mixed("one"), mixed("other", "seed=2", "optimizer.lr=1e-2")
    found = open_run(str(one), "best")
    assert isinstance(found.val, MixedSplit)
    lines = []
    compare(compose("compare", [str(one), str(other)]), say=lines.append)
    assert f"{len(found.val) - 1:,} tokens to predict" in "\n".join(lines)
    for path in (mixed.run.folder / "data").iterdir():
        if "notes" in path.name:
            (path / "prepared.json").unlink()
    with pytest.raises(UserFault, match=r"Say where with data.* minigpt prepare data\.mix=.*wood/:0\.75"):
        open_run(str(one), "best")


def test_a_run_on_a_folder_prepared_elsewhere_finds_it_there(mixed):
    folder = mixed.run.folder
    alone = compose("prepare", ["data=text", f"data.source={folder / 'wood'}", f"data.dir={folder}", "tokenizer=byte"])
    theirs = prepare(alone.data, alone.tokenizer, say=str).folder.rename(folder / "theirs")
    mixed.run.path = folder / "one"
    words = [word for word in mixed.run.arguments() if not word.startswith(("data.source", "data=text", "tokenizer"))]
    words += [f"data.mix={theirs}:3,{folder / 'notes.jsonl'}:1", "tokenizer=byte"]
    assert train(compose("train", words)) == 0
    assert set(open_run(str(mixed.run.path), "best").val.parts) == {"theirs", "notes"}


def test_a_source_may_be_a_prepared_folder_and_all_have_the_tokenizer_of_the_first(mixed):
    folder = mixed.run.folder
    words = [f"data.dir={folder / 'data'}", "tokenizer=bpe", "tokenizer.vocab_size=300"]
    alone = compose("prepare", ["data=text", f"data.source={folder / 'wood'}", *words])
    first = prepare(alone.data, alone.tokenizer, say=lambda line: None)
    config = compose("prepare", [f"data.mix={first.folder}:3,{folder / 'notes.jsonl'}:1", *words])
    found = prepare(config.data, config.tokenizer, say=lambda line: None)
    assert found.tokenizer.hash == first.tokenizer.hash == found.parts["notes"].tokenizer.hash
    assert found.train.parts[first.folder.name].fingerprint == first.train.fingerprint
    assert "75.00% of the training windows are of" in describe(found)[0]
    own = compose("prepare", ["data=text", f"data.source={folder / 'notes.jsonl'}", *words])
    second = prepare(own.data, own.tokenizer, say=lambda line: None)
    config.data.mix = {str(first.folder): 1.0, str(second.folder): 1.0}
    with pytest.raises(UserFault, match="and the first source has another, bpe"):
        prepare(config.data, config.tokenizer, say=lambda line: None)
    config.data.mix = {str(first.folder): 1.0}
    config.tokenizer.name = "byte"
    with pytest.raises(UserFault, match="holds tokens of tokenizer=bpe, got tokenizer=byte"):
        prepare(config.data, config.tokenizer, say=lambda line: None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data.mix=stdlib:1,nowhere/:1"], "data.mix: 'nowhere/' does not exist"),
        (["data.mix=stdlib:1,README.md:0"], "the share 0; wanted a number above 0"),
        (["data.mix=stdlib:1,README.md:0.00005"], "less than 0.0001 of the whole"),
        (["data.mix=stdlib:1", "data=text", "data.source=README.md"], "would ignore data.source"),
        (["data.mix=stdlib:1", "data.val_source=README.md"], "would ignore data.val_source"),
        (["data.mix=stdlib"], "data.mix must be sources with their shares like texts/:0.7"),
        (["data.mix="], "data.mix must be sources with their shares like texts/:0.7"),
    ],
)
def test_what_makes_no_mixture_is_refused_by_name(words, sentence):
    with pytest.raises(UserFault, match=re.escape(sentence)):
        compose("train", words)


def test_credentials_in_a_source_are_neither_stored_nor_shown(capsys):
    config = compose("train", ["data.mix=https://user:hunter2@host/a.txt?sig=abcdef:1"])
    with pytest.raises(SystemExit):
        compose("train", ["data.mix=https://user:hunter2@host/a.txt?sig=abcdef:1", "--cfg", "job"])
    assert config.data.mix
    out = capsys.readouterr().out
    assert "mix" in out
    assert "hunter2" not in out
    assert "abcdef" not in out
    assert "hunter2" not in str(redact_values({"data": {"mix": config.data.mix}}))
