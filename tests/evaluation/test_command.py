"""minigpt evaluate: the figures on screen and on disk, two models, and every fault at once."""

import json

import pytest

from minigpt.config.compose import compose
from minigpt.evaluation.command import evaluate
from minigpt.faults import UserFault


def said(*arguments: str) -> str:
    lines: list[str] = []
    evaluate(compose("evaluate", ["device=cpu", *arguments]), say=lines.append)
    return "\n".join(lines)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    records = [{"context": "wood w", "choices": ["ould", f"xx{number}"], "answer": number % 2} for number in range(30)]
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def validation(run, key: str) -> float:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])[key]


def test_the_validation_text_has_the_loss_that_training_measured(runs, tmp_path):
    run = runs["byte"]
    whole = (run.parent / "text.txt").read_text()
    (tmp_path / "val.txt").write_text(whole[int(len(whole) * 0.9) :])
    shown = said(f"checkpoint={run}", f"file={tmp_path / 'val.txt'}", f"json={tmp_path / 'out.json'}")
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["nats_per_token"] == pytest.approx(validation(run, "val/loss"), rel=1e-5)
    assert figures["bits_per_byte"] == pytest.approx(validation(run, "val/bits_per_byte"), rel=1e-5)
    assert figures.keys() == {
        "file", "checkpoint", "nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy", "tokens",
        "bytes", "words", "lines",
    }  # fmt: skip
    assert f"{figures['nats_per_token']:.4f} nats per token" in shown
    assert "side by side, as val/loss" in shown
    assert "wikitext's convention" in shown


def test_several_files_are_a_list_in_order(runs, text, questions, tmp_path):
    out, tokens = tmp_path / "out.json", tmp_path / "tokens.jsonl"
    other = tmp_path / "other.txt"
    other.write_text("chuck wood")
    files = [f"file={text}", f"questions={questions}", f"file={other}"]
    said(f"checkpoint={runs['byte']}", *files, f"json={out}", f"per_token={tokens}")
    figures = json.loads(out.read_text())
    assert [each["file"] for each in figures] == [str(text), str(other), str(questions)]
    assert figures[2]["questions"] == 30
    rows = [json.loads(line) for line in tokens.read_text().splitlines()]
    assert len(rows) == sum(each["tokens"] + 1 for each in figures[:2])
    own = [row["nats"] for row in rows if row["file"] == str(other) and row["nats"] is not None]
    assert sum(own) / len(own) == pytest.approx(figures[1]["nats_per_token"], rel=1e-6)


@pytest.mark.parametrize(("name", "unit"), [("seed2", "nats per token"), ("bpe", "bits per byte")])
def test_two_models_are_compared_on_the_same_windows(runs, text, questions, tmp_path, name, unit):
    out = tmp_path / "out.json"
    models = [f"checkpoint={runs['byte']}", f"versus={runs[name]}"]
    shown = said(*models, f"file={text}", f"questions={questions}", f"json={out}")
    figures, answers = json.loads(out.read_text())
    key = unit.replace(" ", "_")
    found = figures["versus"]["difference"]
    assert found["value"] == pytest.approx(figures["versus"][key] - figures[key], abs=5e-2 if name == "bpe" else 1e-5)
    assert (found["unit"], found["level"]) == (unit, 0.95)
    assert found["plus_minus"] > 0
    accuracy = answers["versus"]["difference"]
    assert accuracy["value"] == pytest.approx(answers["accuracy"] - answers["versus"]["accuracy"])
    assert accuracy["unit"] == "wrong answers per question"
    assert answers["versus"]["difference_normalised"]["unit"].endswith("length-normalised")
    assert "better by" in shown or "cannot tell" in shown
    assert "these two checkpoints" in shown


def test_a_link_stays_and_leads_to_the_figures(runs, text, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.json").symlink_to(tmp_path / "elsewhere" / "figures.json")
    said(f"checkpoint={runs['byte']}", f"file={text}", f"json={tmp_path / 'out.json'}")
    assert (tmp_path / "out.json").is_symlink()
    assert json.loads((tmp_path / "elsewhere" / "figures.json").read_text())["tokens"] > 0


def test_too_little_to_compare_is_said(runs, tmp_path):
    (tmp_path / "short.txt").write_text("wood")
    shown = said(f"checkpoint={runs['byte']}", f"versus={runs['seed2']}", f"file={tmp_path / 'short.txt'}")
    assert "cannot tell which is better: 1 windows or questions, at least 20 are wanted" in shown


def test_every_file_that_can_not_be_scored_is_named_at_once(runs, text, tmp_path):
    (tmp_path / "odd.txt").write_text("woöd")
    (tmp_path / "short.txt").write_text("w")
    (tmp_path / "q.jsonl").write_text("{}\n")
    files = [f"file={tmp_path / 'odd.txt'}", f"file={text}", f"file={tmp_path / 'short.txt'}"]
    with pytest.raises(UserFault) as caught:
        said(f"checkpoint={runs['char']}", *files, f"questions={tmp_path / 'q.jsonl'}", "stride=9")
    odd, short, question, stride = caught.value.faults
    assert "odd.txt: character 'ö'" in odd
    assert "short.txt has 1 tokens" in short
    assert "q.jsonl, line 1" in question
    assert "stride=9" in stride
    with pytest.raises(UserFault) as caught:
        said(f"checkpoint={tmp_path}", f"versus={tmp_path / 'odd.txt'}", f"file={text}")
    assert len(caught.value.faults) == 2


def test_a_file_is_read_as_the_text_to_train_on_is(runs, tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("café woodchuck ".encode("latin-1") * 20)
    with pytest.raises(UserFault, match=r"byte 0xE9 at offset 3 is not valid utf-8"):
        said(f"checkpoint={runs['bpe']}", f"file={path}")
    shown = said(f"checkpoint={runs['bpe']}", f"file={path}", "data.encoding=latin-1")
    assert "320 bytes" in shown
    shown = said(f"checkpoint={runs['bpe']}", f"file={path}", "data.errors=replace")
    assert "340 bytes" in shown


def test_faults_of_the_command_line_are_told_together(text, tmp_path):
    with pytest.raises(UserFault) as caught:
        compose("evaluate", [
            "file=/nowhere.txt", f"json={text}/x", f"per_token={tmp_path}", "versus=/gone", "stride=0", "fiel=x",
        ])  # fmt: skip
    sentences = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 7
    for part in ("checkpoint is missing", "file='/nowhere.txt' is not a file", "json=", "per_token=", "versus='/gone'",
                 "stride must be at least 1", "Did you mean 'file'?"):  # fmt: skip
        assert part in sentences
    with pytest.raises(UserFault, match="nothing to score"):
        compose("evaluate", [f"checkpoint={tmp_path}"])
    with pytest.raises(UserFault, match="is a file that is used already"):
        compose("evaluate", [f"checkpoint={tmp_path}", f"file={text}", f"json={text}"])
    with pytest.raises(UserFault, match="json='/dev/null' is no file"):  # it would be replaced
        compose("evaluate", [f"checkpoint={tmp_path}", f"file={text}", "json=/dev/null"])
    with pytest.raises(UserFault, match="per_token= is for texts"):
        compose("evaluate", [f"checkpoint={tmp_path}", f"questions={text}", f"per_token={tmp_path}/t"])
