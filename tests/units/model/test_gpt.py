"""The GPT: GPT-2's sizes and initialisation; formats/test_import.py has its and nanoGPT's numbers."""

import math

import pytest
import torch
import torch.nn.functional as F

from minigpt.attention.layers import ATTENTION, KERNELS
from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT
from tests.units.model.spread import spread_gpt

B, T, L, H, C, V, BLOCK = 2, 7, 3, 5, 20, 71, 11
GPT2 = {  # n_layer, n_head, n_embd, parameters
    "gpt2": (12, 12, 768, 124_439_808),
    "gpt2-medium": (24, 16, 1024, 354_823_168),
    "gpt2-large": (36, 20, 1280, 774_030_080),
    "gpt2-xl": (48, 25, 1600, 1_557_611_200),
}


def tokens():
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def loss_and_gradients(model, ids):
    model.zero_grad()
    loss = loss_of(model(ids), ids.roll(-1, dims=1))
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


# Sizes and initialisation


@pytest.mark.parametrize("name", GPT2)
def test_gpt2_sizes_have_gpt2s_parameter_counts(name):
    n_layer, n_head, n_embd, expected = GPT2[name]
    with torch.device("meta"):
        model = GPT(ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=1024), 50257)
    padding = (model.token_embedding.num_embeddings - 50257) * n_embd
    assert sum(parameter.numel() for parameter in model.parameters()) - padding == expected
    assert model.token_embedding.num_embeddings == 50304


@pytest.mark.parametrize(
    ("n_layer", "n_head", "n_embd", "vocab_size", "attention"),
    [(1, 2, 32, 65, "softmax"), *[(4, 4, 128, 256, attention) for attention in ATTENTION]],
)
def test_initial_loss_is_ln_v_and_what_the_tied_head_adds(n_layer, n_head, n_embd, vocab_size, attention):
    torch.manual_seed(0)
    config = ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=64, attention=attention)
    ids = torch.randint(vocab_size, (24, 65))
    with torch.no_grad():
        loss = loss_of(GPT(config, vocab_size)(ids[:, :-1]), ids[:, 1:])
    assert float(loss) == pytest.approx(math.log(vocab_size) + 0.0002 * n_embd, abs=0.05)


def test_initial_weights_are_gpt2s_with_residual_projections_scaled_by_depth():
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=8, n_head=4, n_embd=128, block_size=64), V)
    for name, parameter in model.state_dict().items():
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            assert float(parameter.std()) == pytest.approx(0.02 / math.sqrt(2 * 8), rel=0.03), name
        elif parameter.dim() == 2:
            assert float(parameter.std()) == pytest.approx(0.02, rel=0.03), name
            assert float(parameter.mean()) == pytest.approx(0, abs=0.001), name
        elif "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        else:
            assert (parameter == 0).all(), name


# Recomputed activations


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_activation_checkpointing_changes_no_loss_and_no_gradient(dropout, kernel):
    results = []
    for checkpointed in (False, True):
        sizes = {"vocab_size": V, "n_layer": L, "n_head": H, "n_embd": C, "block_size": BLOCK}
        model = spread_gpt(**sizes, dropout=dropout, kernel=kernel, checkpoint_activations=checkpointed).train()
        torch.manual_seed(3)
        results.append(loss_and_gradients(model, tokens()))
    (loss, grads), (twin_loss, twin_grads) = results
    assert loss.equal(twin_loss)
    assert all(grad.equal(twin_grads[name]) for name, grad in grads.items())
