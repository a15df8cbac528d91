"""Forward and backward pass of each preset compile for each kind of card: one graph, and kernels in machine code."""

import functools

import pytest

from tests.gpu.rehearsal import in_a_process

pytestmark = pytest.mark.gpu
# Two blocks of each preset (all blocks have the same kernels): Triton kernels and calls of libraries (products of
# matrices, attention) in a micro-batch, forward and backward.
SOME = {
    "model=gpt2": (82, 31),
    "model=gpt2 trainer.loss_chunk=1024": (80, 29),
    "model=qwen3-124m data.mask_documents=true": (74, 37),
}
KERNELS = {
    "h100": SOME
    | {  # gpt2-large and gpt2-xl recompute activations
        "model=gpt2 model.dropout=0.1": (81, 31),
        "model=gpt2 model.checkpoint_activations=true": (101, 40),
        "model=gpt2 model.attention=linear": (115, 51),
        "model=gpt2-medium": (82, 31),
        "model=gpt2-large": (92, 40),
        "model=gpt2-xl": (92, 40),
        "model=gpt-nano": (84, 31),
        "model=gpt-micro": (80, 31),
        "model=gpt-mini": (82, 31),
        "model=gpt-baby": (82, 31),
        "model=qwen3-nano": (74, 37),
        "model=qwen3-micro": (72, 37),
        "model=qwen3-mini": (72, 37),
        "model=qwen3-baby": (72, 37),
        "model=qwen3-124m": (72, 37),
        "model=qwen3-350m": (72, 37),
    },
    "a100": SOME,
    "rtx4090": SOME,
}


@functools.cache
def results(card, folder):
    """Compile what KERNELS names for a card, in one process; return the counts."""
    variables = {"REHEARSED_GPU": card, "TORCHINDUCTOR_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return in_a_process("compiling.py", *KERNELS[card], **variables)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("card", "words"), [(card, words) for card, cases in KERNELS.items() for words in cases])
def test_a_preset_is_one_graph_with_as_many_kernels_as_stored(card, words, tmp_path_factory):
    counted = results(card, tmp_path_factory.getbasetemp() / card)[words]
    assert counted == {"kernels": list(KERNELS[card][words]), "machine code": True}
