"""What a sweep leaves: the table on the screen, leaderboard.csv, summary.json, best/ and sweep.html."""

import csv
import dataclasses
import io
import json
import os
import re
import shlex
from html.parser import HTMLParser

import optuna
import pytest
from optuna.distributions import CategoricalDistribution

from minigpt.config.compose import compose
from minigpt.config.convert import to_dict
from minigpt.sweep.page import page
from minigpt.sweep.results import Table, entries, leaderboard, write_results
from minigpt.sweep.search import propose
from minigpt.sweep.settings import read_sweep
from minigpt.sweep.trial_runner import TrialRunner
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial

from .conftest import LR, made_trial

SPACE = (
    """search.space={"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": true}, """
    """"schedule.name": {"choices": ["cosine", "wsd"]}, "model.n_layer": {"low": 1, "high": 6}}"""
)


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "sweep").mkdir()
    return read_sweep([SPACE, "experiment=demo", "trials=200", f"sweep.dir={tmp_path / 'sweep'}"], ["train"])


def made_up(plan, count: int) -> list[Trial]:
    """Trials as a long sweep leaves them."""
    trials = []
    for number in range(count):
        point = propose(plan.space, plan.config.search, seed=1, number=number, trials=[])
        state = (COMPLETE, COMPLETE, PRUNED, FAILED)[number % 4]
        length = 4 if state == PRUNED else 12
        curve = {100 * step: 2 + number % 7 / 10 + 3 / step for step in range(1, length)}
        facts = {"tokens": 100 * length, "seconds": 2.0, "tokens_per_second": 5e4}
        if state == FAILED:
            facts |= {"cause": "crashed (exit 1): <b>no</b>", "tail": ["<script>alert(1)</script>"]}
        value = None if state == FAILED else curve[100 * (length - 1)]
        trials.append(made_trial(number, point, state, value, curve, space=plan.space, facts=facts))
    return trials


def study_of(trials: list[Trial]) -> optuna.Study:
    study = optuna.create_study()
    study.add_trials(trials)
    return study


