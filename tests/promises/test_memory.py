"""Never out of memory: `minigpt plan` says beforehand what a training takes and whether it fits; training does that."""

import re

import pytest

from minigpt import cli
from minigpt.config.compose import compose
from minigpt.machine.choices import choose
from minigpt.machine.hardware import Hardware

XL = ["model=gpt2-xl", "tokenizer=gpt2", "batch_tokens=524288", "model.checkpoint_activations=false", "memory=24"]


def plan(capsys, *words):
    cli._dispatch(["plan", *words])
    return capsys.readouterr().out


def test_plan_prints_parameters_memory_and_micro_batch(capsys):
    text = plan(capsys, "experiment=gpt2_124m", "memory=24")
    assert "124,439,808 parameters" in text
    assert re.search(r"1 device x \d+ x micro-batch \d+ of 1,024 tokens", text)
    assert re.search(
        r"Memory +about \d+\.\d GB per device .*: weights 497.9 MB, gradients 497.9 MB, optimizer 995.8 MB", text
    )
    assert text.endswith("it fits\n")


def test_a_card_by_name_bounds_the_speed_and_one_that_is_not_known_is_refused(capsys):
    text = plan(capsys, "experiment=gpt2_124m", "card=RTX 4090")
    assert "1 x RTX 4090, 24.0 GB" in text
    assert re.search(r"Speed +at most 20\d,\d{3} tokens/s \(roofline of this card: .* not measured\)", text)
    assert "Speed" not in plan(capsys, "experiment=gpt2_124m", "memory=24")
    with pytest.raises(ValueError, match=r"card=GTX 9 is not .* Use memory=GB instead"):
        plan(capsys, "experiment=gpt2_124m", "card=GTX 9")


def test_plan_says_whether_it_fits_and_the_training_then_chooses_what_plan_said(capsys):
    text = plan(capsys, *XL, "trainer=ddp", "trainer.devices=8")
    assert "it does NOT fit. Add model.checkpoint_activations=true, or trainer=fsdp trainer.devices=N" in text
    sharded = ["trainer=fsdp", "trainer.devices=8"]
    text = plan(capsys, *XL, *sharded)
    assert text.endswith("it fits\n")
    accumulate, micro_batch, peak = re.search(
        r"8 devices x (\d+) x micro-batch (\d+) of 1,024 tokens.*about (\d+\.\d) GB per device", text, re.DOTALL
    ).groups()
    assert 24 * 0.5 < float(peak) < 24 * 0.9
    config = compose("train", [*XL[:-1], *sharded, "data.name=stdlib"])
    choices = choose(config, Hardware("cuda", "A GPU", 16, True, 24 * 10**9), 50257)
    assert (choices.accumulate, choices.micro_batch) == (int(accumulate), int(micro_batch))


RECOMPUTE = "model.checkpoint_activations=true"


@pytest.mark.parametrize(
    ("memory", "measures"), [("200", []), ("24", [RECOMPUTE]), ("12", ["trainer.devices=8", RECOMPUTE])]
)
def test_less_memory_takes_more_measures(capsys, memory, measures):
    words = [*XL[:-1], "trainer=fsdp", "trainer.devices=2", f"memory={memory}"]
    for count in range(len(measures)):
        assert "does NOT fit" in plan(capsys, *words, *measures[:count])
    assert plan(capsys, *words, *measures).endswith("it fits\n")


@pytest.mark.parametrize(
    ("words", "vocabulary"), [(["tokenizer=byte"], "257"), (["vocab_size=999"], "999"), ([], "2,048")]
)
def test_without_a_text_the_vocabulary_is_the_tokenizers(capsys, words, vocabulary):
    assert f"vocabulary {vocabulary}\n" in plan(capsys, *words)


def test_a_training_prints_the_same_estimate_before_its_first_step(run, capsys):
    run("trainer.max_steps=1", "trainer.micro_batch=4")
    text = capsys.readouterr().out
    assert re.search(r"Memory +about [\d.,]+ [a-zA-Z]+ of [\d.]+ GB per device \(estimate\): weights", text)
    assert text.index("Memory ") < text.index("step 1/1")
