"""The memory of a step by formula is what the operators of a step on a GPU take, within 10 %: alone, and on 8 GPUs."""

import re

import pytest

from minigpt.config.compose import compose
from minigpt.machine.choices import choose, usable_memory
from minigpt.machine.hardware import Hardware, card_of
from tests.gpu.rehearsal import ROOT, fake_device
from tests.units.machine.measured import measure

pytestmark = pytest.mark.gpu
PAGES = ROOT.joinpath("README.md").read_text() + ROOT.joinpath("docs/GUIDE.md").read_text()
ALONE, SHARDED = {}, {"strategy": "fsdp", "devices": 8}
KEPT, FREED = {"devices": 8, "reshard": False}, {"devices": 8, "reshard": True}
# Each model at three micro-batches; all logits or 1,280 rows at a time; alone, sharded, sharded and kept between uses.
CASES = [
    ("gpt2", 4, 0, ALONE, {}),
    ("gpt2", 16, 0, SHARDED, KEPT),
    ("gpt2", 32, 1280, SHARDED, FREED),
    ("gpt2-medium", 2, 1280, ALONE, {}),
    ("gpt2-medium", 8, 0, SHARDED, FREED),
    ("gpt2-medium", 16, 0, ALONE, {}),
    ("gpt2-large", 2, 0, SHARDED, KEPT | {"accumulate": 2}),
    ("gpt2-large", 4, 1280, SHARDED, FREED),
    ("gpt2-large", 8, 0, ALONE, {}),
    ("gpt2-xl", 1, 1280, ALONE, {}),
    ("gpt2-xl", 4, 1280, SHARDED, FREED),
    ("gpt2-xl", 8, 0, SHARDED, KEPT),
    ("qwen3-350m", 2, 0, ALONE, {}),
    ("qwen3-350m", 8, 1280, SHARDED, KEPT | {"accumulate": 2}),
    ("qwen3-350m", 16, 1280, ALONE, {}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "micro_batch", "rows", "trainer", "layout"), CASES)
def test_a_step_takes_what_the_formula_says(model, micro_batch, rows, trainer, layout, no_group_left):
    config = compose("train", ["data=stdlib", "batch_tokens=524288", f"model={model}"]).model
    choices = {"precision": "bf16", "micro_batch": micro_batch, "loss_chunk": rows, **layout}
    taken, formula = measured(config, choices, trainer)
    name = f"`{model}` | {micro_batch} | {rows or 'all'} | {layout or 'alone'}"
    print(f"| {name} | {taken / 1e9:.2f} | {formula / 1e9:.2f} | {formula / taken - 1:+.1%} |")
    assert formula == pytest.approx(taken, rel=0.1)


def measured(model, choices, trainer):
    """The bytes that the operators of a step take, and those of the formula."""
    case = {"model": vars(model), "vocabulary": 50257, "choices": choices, "trainer": trainer}
    with fake_device() as (_, memory):

        def allocated(step):
            before = memory.most = memory.now
            step()
            return memory.most - before

        return measure(case, "cuda", allocated)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("card", ["H100", "RTX 4090", "T4"])
@pytest.mark.parametrize("words", sorted(set(re.findall(r"minigpt train (.*) data.source=DIR (trainer.*=8)", PAGES))))
def test_a_command_of_the_pages_fits_eight_cards_at_the_micro_batch_that_it_chooses(words, card, no_group_left):
    hardware = Hardware("cuda", card, 16, card != "T4", int(1e9 * card_of(card).memory))
    config = compose("train", ["data=stdlib", *" ".join(words).split()])
    choices = choose(config, hardware, 50257)
    names = ("precision", "micro_batch", "loss_chunk", "devices", "reshard")
    chosen = {name: getattr(choices, name) for name in names} | {"accumulate": min(2, choices.accumulate)}
    taken, formula = measured(config.model, chosen, vars(config.trainer))
    assert formula == pytest.approx(taken, rel=0.1)
    assert taken < usable_memory(config, hardware)
