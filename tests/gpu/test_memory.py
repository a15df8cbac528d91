"""The memory of a step by formula is what the operators of a step on a GPU take, within 10 %: alone, and on 8 GPUs."""

import pytest
import torch.distributed as dist

from minigpt.config.compose import compose
from tests.gpu.rehearsal import fake_device
from tests.units.machine.measured import measure

pytestmark = pytest.mark.gpu
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


@pytest.fixture
def no_group_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "micro_batch", "rows", "trainer", "layout"), CASES)
def test_a_step_takes_what_the_formula_says(model, micro_batch, rows, trainer, layout, no_group_left):
    config = compose("train", ["data=stdlib", "batch_tokens=524288", f"model={model}"]).model
    choices = {"precision": "bf16", "micro_batch": micro_batch, "loss_chunk": rows, **layout}
    case = {"model": vars(config), "vocabulary": 50257, "choices": choices, "trainer": trainer}
    with fake_device() as (_, memory):

        def allocated(step):
            before = memory.most = memory.now
            step()
            return memory.most - before

        taken, formula = measure(case, "cuda", allocated)
    name = f"`{model}` | {micro_batch} | {rows or 'all'} | {layout or 'alone'}"
    print(f"| {name} | {taken / 1e9:.2f} | {formula / 1e9:.2f} | {formula / taken - 1:+.1%} |")
    assert formula == pytest.approx(taken, rel=0.1)
