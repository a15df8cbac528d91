"""Writers: they write what is asked for, and speeds follow from what they wrote."""

from types import SimpleNamespace

import pytest
import torch

from minigpt.benchmark import huggingface, sampling
from minigpt.benchmark.bench import Bench
from minigpt.benchmark.steps import set_up

GENERATE = """
    def generate(self, ids, new, temperature):
        for _ in range(new):
            logits = self.forward(ids[:, -8:], ids[:, -8:])[0][:, -1] / temperature
            ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1)), 1)
        return ids
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_our_writers_write_as_many_tokens_as_asked_for(precision, words):
    found = sampling.sample(words(), precision, batch=3, new=4)
    assert found["tokens"] == 3
    assert min(found["ms"], found["first"]) > 0


@pytest.mark.parametrize("missing", [0, 1])
def test_others_are_counted_by_what_they_gave_back(missing):
    def generate(ids, new):
        return torch.cat((ids, torch.zeros(len(ids), new - missing, dtype=torch.long)), 1)

    assert sampling.writer_of(generate, "cpu")([[1, 2], [3, 4]], 5) == 2 * (5 - missing)


def test_hugging_face_writes_the_new_tokens_with_its_cache(words, monkeypatch):
    asked = []

    class Model(torch.nn.Module):
        def generate(self, ids, max_new_tokens, **options):
            asked.append((max_new_tokens, options["min_new_tokens"], options["temperature"]))
            return torch.cat((ids, ids.new_zeros(len(ids), max_new_tokens)), 1)

    monkeypatch.setattr(huggingface, "new_model", lambda *_: Model())
    assert huggingface.sample(words(), "fp32", batch=2, new=4)["tokens"] == 2
    assert asked[0] == (2, 2, 0.8)


@pytest.mark.parametrize(
    ("prefill", "expected"),
    [
        (3.0, 0.5),  # the step's own speed
        (60.0, (60 + 9 * 0.5) / 10),  # the first token is nearly all: nothing is subtracted
    ],
)
def test_speed_is_that_of_the_steps_after_the_first_token(monkeypatch, prefill, expected, words):
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(sampling, "time", clock)
    asked = []

    def writer(prompts, new):
        asked.append(new)
        clock.now += prefill + 0.5 * (new - 1)
        return len(prompts) * new

    sizes, text = SimpleNamespace(block_size=64), set_up(words())[1].val
    found = sampling.speed(writer, sizes, text, batch=2, new=10)
    assert found == {"ms": pytest.approx(1e3 * expected), "tokens": 2, "first": prefill}
    sampling.speed(writer, sizes, text, batch=1, new=500)
    assert max(asked) == 64 - 16  # all of it stays within the context


def test_a_writer_that_writes_less_than_asked_for_is_refused(words):
    with pytest.raises(AssertionError, match="3 tokens were written where 4 were wanted"):
        sampling.speed(lambda *_: 3, SimpleNamespace(block_size=64), set_up(words())[1].val, batch=2, new=10)


@pytest.mark.parametrize("able", [True, False])
def test_everybody_is_measured_and_who_could_not_is_named(able, bench_of, checkout, monkeypatch, at_once):
    monkeypatch.setattr(sampling, "BATCHES", (1, 2))
    if able:
        text = (checkout / "model.py").read_text()
        (checkout / "model.py").write_text(text + GENERATE)
    section = sampling.sampling(bench_of(f"nanogpt={checkout}"))
    ours = [f"minigpt {precision}, batch {batch}" for batch in (1, 2) for precision in ("fp32", "bf16", "int8")]
    assert [row[0] for row in section.rows] == ours + (["nanoGPT fp32, batch 1"] if able else [])
    assert len(section.notes) == (1 if able else 2)
    if not able:
        assert section.notes[1].startswith("nanoGPT fp32, batch 1 is left out: nanogpt.sample: AttributeError: ")


def test_others_are_set_against_ours_in_the_same_precision_and_batch(bench_of, monkeypatch):
    times = {("sampling", "fp32"): 4.0, ("sampling", "bf16"): 2.0, ("sampling", "int8"): 1.0}
    times |= {("huggingface", "fp32"): 8.0, ("huggingface", "bf16"): 14.0}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)

    def measured(self, job, *, precision, batch, new):
        return {"ms": batch * times[job.partition(".")[0], precision], "tokens": batch, "first": 0.5}

    monkeypatch.setattr(Bench, "measure", measured)
    section = sampling.sampling(bench_of("huggingface=true"))
    ratios = {row[0]: row[-1] for row in section.rows if row[-1] != "1"}
    batches = (1, 8, 32)
    assert ratios == {f"Hugging Face fp32, batch {batch}": "2 (2 to 2)" for batch in batches} | {
        f"Hugging Face bf16, batch {batch}": "7 (7 to 7)" for batch in batches
    }
    assert section.rows[0] == ["minigpt fp32, batch 1", "4 (4 to 4)", "250", "0.5", "1"]
