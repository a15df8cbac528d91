"""Which of two runs is better, and how sure that is (`compare`); how good a run is on any text (`evaluate`)."""

import contextlib
import io
import json
import re
import shutil

import pytest

from minigpt.cli import _dispatch as minigpt_command
from minigpt.config.compose import compose
from minigpt.evaluation.compare import compare
from minigpt.faults import UserFault

RUNS = {
    "a1": ["seed=1"],
    "a2": ["seed=2"],
    "b1": ["seed=1", "optimizer.lr=1e-4"],
    "b2": ["seed=2", "optimizer.lr=1e-4"],
    "long": ["seed=1", "model.block_size=16"],
    "char": ["seed=1", "tokenizer=char"],
    "third": ["seed=1", "data.source=third.txt", "data.val_source=text.txt"],
    "other": ["seed=1", "data.source=other.txt", "data.val_source=text.txt"],
    "books": ["seed=1", "data.source=books.jsonl"],
    "books2": ["seed=2", "data.source=books.jsonl"],
}
OWN = ["optimizer.lr=1e-2", "trainer.max_steps=20", "batch_tokens=128", "validate.every_steps=20"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run):
    """A folder with runs of text.txt and others."""
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runs = new_run(folder)
        (folder / "text.txt").write_text("".join(f"the {n}th of {n * n % 17} wörds\n" for n in range(900)))
        (folder / "other.txt").write_text("how much wood would a woodchuck chuck\n" * 200)
        (folder / "third.txt").write_text("".join(f"the {n}th of {n} wörds and {n}\n" for n in range(400)))
        books = [json.dumps({"text": f"book {n} of {n * n % 17} wörds " * 9}) for n in range(400)]
        (folder / "books.jsonl").write_text("\n".join(books))
        for name, settings in RUNS.items():
            runs.path = folder / name
            runs(*OWN, *settings)
        shutil.copytree(folder / "a1", folder / "again")
    return folder


