"""What is shown of sampling, tokenizers and loading."""

from dataclasses import replace

import pytest

from minigpt.benchmark import command, decoding, loading, parts, words


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_everything_but_training_is_shown_with_its_table(minute, capsys, monkeypatch, at_once):
    for module in (command, parts):
        monkeypatch.setattr(module, "run_turn", at_once)
    monkeypatch.setattr(decoding, "BATCHES", (1, 2))
    monkeypatch.setattr(decoding, "MIN_SECONDS", 0.001)
    monkeypatch.setattr(loading, "WORKERS", (0,))
    monkeypatch.setattr(loading, "SECONDS", 0.001)
    monkeypatch.setattr(words, "TEXT_BYTES", 20_000)
    plan = replace(minute, what=("sampling", "tokenization", "loading"), rounds=2, new_tokens=4)
    assert command.benchmark(plan) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Machine    ")
    assert [line for line in lines if line.startswith("## ")] == [
        "## Sampling, c0",
        "## Tokenization",
        "## Data loading, c0",
    ]
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert all(["minigpt int8", batch] in [row[:2] for row in rows] for batch in ("1", "2"))
    assert {"byte", "char", "bpe", "from step 1,000,000"} <= {row[0] for row in rows}
    assert any("minigpt round" not in line and line.startswith("Round 2/2  sampling: minigpt fp32") for line in lines)
    assert lines[-1].startswith("sampling c0 at batch 1, tokens/s: minigpt fp32 ")


@pytest.fixture
def two_rounds(monkeypatch):
    """Sampling's turns, as canned."""
    common = {"prompt": 16, "new": 48, "native": ["fp32", "bf16"], "left_out": ["nanoGPT fp32 at batch 8: long"]}
    speeds = [(2000.0, 400.0, 10.0), (3000.0, 300.0, None)]
    turns = []
    for ours, theirs, failing in speeds:
        rows = [["minigpt bf16", 1, ours, 0.5], ["Hugging Face bf16", 1, theirs, 0.25], ["minigpt bf16", 8, 99.0, 1.0]]
        turns.append(common | {"rows": rows + ([["nanoGPT fp32", 1, failing, 1.0]] if failing else [])})
    monkeypatch.setattr(parts, "run_turn", lambda *_, **__: turns.pop(0))


def test_sampling_shows_medians_ends_and_ratios_within_rounds(two_rounds, minute, tmp_path):
    said = []
    plan = replace(minute, rounds=2)
    text, line = parts.sampling(plan, tmp_path, tmp_path, threads=1, say=said.append)
    table = [cells(each) for each in text.splitlines() if each.startswith("|")]
    assert table[2:] == [
        ["minigpt bf16", "1", "2,500", "2,000", "3,000", "0.400", "500.0"],
        ["Hugging Face bf16", "1", "350", "300", "400", "2.857", "250.0"],
        ["minigpt bf16", "8", "99.0", "99.0", "99.0", "80.808", "1,000.0"],
    ]  # and no row of who failed in a round
    assert text.count("Left out: nanoGPT fp32 at batch 8: long.") == 1
    assert "minigpt's step is native code in fp32, bf16." in text
    assert line == (
        "sampling c0 at batch 1, tokens/s: minigpt bf16 2,500 (2,000 to 3,000); Hugging Face bf16 350 (300 to 400); "
        "minigpt bf16 over Hugging Face bf16 7.50 (5.00 to 10.00)"
    )
    assert len(said) == 2


@pytest.mark.parametrize("need", [None, 250.0])
def test_loading_is_set_against_trainings_need_where_that_is_known(need, minute, tmp_path, monkeypatch):
    found = {"batch_tokens": 500, "rows": [["here", [1000.0, 3000.0, 2000.0]]]}
    monkeypatch.setattr(parts, "run_turn", lambda *_, **__: found)
    text = parts.loading(minute, tmp_path, tmp_path, threads=1, need=need)
    row = cells(text.splitlines()[2])
    assert row == ["here", "2,000", "1,000", "3,000", "250.000", *(["8.0"] if need else [])]
    assert ("250 tokens/s" in text) == bool(need)
