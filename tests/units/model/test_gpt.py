"""The GPT: GPT-2's architecture, sizes and initialisation, and nanoGPT's numbers."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from minigpt.attention.layers import ATTENTION, KERNELS
from minigpt.attention.masks import padding_mask
from minigpt.config.convert import from_dict
from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT

ROOT = Path(__file__).parents[2]

B, T, L, H, C, V, BLOCK = 2, 7, 3, 5, 20, 71, 11
GPT2 = {  # n_layer, n_head, n_embd, parameters
    "gpt2": (12, 12, 768, 124_439_808),
    "gpt2-medium": (24, 16, 1024, 354_823_168),
    "gpt2-large": (36, 20, 1280, 774_030_080),
    "gpt2-xl": (48, 25, 1600, 1_557_611_200),
}


def make(*, kernel="fused", spread=True, seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    sizes = {"n_layer": L, "n_head": H, "n_embd": C, "block_size": BLOCK}
    model = GPT(ModelConfig(**(sizes | options)), V, kernel=kernel)
    if spread:  # away from the initialisation: biases that aren't 0, attention that isn't even
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.15 * torch.randn_like(parameter)
    return model.to(dtype)


def tokens(B=B, T=T, seed=1):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def loss_and_gradients(model, ids, **arguments):
    model.zero_grad()
    loss = loss_of(model(ids, **arguments), ids.roll(-1, dims=1))
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
    [
        (1, 2, 32, 65, "softmax"),
        (6, 6, 384, 2048, "softmax"),
        (1, 12, 768, 5000, "softmax"),
        *[(4, 4, 128, 256, attention) for attention in ATTENTION],
    ],
)
def test_initial_loss_is_ln_v_and_what_the_tied_head_adds(n_layer, n_head, n_embd, vocab_size, attention):
    torch.manual_seed(0)
    config = ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=64, attention=attention)
    ids = torch.randint(vocab_size, (24, 65))
    with torch.no_grad():
        loss = loss_of(GPT(config, vocab_size)(ids[:, :-1]), ids[:, 1:])
    assert float(loss) == pytest.approx(math.log(vocab_size) + 0.0002 * n_embd, abs=0.05)


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "model").glob("*.yaml")), ids=lambda file: file.stem)
def test_initial_loss_of_every_shipped_size(file):
    torch.manual_seed(0)
    config = from_dict(ModelConfig, OmegaConf.to_container(OmegaConf.load(file)))
    config.n_layer, config.block_size = 1, 32  # neither is in the formula; the widths are the shipped ones
    with torch.no_grad():
        logits = GPT(config, 2000)(torch.randint(2000, (8, 32)))
    loss = (logits.logsumexp(dim=-1) - logits.mean(dim=-1)).mean()  # over all targets: no noise from drawing a few
    assert float(loss) == pytest.approx(math.log(2000) + 0.0002 * config.n_embd, abs=0.05)


def test_initial_weights_are_gpt2s_with_residual_projections_scaled_by_depth():
    model = make(n_layer=8, n_head=4, n_embd=128, block_size=64, spread=False)
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


def test_padding_rows_never_reach_the_logits():
    model = make()
    assert model.token_embedding.num_embeddings == 128
    logits, (loss, _) = model(tokens()), loss_and_gradients(model, tokens())
    assert logits.shape == (B, T, V)
    with torch.no_grad():
        model.token_embedding.weight[V:] = 1e4
    assert model(tokens()).equal(logits)
    again, grads = loss_and_gradients(model, tokens())
    assert again.equal(loss)
    assert (grads["token_embedding.weight"][V:] == 0).all()


# nanoGPT's model


def twin_logits(weights, ids, n_layer, n_head):
    """nanoGPT's model once more, from its description: functions of a dictionary of weights, nothing shared."""

    def linear(x, name):
        y = x @ weights[name + ".weight"].T
        return y + weights[name + ".bias"] if name + ".bias" in weights else y

    def norm(x, name):
        centred = x - x.mean(dim=-1, keepdim=True)
        y = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weights[name + ".weight"]
        return y + weights[name + ".bias"] if name + ".bias" in weights else y

    T = ids.shape[1]
    x = weights["token_embedding.weight"][ids] + weights["position_embedding.weight"][:T]
    for layer in range(n_layer):
        block = f"blocks.{layer}."
        q, k, v = linear(norm(x, block + "norm_1"), block + "attention.qkv").tensor_split(3, dim=-1)
        D = q.shape[-1] // n_head
        heads = []
        for h in range(n_head):
            part = slice(h * D, (h + 1) * D)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(D)
            scores = scores + torch.full((T, T), -math.inf).triu(1)
            heads.append(torch.softmax(scores, dim=-1) @ v[..., part])
        x = x + linear(torch.cat(heads, dim=-1), block + "attention.out")
        hidden = linear(norm(x, block + "norm_2"), block + "mlp.up")
        x = x + linear(hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))), block + "mlp.down")
    return norm(x, "final_norm") @ weights["token_embedding.weight"].T


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_logits_and_gradients_equal_a_twin_of_nanogpts_model(bias, kernel):
    model = make(bias=bias, activation="gelu", kernel=kernel)
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    ids = tokens()
    logits, expected = model(ids), twin_logits(weights, ids, L, H)[..., :V]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    grads = torch.autograd.grad(loss_of(expected, ids.roll(-1, dims=1)), list(weights.values()))
    ours = loss_and_gradients(model, ids)[1]
    for (name, grad), twin_grad in zip(ours.items(), grads, strict=True):
        torch.testing.assert_close(grad, twin_grad, rtol=0, atol=1e-5, msg=name)


