"""Writers: they write what is asked for, and speeds follow from what they wrote."""

from types import SimpleNamespace

import pytest
import torch

from minigpt.benchmark import sampling
from minigpt.benchmark.huggingface import generating
from minigpt.benchmark.steps import new_model, settle
from minigpt.config.schema import SampleConfig

GENERATE = """
    def generate(self, ids, new, temperature):
        for _ in range(new):
            logits = self.forward(ids[:, -8:], ids[:, -8:])[0][:, -1] / temperature
            ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1)), 1)
        return ids
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_our_writers_write_as_many_tokens_as_asked_for(precision, config):
    settled, prepared, choices = settle({"config": config()})
    options = SampleConfig(device="cpu", precision=precision)
    writer = sampling.our_writer(lambda: new_model(settled, choices, 65), prepared.tokenizer, options)
    assert writer([[1, 2], [3, 4], [5, 6]], 4) == 12


@pytest.mark.parametrize("wrap", ["nanoGPT", "Hugging Face"])
@pytest.mark.parametrize("missing", [0, 1])
def test_others_are_counted_by_what_they_gave_back(wrap, missing):
    asked = {}

    def generate(ids, *places, **options):
        asked.update(options)
        new = options.get("max_new_tokens") or places[0]
        return torch.cat((ids, torch.zeros(len(ids), new - missing, dtype=torch.long)), 1)

    generates = generate if wrap == "nanoGPT" else generating(SimpleNamespace(generate=generate))
    written = sampling.other_writer(generates, "cpu", False)([[1, 2], [3, 4]], 5)
    assert written == 2 * (5 - missing)
    assert wrap == "nanoGPT" or asked["temperature"] == 0.8


@pytest.mark.parametrize(
    ("prefill", "expected"),
    [
        (3.0, 2 * 9 / (9 * 0.5)),  # the step's own speed
        (60.0, 2 * 10 / (60 + 9 * 0.5)),  # the first token is nearly all: nothing is subtracted
    ],
)
def test_speed_is_that_of_the_steps_after_the_first_token(monkeypatch, prefill, expected):
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(sampling, "time", clock)

    def writer(prompts, new):
        clock.now += prefill + 0.5 * (new - 1)
        return len(prompts) * new

    speed, first = sampling.speed(writer, [[1], [2]], 10)
    assert (speed, first) == (pytest.approx(expected), prefill)


@pytest.mark.parametrize(("asked", "within"), [(4, 4), (500, 6)])
@pytest.mark.parametrize("able", [True, False])
def test_a_round_measures_everybody_and_names_who_could_not(
    able, asked, within, config, checkout, monkeypatch, at_once, tmp_path
):
    monkeypatch.setattr(sampling, "BATCHES", (1, 2))
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)
    if able:
        text = (checkout / "model.py").read_text()
        (checkout / "model.py").write_text(text + GENERATE)
    task = {"new": asked, "checkout": str(checkout), "huggingface": False}
    found = at_once(tmp_path, "sampling.measure", config=config(), **task)
    ours = [[f"minigpt {precision}", batch] for precision in ("fp32", "bf16", "int8") for batch in (1, 2)]
    assert [row[:2] for row in found["rows"]] == ours + ([["nanoGPT fp32", 1]] if able else [])
    assert all(speed > 0 and first > 0 for _, _, speed, first in found["rows"])
    assert (found["prompt"], found["new"]) == (2, within)  # all of it stays within the context of 8
    if able:
        assert found["left_out"] == []
    else:
        (reason,) = found["left_out"]
        assert reason.startswith("nanoGPT fp32: AttributeError: ")
        assert "generate" in reason


def test_sampling_shows_medians_ends_and_ratios_within_rounds(plan_of, bench_of, monkeypatch):
    common = {"prompt": 16, "new": 48, "left_out": ["nanoGPT fp32: RuntimeError: no"]}
    results = []
    for ours, theirs, failing in [(2000.0, 400.0, 10.0), (3000.0, 300.0, None)]:
        rows = [["minigpt bf16", 8, 99.0, 1.0], ["minigpt bf16", 1, ours, 0.5], ["Hugging Face bf16", 1, theirs, 0.25]]
        results.append(common | {"rows": rows + ([["nanoGPT fp32", 1, failing, 1.0]] if failing else [])})
    bench = bench_of(plan_of("rounds=2"))
    monkeypatch.setattr(bench, "measure", lambda *_, **__: results.pop(0))
    section = sampling.sampling(bench)
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.text.splitlines() if "|" in line]
    assert table[2:] == [
        ["minigpt bf16, batch 1", "2,500", "2,000", "3,000", "0.400", "500.0"],
        ["Hugging Face bf16, batch 1", "350", "300", "400", "2.857", "250.0"],
        ["minigpt bf16, batch 8", "99.0", "99.0", "99.0", "80.808", "1,000.0"],
    ]  # and no row of who failed in a round
    assert section.text.count("Left out: nanoGPT fp32: RuntimeError: no.") == 1
    assert section.summary == (
        "sampling c0 at batch 1, tokens/s: minigpt bf16 2,500; Hugging Face bf16 350; "
        "minigpt bf16 over Hugging Face bf16 7.50 (5.00 to 10.00)"
    )
    assert len(bench.said) == 7