class Links(HTMLParser):
    """Collects what a page would fetch, and what it would run; what points into the page itself is no link."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        places = [value for name, value in attributes if name in ("src", "href", "srcset", "data", "xlink:href")]
        self.found += [place for place in places if not place.startswith("#")]
        self.found += [tag] if tag in ("script", "link", "iframe", "img", "image", "object") else []


def test_the_page_of_200_trials_needs_nothing_else(plan):
    text = page(plan, study_of(made_up(plan, 200)))
    links = Links()
    links.feed(text)
    assert links.found == []
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    assert "&lt;b&gt;no&lt;/b&gt;" in text
    assert "<b>no" not in text
    assert len(text) < 2_000_000
    titles = re.findall("<figcaption>(.*?)</figcaption><svg", text)
    assert [title.partition(" (")[0].partition(":")[0] for title in titles] == [
        "val/loss of each trial",
        "Learning curves",
        "val/loss over optimizer.lr",
        "val/loss over schedule.name",
        "val/loss over model.n_layer",
        "From the settings to val/loss",
        "Importance",
    ]
    for title in ("Leaderboard", "Commands", "The search"):
        assert f"<h2>{title}</h2>" in text
    assert "pruning saved 22%" in text


def test_charts_are_as_wide_as_a_phone_and_readable_there(plan):
    """At 390 px a chart of at most 400 px keeps its text at 8.5 px or more; only the broad one scrolls."""
    text = page(plan, study_of(made_up(plan, 16)))
    charts = re.findall(
        r"<figure class=\"(broad)?(?:narrow)?\">.*?<svg [^>]*viewBox=\"0 0 ([\d.]+) .*?</figure>", text, re.DOTALL
    )
    assert len(charts) == 7
    assert [bool(broad) for broad, _ in charts].count(True) == 1
    assert all(float(width) <= 400 for broad, width in charts if not broad)
    sizes = {float(size) for size in re.findall(r"font:(?: \w+)? ([\d.]+)px", text)}
    assert sizes
    assert min(sizes) * 350 / 400 >= 8.5


def test_text_of_settings_is_drawn_as_it_is(tmp_path):
    """Dollar signs begin no formula, and numbers of a logarithmic axis are plain."""
    plan = read_sweep([LR, "experiment=demo", f"sweep.dir={tmp_path}"], ["train"])
    names = {"data.encoding": CategoricalDistribution(["$x^", "</svg>"])}
    points = [{"data.encoding": ("$x^", "</svg>")[number % 2]} for number in range(3)]
    trials = [made_trial(number, point, COMPLETE, 1.0 + number, space=names) for number, point in enumerate(points)]
    text = page(dataclasses.replace(plan, space=names), study_of(trials))
    assert "$x^" in text
    assert "&lt;/svg&gt;" in text
    points = [{"optimizer.lr": 10.0**-number} for number in (1, 2, 3)]
    trials = [made_trial(n, point, COMPLETE, 1.0 + n, space=dict(plan.space)) for n, point in enumerate(points)]
    text = page(plan, study_of(trials))
    assert ">0.01</text>" in text
    assert "mathdefault" not in text


def test_a_sweep_of_one_setting_has_no_charts_of_several(tmp_path):
    plan = read_sweep([LR, "experiment=demo", f"sweep.dir={tmp_path}"], ["train"])
    text = page(plan, study_of(made_up(plan, 16)))
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert len(captions) == 3
    assert not any(words in caption for caption in captions for words in ("From the settings", "Importance"))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_page_of_a_young_sweep(plan, count):
    assert "</html>" in page(plan, study_of(made_up(plan, count)))
    point = propose(plan.space, plan.config.search, seed=1, number=9, trials=[])
    assert "</html>" in page(plan, study_of([made_trial(0, point, space=plan.space)]))
    failed = made_trial(0, point, FAILED, space=plan.space, facts={"cause": "no", "tail": []})
    assert "</html>" in page(plan, study_of([failed]))


def test_the_leaderboard_has_a_column_for_each_setting(plan):
    rows = list(csv.DictReader(io.StringIO(leaderboard(plan, entries(plan, made_up(plan, 8))))))
    assert list(rows[0]) == ["rank", "value", "state", "optimizer.lr", "schedule.name", "model.n_layer", "run.dir"]
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "", "", "", ""]
    values = [float(row["value"]) for row in rows[:4]]
    assert values == sorted(values)
    assert rows[0]["run.dir"] == str(plan.run_dir(0, 0))


def test_best_reruns_as_is(plan, capsys):
    plan.shared.append("schedule.warmup_steps=500")  # longer than the run, on which a note says so
    trials = made_up(plan, 8)
    write_results(plan, trials)
    assert capsys.readouterr().err == ""  # it would stand between the lines of the sweep's table
    best = plan.folder / "best"
    commands = (best / "command.txt").read_text().splitlines()
    assert len(commands) == 2
    words = [shlex.split(command.partition(" train ")[2] or command.partition("train.py ")[2]) for command in commands]
    configs = [compose("train", each) for each in words]
    assert to_dict(configs[0]) == to_dict(configs[1])
    assert configs[0].optimizer.lr == trials[0].params["optimizer.lr"]
    assert configs[0].schedule.name == trials[0].params["schedule.name"]
    assert configs[0].experiment == "demo"
    summary = json.loads((plan.folder / "summary.json").read_text())
    assert summary["best"]["number"] == 0
    assert summary["states"] == {"complete": 4, "pruned": 2, "failed": 2}
    assert not list(plan.folder.rglob("*.tmp*"))


def test_a_rate_whose_peak_was_never_reached_is_named(tmp_path):
    """A warm-up that is longer than the run: its learning rate says nothing."""
    space = (
        """search.space={"schedule.warmup_steps": {"choices": [5, 50]}, "trainer.max_steps": {"choices": [20, 100]}}"""
    )
    plan = read_sweep([space, "experiment=demo", f"sweep.dir={tmp_path}"], ["train"])
    points = [(5, 20), (50, 20), (50, 100)]
    params = [{"schedule.warmup_steps": warmup, "trainer.max_steps": steps} for warmup, steps in points]
    trials = [made_trial(number, each, COMPLETE, 1.0 + number) for number, each in enumerate(params)]
    lines = Table(plan, io.StringIO()).lines(trials, rows=10)
    assert ["never reached" in line for line in lines[1:4]] == [False, True, False]


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
    table.say("\n".join(table.lines(trials, rows=20)))
    assert "\x1b" not in screen.getvalue()
    assert screen.getvalue().isascii()
    assert screen.getvalue().startswith("news\nrank  trial  val/loss")


def test_a_running_trial_shows_where_it_stands(plan):
    trials = made_up(plan, 4)
    trials[3] = made_trial(3, trials[3].params)
    run = plan.run_dir(3, 0)
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 11, "val/loss": 2.0}\n{"step": 12')
    runner = TrialRunner(plan, None, trials[3], claim=None, slot=None, pruning=None)
    runner.rows.refresh()
    lines = Table(plan, io.StringIO()).lines(trials, [runner], rows=10)
    assert lines[1].endswith("step 11/480")
    assert os.linesep not in lines[1]
