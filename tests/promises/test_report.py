"""A run shows itself: report.html is one file that works offline, loss.png a picture, `minigpt runs` a table."""

import fcntl
import html.parser
import json
import os
import re
import shutil

import pytest

from minigpt.cli import _dispatch as minigpt_command
from minigpt.faults import StorageFailure, UserFault


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


def report(run) -> tuple[str, Reader]:
    minigpt_command(["report", f"run.dir={run}"])
    source = (run / "report.html").read_text()
    return source, Reader(source)


@pytest.mark.report
def test_a_training_ends_with_its_report(run):
    run()
    reader = Reader((run.path / "report.html").read_text())
    assert "validation loss, nats per token" in reader.text()
    assert (run.path / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_run_on_one_page(finished):
    run = finished
    baselines = [{"name": "unigram", "bits_per_byte": 5.5}, {"name": "xz", "bits_per_byte": 2.125}]
    (run / "baseline.json").write_text(json.dumps({"fingerprint": "f", "baselines": baselines}))
    event = {"event": "changed", "setting": "trainer.patience", "was": 0, "now": False, "time": "2026-11-20T11:00:00"}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    samples = [{"step": step, "text": f"<b>{step}</b> ${{x}}"} for step in range(1, 101)]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    source, reader = report(run)
    text = reader.text()
    assert "tiny-1f" in reader.text("h1")
    assert "GPT with 173 parameters · 4 layers" in text
    for figure in ("2.6418", "1.321", "102 k", "20 s"):
        assert figure in reader.text("b")
    assert "xz: 2.125; unigram: 5.500" in reader.text("small")
    assert "setting trainer.patience, was 0, now false" in text
    shown, _, folded = source.partition("<details>")
    assert "<b>1</b> ${x}" in reader.text("pre")
    assert shown.count('class="sample"') == 4
    assert folded.count('class="sample"') == 96
    assert re.findall(r"<h3>step (\d+)", shown) == ["1", "34", "67", "100"]
    settings, others, *rest = source.split("<h2>Settings</h2>")[1].split("<details>")
    assert settings.count("<tr>") == 1
    assert "<td>seed</td><td>4242</td>" in settings
    assert "<td>trainer.max_steps</td>" in others
    summaries = [re.match("<summary>(.*?)</summary>", part)[1] for part in rest]
    assert summaries == ["What happened: changed", "Chosen for this machine", "Environment"]
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', source)
    assert labels == [*["what is learned over optimizer steps"] * 2, "learning rate", "gradient norm", "tokens/s"]
    assert all(f"var(--{colour})" in source for colour in ("train", "val", "rate", "base", "ink", "line"))  # dark, too
    assert "validation, best 2.642 (1.321 bits per byte)" in reader.text("text")


def test_the_page_needs_and_runs_nothing_else(finished):
    run, evil = finished, "</pre><script>alert(1)</script><img src=http://x.org/a.png onerror=alert(1)>"
    (run / "samples.jsonl").write_text(json.dumps({"step": 1, "text": evil}) + "\n")
    (run / "choices.json").write_text(json.dumps({evil: evil}))
    (run / "config.yaml").write_text(json.dumps({"model": {"n_layer": evil}, evil: [evil], "data": {"name": evil}}))
    (run / "events.jsonl").write_text(json.dumps({"event": evil, "time": 3, evil: evil}) + "\n")
    source, reader = report(run)
    assert reader.links == []
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(reader.tags)
    assert reader.text().count(evil) >= 7
    assert "default-src 'none'" in source
    assert len(source) < 130_000


def test_a_full_disk_leaves_the_old_report(finished, monkeypatch):
    (finished / "loss.png").write_bytes(b"old")

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("minigpt.files.os.replace", full)
    with pytest.raises(StorageFailure, match=r"can't be written: No space left on device\. Make room"):
        report(finished)
    assert (finished / "loss.png").read_bytes() == b"old"
    assert list(finished.glob(".loss*")) == []


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(UserFault, match=r"no metrics\.jsonl there"):
        report(tmp_path / "nowhere")
    with pytest.raises(UserFault, match=r"no metrics\.jsonl there"):
        report(tmp_path)
    with pytest.raises(UserFault, match="beside"):
        minigpt_command(["report", f"run.dir={tmp_path}", "beside=x"])


def test_runs_lists_the_best_of_a_text_first_and_the_settings_that_differ(finished, capsys):
    run = finished
    other = shutil.copytree(run, run.with_name("a-worse-one"))
    config = (run / "config.yaml").read_text().replace("seed: 4242", "seed: 7").replace("  lr: 0.001", "  lr: 0.5")
    config = config.replace("n_kv_head: 0", "n_kv_head: 1").replace("n_layer: 4", "n_layer: 3")
    (other / "config.yaml").write_text(config)
    lines = (other / "metrics.jsonl").read_text().splitlines()
    (other / "metrics.jsonl").write_text("\n".join(lines[:-4]) + "\n")  # without the best validation
    (run / "events.jsonl").write_text('{"event": "finished"}\n{"event": "skipped"}\n')
    minigpt_command(["runs", str(run.parent)])
    head, first, second = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "run text steps val/loss bits/byte state seed model.n_layer optimizer.lr"
    cells = [[cell.strip() for cell in line.split("  ") if cell] for line in (first, second)]
    best = ["200", "2.6418", "1.3209", "best", "finished", "4242", "4", "0.001"]
    assert (cells[0][0], cells[0][2:]) == (run.name, best)
    assert (cells[1][0], cells[1][-4:-2]) == ("a-worse-one", ["interrupted at 160 of 2,000", "7"])
    with open(other / "run.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        minigpt_command(["runs", str(run.parent)])
    assert "running at 160" in capsys.readouterr().out.splitlines()[2]


def test_runs_lists_the_checkpoints_of_a_run(run, capsys):
    run("checkpoint.every_steps=2", "checkpoint.keep_last=9")
    (run.path / "checkpoints" / "step-000000002" / "MANIFEST.json").write_text("{")
    capsys.readouterr()
    minigpt_command(["runs", str(run.path)])
    head, bad, *good = capsys.readouterr().out.splitlines()
    assert head.split() == ["checkpoint", "val/loss"]
    assert "damaged: " in bad
    assert sum(line.endswith("best") for line in good) == 1
    with pytest.raises(UserFault, match="no such folder"):
        minigpt_command(["runs", str(run.path / "gone")])