# Two ways, the same numbers


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("masked", [False, True])
def test_explicit_equals_fused_in_value_and_gradient_through_the_whole_gpt(attention, masked):
    mask = padding_mask(torch.tensor([3, T]), T, side="left") if masked else None
    explicit = make(kernel="explicit", dtype=torch.float64, attention=attention)
    fused = make(kernel="fused", dtype=torch.float64, attention=attention)
    torch.testing.assert_close(explicit(tokens(), mask=mask), fused(tokens(), mask=mask), rtol=0, atol=1e-11)
    (loss, grads), (twin_loss, twin_grads) = (loss_and_gradients(m, tokens(), mask=mask) for m in (explicit, fused))
    torch.testing.assert_close(loss, twin_loss, rtol=0, atol=1e-12)
    for name, grad in grads.items():
        assert grad.isfinite().all()
        torch.testing.assert_close(grad, twin_grads[name], rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_activation_checkpointing_changes_no_loss_and_no_gradient(dropout, kernel, masked):
    mask = padding_mask(torch.tensor([3, T]), T, side="left") if masked else None
    results = []
    for checkpointed in (False, True):
        model = make(dropout=dropout, kernel=kernel, checkpoint_activations=checkpointed).train()
        torch.manual_seed(3)
        results.append(loss_and_gradients(model, tokens(), mask=mask))
    (loss, grads), (twin_loss, twin_grads) = results
    assert loss.equal(twin_loss)
    assert all(grad.equal(twin_grads[name]) for name, grad in grads.items())


# Positions and padding


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=12)
@given(lengths=st.lists(st.integers(1, T), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_a_left_padded_batch_gives_each_prompt_its_logits_as_if_alone(attention, kernel, lengths, seed):
    model = make(attention=attention, kernel=kernel, dtype=torch.float64, n_layer=2).eval()
    width = max(lengths)
    prompts = [tokens(1, length, seed=seed + length)[0] for length in lengths]
    batch = torch.stack([F.pad(prompt, (width - len(prompt), 0), value=3) for prompt in prompts])
    starts = torch.tensor([width - length for length in lengths])
    positions = (torch.arange(width) - starts[:, None]).clamp(min=0)
    logits = model(batch, positions=positions, mask=padding_mask(torch.tensor(lengths), width, side="left"))
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(logits[row, starts[row] :], model(prompt[None])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("attention", "qk_norm", "meant"),
    [
        ("softmax", "auto", None),
        ("rotary", "auto", "layernorm"),  # what rotary meant before the norm had a setting of its own
        ("rotary", "none", None),
        ("softmax", "layernorm", "layernorm"),
        ("softmax", "rmsnorm", "rmsnorm"),
        ("rotary", "rmsnorm", "rmsnorm"),
        ("linear", "auto", None),
    ],
)
def test_queries_and_keys_are_normalised_if_so_chosen(attention, qk_norm, meant):
    model = make(attention=attention, qk_norm=qk_norm, bias=False, dtype=torch.float64)
    before = model(tokens())
    weights = model.state_dict().keys() - make(attention=attention, bias=False).state_dict().keys()
    assert len(weights) == (2 * L if meant == "rmsnorm" else 0)  # a weight for queries and one for keys
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight[: 2 * C] *= 30  # a norm takes this back
    assert ((model(tokens()) - before).abs().max() < 1e-2) == (meant is not None)


# The registries


def test_a_token_never_sees_the_future():
    model, ids = make().eval(), tokens()
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % V
    same = (model(ids) == model(changed)).all(dim=-1).all(dim=0)
    assert same.tolist() == [t < 4 for t in range(T)]
