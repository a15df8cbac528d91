"""Runs on a mixture of sources: from what is typed to the rows, the screen, the report and the comparison."""

import json
import re

import pytest

from minigpt.config.compose import compose
from minigpt.data.prepared import describe
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault
from minigpt.report.record import read_record
from minigpt.report.runs import describe_run
from minigpt.training.run import train


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
    assert "Note: the validation loss is too good to be true: " in screen.split("Run directory")[-1]
    report = (path / "report.html").read_text()
    assert "validation loss on notes" in report
    assert "wood, notes.jsonl" in describe_run(read_record(path))[1]
    assert f"{notes:.4f}" in report


def test_a_run_that_was_interrupted_ends_with_the_same_bytes_and_other_shares_are_another_run(mixed, capsys):
    whole = mixed("whole", "schedule=constant")
    parts = mixed("parts", "trainer.max_steps=3", "schedule=constant")
    capsys.readouterr()
    mixed("parts", "schedule=constant")
    assert "Note: the validation loss is too good to be true: " in capsys.readouterr().out
    model = "checkpoints/step-000000006/model.safetensors"
    assert (parts / model).read_bytes() == (whole / model).read_bytes()
    with pytest.raises(UserFault, match=r"data\.mix: .*0\.75.* -> .*0\.5"):
        mixed("whole", "trainer.max_steps=7", first="0.5", second="0.5")


def test_a_source_may_be_a_prepared_folder_and_all_have_the_tokenizer_of_the_first(mixed):
    folder = mixed.run.folder
    words = [f"data.dir={folder / 'data'}", "tokenizer=bpe", "tokenizer.vocab_size=300"]
    alone = compose("prepare", ["data=text", f"data.source={folder / 'wood'}", *words])
    first = prepare(alone.data, alone.tokenizer)
    config = compose("prepare", [f"data.mix={first.folder}:3,{folder / 'notes.jsonl'}:1", *words])
    found = prepare(config.data, config.tokenizer)
    assert found.tokenizer.hash == first.tokenizer.hash == found.parts["notes"].tokenizer.hash
    assert found.train.parts[first.folder.name].fingerprint == first.train.fingerprint
    assert "75.00% of the training windows are of" in describe(found)[0]
    own = compose("prepare", ["data=text", f"data.source={folder / 'notes.jsonl'}", *words])
    second = prepare(own.data, own.tokenizer)
    config.data.mix = {str(first.folder): 1.0, str(second.folder): 1.0}
    with pytest.raises(UserFault, match="the first source has bpe, SHA-256"):
        prepare(config.data, config.tokenizer)
    config.data.mix = {str(first.folder): 1.0}
    config.tokenizer.name = "byte"
    with pytest.raises(UserFault, match=r"with tokenizer=bpe, got tokenizer=byte. Type tokenizer=bpe"):
        prepare(config.data, config.tokenizer)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data.mix=stdlib:1", "data=text", "data.source=README.md"], "ignore data.source"),
        (["data.mix=stdlib:1", "data.val_source=README.md"], "ignore data.source and data.val_source"),
        (["data.mix=stdlib"], "data.mix must be sources with their shares like texts/:0.7"),
        (["data.mix="], "data.mix must be sources with their shares like texts/:0.7"),
    ],
)
def test_what_makes_no_mixture_is_refused_by_name(words, sentence):
    with pytest.raises(UserFault, match=re.escape(sentence)):
        compose("train", words)
