"""What a sweep leaves: the table on the screen, leaderboard.csv, summary.json, best/ and sweep.html."""

import csv
import io
import json
import os
import re
import shlex
from html.parser import HTMLParser

import pytest

from minigpt.config.compose import compose
from minigpt.config.convert import to_dict
from minigpt.sweep.page import page
from minigpt.sweep.propose import propose
from minigpt.sweep.results import leaderboard, write_results
from minigpt.sweep.settings import read_plan
from minigpt.sweep.table import Table
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, Trial
from minigpt.sweep.trial_runner import Attempt

SPACE = (
    """search.space={"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": true}, """
    """"schedule.name": {"choices": ["cosine", "wsd"]}, "model.n_layer": {"low": 1, "high": 6}}"""
)


@pytest.fixture
def plan(tmp_path):
    return read_plan([SPACE, "experiment=demo", "trials=200", f"sweep.dir={tmp_path / 'sweep'}"], ["train"])


def made_up(plan, count: int) -> list[Trial]:
    """Trials as a long sweep leaves them, with the rows of their runs."""
    trials = []
    for number in range(count):
        point = propose(plan.axes, plan.config.search, seed=1, number=number, trials=[])
        trial = Trial(number, point, (COMPLETE, COMPLETE, PRUNED, FAILED)[number % 4])
        final = 2 + number % 7 / 10
        length = 4 if trial.state == PRUNED else 12
        rows = [{"step": s, "tokens": 100 * s, "val/loss": final + 3 / s} for s in range(1, length)]
        run = plan.run_dir(number, 0)
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        trial.facts = {"tokens": 100 * length, "seconds": 2.0, "tokens_per_second": 5e4}
        if trial.state == FAILED:
            trial.facts |= {"cause": "crashed (exit 1): <b>no</b>", "tail": ["<script>alert(1)</script>"]}
        else:
            trial.value = rows[-1]["val/loss"]
        trials.append(trial)
    return trials


class Links(HTMLParser):
    """Collects what a page would fetch, and what it would run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "xlink:href")]
        self.found += [tag] if tag in ("script", "link", "iframe", "img", "object") else []


def test_the_page_of_200_trials_needs_nothing_else(plan):
    text = page(plan, made_up(plan, 200))
    links = Links()
    links.feed(text)
    assert links.found == []
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;script&gt;alert(1)" in text
    assert len(text) < 2_000_000
    for title in (
        "Trials in their order",
        "From the settings",
        "Importance",
        "Learning curves",
        "Leaderboard",
        "failed",
    ):
        assert title in text
    assert text.count('class="learn ') == 200
    assert text.count('class="thread ') == 150
    assert text.count('class="failed"') == 50
    assert "pruning saved 22%" in text


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_page_of_a_young_sweep(plan, count):
    assert "</html>" in page(plan, made_up(plan, count))
    point = propose(plan.axes, plan.config.search, seed=1, number=9, trials=[])
    assert "</html>" in page(plan, [Trial(0, point, RUNNING)])
    assert "</html>" in page(plan, [Trial(0, point, FAILED, facts={"cause": "no", "tail": []})])


def test_the_leaderboard_has_a_column_for_each_setting(plan):
    rows = list(csv.DictReader(io.StringIO(leaderboard(plan, made_up(plan, 8)))))
    assert list(rows[0]) == ["rank", "value", "state", "optimizer.lr", "schedule.name", "model.n_layer", "run.dir"]
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "", "", "", ""]
    values = [float(row["value"]) for row in rows[:4]]
    assert values == sorted(values)
    assert rows[0]["run.dir"] == str(plan.run_dir(0, 0))


def test_best_reruns_as_is(plan):
    trials = made_up(plan, 8)
    write_results(plan, trials)
    best = plan.folder / "best"
    commands = (best / "command.txt").read_text().splitlines()
    assert len(commands) == 2
    configs = [compose("train", shlex.split(command)[2:]) for command in commands]
    assert to_dict(configs[0]) == to_dict(configs[1])
    assert configs[0].optimizer.lr == trials[0].params["optimizer.lr"]
    assert configs[0].schedule.name == trials[0].params["schedule.name"]
    assert configs[0].experiment == "demo"
    summary = json.loads((plan.folder / "summary.json").read_text())
    assert summary["best"]["number"] == json.loads((best / "trial.json").read_text())["number"] == 0
    assert summary["states"] == {COMPLETE: 4, PRUNED: 2, FAILED: 2}
    assert not list(plan.folder.rglob("*.tmp*"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_redrawn_in_place(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("LINES", "14")
    trials = made_up(plan, 20)
    screen = Terminal()
    table = Table(plan, screen)
    assert table.is_due()
    table.show(trials, [])
    drawn = screen.getvalue()
    assert all(len(line) < 90 for line in drawn.splitlines())
    lines = drawn.count("\n")
    assert lines <= 14
    assert drawn.splitlines()[0].endswith("tok/s  state")
    assert "lr" in drawn.splitlines()[0].split()
    table.say("news")
    assert f"\x1b[{lines}A\x1b[J" in screen.getvalue()[len(drawn) :]
    assert "20 of 200 trials, 5 pruned, 5 failed" in drawn


def test_a_narrow_terminal_shows_fewer_settings(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    screen = Terminal()
    Table(plan, screen).show(made_up(plan, 6), [])
    heads = screen.getvalue().splitlines()[0].split()
    assert heads[-2:] == ["tok/s", "state"]
    assert heads[:4] == ["rank", "trial", "val/loss", "lr"] or len(heads) == 5


def test_without_a_terminal_there_are_plain_lines_only(plan):
    screen = io.StringIO()
    table = Table(plan, screen)
    trials = made_up(plan, 4)
    assert not table.is_due()
    table.say("news")
    table.close(trials)
    assert "\x1b" not in screen.getvalue()
    assert screen.getvalue().isascii()
    assert screen.getvalue().startswith("news\nrank  trial  val/loss")


def test_a_running_trial_shows_where_it_stands(plan):
    trials = made_up(plan, 4)
    trials[3] = Trial(3, trials[3].params, RUNNING)
    attempt = Attempt(plan, None, trials[3], claim=None, slot=None)
    attempt.rows.refresh()
    lines = Table(plan, io.StringIO()).lines(trials, [attempt], rows=10)
    assert lines[1].endswith("step 11/1,000")
    assert os.linesep not in lines[1]
