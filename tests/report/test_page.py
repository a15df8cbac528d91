"""report.html: whole, harmless and to the point."""

import html.parser
import json
import re
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from minigpt.config.convert import values
from minigpt.config.schema import TrainConfig
from minigpt.report import page as page_module
from minigpt.report.curves import draw_metric
from minigpt.report.page import events_section, page, write_report
from minigpt.report.record import read_record
from minigpt.screen import duration, short_number


class Reader(html.parser.HTMLParser):
    """Collects text by tag and complains of tags that don't match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "onload", "onclick")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self, tag=None):
        return "".join(data for where, data in self.texts if tag in (None, where))


@pytest.fixture
def no_charts(monkeypatch):
    """For tests of the text around them; they take 0.4 s."""
    monkeypatch.setattr(page_module, "charts", lambda *records: "")


def test_a_run_on_one_page(run):
    write_report(run)
    source = (run / "report.html").read_text()
    reader = Reader(source)
    text = reader.text()
    assert "tiny-1f" in reader.text("h1")
    assert "GPT with 173 parameters · 4 layers" in text
    for figure in ("2.6418", "1.321", "102 k", "20 s"):
        assert figure in reader.text("b")
    assert reader.text("pre").count('return "<b>&amp;</b>" # ${x}') == 2
    assert "python scripts/train.py seed=4242" in text
    assert f'minigpt sample checkpoint={run} prompt="..."' in text
    assert "2026-11-20 10:00:00began" in text
    assert "micro_batch7" in text
    assert (run / "loss.png").is_file()


def test_the_page_needs_and_runs_nothing_else(run):
    evil = "</pre><script>alert(1)</script><img src=http://x.org/a.png onerror=alert(1)>"
    (run / "samples.jsonl").write_text(json.dumps({"step": 1, "text": evil}) + "\n")
    (run / "command.txt").write_text(evil)
    (run / "choices.json").write_text(json.dumps({evil: evil}))
    (run / "config.yaml").write_text(json.dumps({"model": {"n_layer": evil}, evil: [evil], "data": {"name": evil}}))
    (run / "events.jsonl").write_text(json.dumps({"event": evil, "time": 3, evil: evil}) + "\n")
    (run / "baseline.json").write_text(json.dumps({"name": evil, "bits_per_byte": 2.5}))
    source = page(read_record(run))
    reader = Reader(source)
    assert reader.links == []
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(reader.tags)
    assert reader.text().count(evil) >= 8
    assert "default-src 'none'" in source


@pytest.mark.usefixtures("no_charts")
def test_settings_that_differ_from_the_default_stand_out(run):
    shown, folded = page(read_record(run)).split("<h2>Settings</h2>")[1].split("<details>")
    assert shown.count("<tr>") == 1
    assert "<td>seed</td><td>4242</td>" in shown
    assert "<td>trainer.max_steps</td>" in folded
    assert f"{len(values(TrainConfig())) - 1} that have their default" in folded


def test_the_baselines_are_shown_beside_the_loss(run):
    rows = [{"name": "unigram", "bits_per_byte": 5.5}, {"name": "xz", "bits_per_byte": 2.125}, {"name": "no number"}]
    (run / "baseline.json").write_text(json.dumps({"fingerprint": "f", "baselines": [*rows, 5]}))
    source = page(read_record(run))
    assert "xz: 2.125; unigram: 5.500" in Reader(source).text("small")
    assert "var(--base)" in source
    text = Reader(source).text("text")
    assert "xz (2.125)" in text
    assert "unigram (5.500)" in text


def test_the_baseline_of_a_run_of_an_older_version_is_shown(run):
    (run / "baseline.json").write_text('{"name": "order-3 byte n-gram", "bits_per_byte": 2.25}')
    source = page(read_record(run))
    assert "order-3 byte n-gram: 2.250" in Reader(source).text("small")
    assert "order-3 byte n-gram (2.250)" in Reader(source).text("text")


def test_a_run_without_a_step_has_a_page(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    write_report(tmp_path)
    assert "No step has been logged yet." in Reader((tmp_path / "report.html").read_text()).text()


@pytest.mark.usefixtures("no_charts")
def test_of_many_samples_first_and_last_are_shown_and_the_others_folded(run):
    samples = [{"step": step, "text": f"text {step}"} for step in range(1, 101)] + [{"step": 5}]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    shown, _, folded = page(read_record(run)).partition("<details>")
    assert shown.count('class="sample"') == page_module.SAMPLES_SHOWN
    assert "text 1<" in shown
    assert "text 100<" in shown
    assert folded.count('class="sample"') == 100 - page_module.SAMPLES_SHOWN


def test_a_long_run_has_a_small_page(run):
    rows = [
        {"step": step, "train/loss": 3 + (step % 7) / 9, "lr": 1e-3, "train/grad_norm": 1.0} for step in range(9000)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(page(read_record(run))) < 130_000


@pytest.mark.usefixtures("no_charts")
def test_a_failed_page_leaves_the_old_one(run, monkeypatch):
    write_report(run)
    old = (run / "report.html").read_text()

    def broken(record, others):
        raise ZeroDivisionError

    monkeypatch.setattr(page_module, "page", broken)
    with pytest.raises(ZeroDivisionError):
        write_report(run)
    assert (run / "report.html").read_text() == old


def test_charts_take_the_pages_colours_and_show_what_was_measured(run):
    source = page(read_record(run))
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', source)
    losses = ["loss over optimizer steps"] * 2  # for wide screens, and for phones
    assert labels == [*losses, "learning rate", "gradient norm", "tokens/s"]
    for colour in ("train", "val", "rate", "ink", "line"):
        assert f"var(--{colour})" in source
    assert not re.search(r"#(2f6fde|e2571e|7a869a|27313f)", source.partition("</style>")[2])
    assert "validation, best 2.642 (1.321 bits per byte)" in Reader(source).text("text")


def test_a_spike_of_a_metric_does_not_flatten_the_rest(run):
    record = read_record(run)
    record.rows = [{"step": step, "lr": 1e-3 if step != 70 else 5.0} for step in range(1, 301)]
    axes = Figure().subplots()
    draw_metric(axes, record, "lr", "learning rate")
    assert axes.get_ylim() == (0, pytest.approx(1.15e-3))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "0.001"]
    assert axes.get_xlim() == (0, pytest.approx(1.006 * 300))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (65.25, "65.2"),
        (804096, "804 k"),
        (999_600, "1.00 M"),
        (124_439_808, "124 M"),
        (4.1e6, "4.10 M"),
    ],
)
def test_short_numbers(value, text):
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (75, "1 min 15 s"), (3600, "1 h"), (7261, "2 h 1 min"), (90_000, "1 d 1 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_changed_setting_shows_with_both_values_also_where_one_is_zero(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    event = {"event": "changed", "setting": "trainer.patience", "was": 0, "now": False}
    text = events_section(replace(read_record(tmp_path), events=[event]))
    assert "setting trainer.patience, was 0, now false" in text


@pytest.mark.usefixtures("no_charts")
def test_the_history_of_settings_says_where_each_changed(run):
    events = [
        {"event": "began", "step": 0},
        {"event": "continued", "step": 120},
        {"time": "2026-11-20T11:00:00+0000", "event": "changed", "setting": "optimizer.lr", "was": 0.001, "now": 0.0},
    ]
    text = Reader(page(replace(read_record(run), events=events))).text()
    assert "optimizer.lr0.001 → 0.0after step 1202026-11-20 11:00:00" in text
    assert "Changed settings" not in Reader(page(read_record(run))).text()


def test_other_runs_stand_beside_in_charts_figures_and_settings(run):
    records = [read_record(run) for _ in range(7)]
    for place, other in enumerate(records[1:]):
        other.path = run.with_name(f"other-{place}")
        other.config = {**other.config, "seed": place, "model.n_layer": 9}
        other.rows = [{**row, "step": row["step"] * 3} for row in other.rows]
    records[2].rows = [{"step": 10, "train/loss": 4.0}]  # never validated
    records[3].rows = []
    source = page(records[0], records[1:])
    text = Reader(source).text()
    assert source.count("best 2.642") >= 2 * 5  # of each validated run, in both sizes
    assert "other-1, training" in text
    assert "model.n_layer4999999" in text
    assert "seed4242012345" in text
    assert "model.n_headmodel.n_head" not in text
    assert all(f"var(--run{number})" in source for number in range(4))
    assert source.count('class="sample"') == 2 + 7
    assert "600" in Reader(source).text("text")  # the axis reaches the longest run's end


def test_a_peak_is_in_the_picture_where_it_is_no_spike(run):
    record = read_record(run)
    record.rows = [{"step": step, "tokens_per_second": 1000.0 + step} for step in range(1, 301)]
    axes = Figure().subplots()
    draw_metric(axes, record, "tokens_per_second", "tokens/s")
    assert axes.get_ylim()[1] > 1300