def said(place, *words: str) -> str:
    paths = [str(place / word) if (place / word).is_dir() else word for word in words]
    where = [] if "data.dir" in " ".join(words) else [f"data.dir={place / 'data'}"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        compare(compose("compare", [*paths, *where]))
    return shown.getvalue().rstrip("\n")


def validation(run, key: str = "val/loss") -> float:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(row[key] for row in reversed(rows) if key in row)


def test_one_seed_a_side_judges_two_checkpoints(place):
    text = said(place, "a1", "b1")
    verdict = re.search(r"^A is better by (\S+) nats per token on this very text; more ", text, re.MULTILINE)
    assert verdict, text
    assert float(verdict[1]) == pytest.approx(validation(place / "b1") - validation(place / "a1"), abs=2e-3)
    assert "The text: this text was not drawn at random" in text
    assert "these two checkpoints, not the settings" in text
    assert "optimizer.lr: 0.01 -> 0.0001" in text


def test_several_seeds_judge_the_settings_and_are_found_by_their_configs(place):
    text = said(place, "a1", "b1", "a2", "b2")
    assert re.search(r"^A +\S+ +seeds 1, 2 ", text, re.MULTILINE)
    assert "A is better by" in text
    assert "judges the settings" in text
    assert said(place, "a1", "a2", "vs", "b1", "b2").splitlines()[-1] == text.splitlines()[-1]


def test_a_run_that_is_not_finished_is_named(place, tmp_path):
    shutil.copytree(place / "a2", tmp_path / "a2")
    with (tmp_path / "a2" / "events.jsonl").open("a") as events:
        events.write('{"event": "stopped", "step": 7, "reason": "signal"}\n')
    text = said(place, "a1", str(tmp_path / "a2"), "b1", "b2")
    assert text.splitlines()[-1].startswith(f"Not finished: {tmp_path / 'a2'} (stopped at 20 of 20): these settings")
    named = said(place, "a1", str(next((tmp_path / "a2" / "checkpoints").iterdir())))
    assert "Not finished" not in named


def test_of_more_than_two_sides_the_best_is_named_and_the_others_judged_against_it(place):
    text = said(place, "b1", "a1", "long")
    best = min(("b1", "a1", "long"), key=lambda name: validation(place / name))
    letter = "BAC"[("a1", "b1", "long").index(best)]
    assert f"Best  {letter}. Against it (+- are intervals that all hold together with 95 %)" in text
    assert len(re.findall(rf"^  [ABC]  {letter} is better by \S+ nats per token", text, re.MULTILINE)) == 2


def test_another_tokenizer_of_the_same_text_is_compared_by_bytes(place):
    verdict = re.search(r"([AB]) is better by (\S+) bits per byte", text := said(place, "a1", "char"))
    wanted = validation(place / "char", "val/bits_per_byte") - validation(place / "a1", "val/bits_per_byte")
    assert verdict, text
    assert float(verdict[2]) * (1 if verdict[1] == "A" else -1) == pytest.approx(wanted, abs=5e-3)  # a byte less


def test_two_training_texts_are_two_sides(place):
    text = said(place, "third", "other")
    assert " is better by " in text
    assert re.search(r"training tokens: '\S*third.txt \(\w{8}\)' -> '\S*other.txt \(\w{8}\)'", text)


def test_documents_drawn_at_random_tell_how_another_text_would_do(place):
    text = said(place, "books", "books2")
    assert re.search(r"to predict, in \d\d documents", text)
    assert re.search(r"\S+ \+- \S+ nats per token", text)
    assert "The text:" not in text


FAULTS = {
    "another text": (["a1", "books"], "data.*, or score both: minigpt evaluate checkpoint="),
    "the same weights": (["a1", "again"], "the same weights"),
    "one run": (["a1"], "two runs or more"),
    "an empty side": (["a1", "vs"], "both sides of `vs`"),
    "no run": (["a1", "nowhere"], "nowhere does not exist"),
    "the same seed twice": (["a1", "b1", "vs", "b2"], "both have seed=1"),
    "tokens elsewhere": (["a1", "b1", "data.dir=nowhere"], "data.dir=DIR"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_can_not_be_compared_is_named(place, case):
    words, sentence = FAULTS[case]
    with pytest.raises(UserFault, match=re.escape(sentence)):
        said(place, *words)


# --- evaluate ---


def evaluate(capsys, *words: object) -> str:
    capsys.readouterr()
    minigpt_command(["evaluate", "device=cpu", *map(str, words)])
    return capsys.readouterr().out


def test_the_validation_text_has_the_loss_that_training_measured(place, tmp_path, capsys):
    out = tmp_path / "out.json"
    shown = evaluate(capsys, f"checkpoint={place / 'other'}", f"file={place / 'text.txt'}", f"json={out}")
    figures = json.loads(out.read_text())
    assert figures["nats_per_token"] == pytest.approx(validation(place / "other"), rel=1e-5)
    assert figures["bits_per_byte"] == pytest.approx(validation(place / "other", "val/bits_per_byte"), rel=1e-5)
    assert figures.keys() == {
        "file", "checkpoint", "nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy", "tokens",
        "bytes", "words", "lines",
    }  # fmt: skip
    assert f"{figures['nats_per_token']:.4f} nats per token" in shown
    assert "per word" not in shown  # a number with ten digits is of no use
    (tmp_path / "parts.txt").write_text("how much wood\n\nwould a woodchuck chuck\n")
    words = (f"checkpoint={place / 'other'}", f"file={tmp_path / 'parts.txt'}", f"json={out}")
    evaluate(capsys, *words, r"data.separator=\n\n")
    assert json.loads(out.read_text())["bytes"] == len("how much woodwould a woodchuck chuck") - 1


@pytest.mark.parametrize(("name", "unit"), [("b1", "nats per token"), ("char", "bits per byte")])
def test_two_models_on_texts_and_questions(place, tmp_path, capsys, name, unit):
    records = [{"context": "of 3 w", "choices": ["örds", f"xx{number}"], "answer": number % 2} for number in range(60)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, records)))
    shutil.copy(place / "text.txt", tmp_path / "test.txt")
    files = [f"file={tmp_path / 'test.txt'}", f"questions={tmp_path / 'q.jsonl'}"]
    results = [f"json={tmp_path / 'new' / 'out.json'}", f"per_token={tmp_path / 'also' / 'tokens.jsonl'}"]
    if name == "char":  # it does not know the letter x
        files.pop()
    shown = evaluate(capsys, f"checkpoint={place / 'a1'}", f"versus={place / name}", *files, *results)
    figures = json.loads((tmp_path / "new" / "out.json").read_text())
    figures, *answers = figures if isinstance(figures, list) else [figures]
    between, key = figures["versus"]["difference"], unit.replace(" ", "_")
    near = 5e-3 if name == "char" else 1e-5
    assert between["value"] == pytest.approx(figures["versus"][key] - figures[key], abs=near)
    assert (between["unit"], between["level"]) == (unit, 0.95)
    assert between["plus_minus"] is None
    assert " on this very text" in shown
    for result in answers:
        accuracy = result["versus"]["difference"]
        assert accuracy["value"] == pytest.approx(result["accuracy"] - result["versus"]["accuracy"])
        assert accuracy["unit"] == "wrong answers per question"
    rows = [json.loads(line) for line in (tmp_path / "also" / "tokens.jsonl").read_text().splitlines()]
    assert len(rows) == figures["tokens"] + 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["file=odd.txt"], "odd.txt: character 'ä'"),
        (["file=text.txt", "file=short.txt"], "short.txt: the text has 1"),
        (["file=text.txt", "file=paper"], "paper is a PDF document: pdftotext converts it; wanted text"),
        (["file=text.txt", "questions=q.jsonl"], "line 1"),
        (["file=text.txt", "stride=9"], "stride=9"),
        ([], "nothing to score. Give file=TEXT or questions=FILE"),
    ],
)
def test_a_file_that_can_not_be_scored_is_named_before_any_is_scored(place, folder, capsys, words, says):
    files = {"odd.txt": "woäd", "text.txt": "the 3th of 9", "short.txt": "w", "q.jsonl": "{}\n", "paper": "%PDF-1.7"}
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(UserFault, match=re.escape(says)):
        minigpt_command(["evaluate", f"checkpoint={place / 'char'}", *words, "device=cpu"])
    assert "nats per token" not in capsys.readouterr().out
