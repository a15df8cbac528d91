"""Recording looks at a model without touching it: same bits, and the weights that the output is made of."""

import inspect
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from minigpt.attention.layers import ATTENTION, KERNELS, CrossAttention
from minigpt.attention.masks import padding_mask
from minigpt.attention.record import record_attention
from minigpt.config.schema import ModelConfig, TrainerConfig
from minigpt.model import gpt
from minigpt.model.gpt import GPT

B, T, L, H, C, V, BLOCK = 2, 5, 4, 3, 12, 71, 9
NAMES = [f"blocks.{layer}.attention" for layer in range(L)]

every_attention = pytest.mark.parametrize("attention", ATTENTION)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def make(attention="softmax", kernel="fused", **options):
    torch.manual_seed(0)
    config = ModelConfig(n_layer=L, n_head=H, n_embd=C, block_size=BLOCK, attention=attention, **options)
    model = GPT(config, V, kernel=kernel).eval()
    for parameter in model.parameters():  # weights that make attention uneven
        nn.init.normal_(parameter, std=0.3)
    return model


def tokens(T=T):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))


@every_attention
@every_kernel
def test_logits_inside_and_outside_the_recording_are_bit_identical(attention, kernel):
    model = make(attention, kernel)
    mask = padding_mask(torch.tensor([2, 5]), T, side="left")
    for arguments in ({}, {"mask": mask}):
        before = model(tokens(), **arguments)
        with record_attention(model) as recorded:
            inside = model(tokens(), **arguments)
        after = model(tokens(), **arguments)
        assert inside.equal(before)
        assert after.equal(before)
        assert list(recorded) == NAMES


@every_attention
@every_kernel
def test_training_with_dropout_inside_the_recording_is_bit_identical(attention, kernel):
    for options in ({}, {"checkpoint_activations": True}):
        model = make(attention, kernel, dropout=0.3, **options).train()

        def step(model=model):
            torch.manual_seed(2)
            model.zero_grad()
            logits = model(tokens())
            logits.square().sum().backward()
            return [logits, *(parameter.grad.clone() for parameter in model.parameters())]

        outside = step()
        with record_attention(model) as recorded:
            inside = step()
        assert all(a.equal(b) for a, b in zip(outside, inside, strict=True))
        assert not any(weights.requires_grad for weights in recorded.values())


@every_attention
@every_kernel
def test_weights_above_the_diagonal_are_zero_and_rows_sum_to_one(attention, kernel):
    model = make(attention, kernel)
    with record_attention(model) as recorded:
        model(tokens())
    for weights in recorded.values():
        assert weights.shape == (B, H, T, T)
        assert (weights.triu(1) == 0).all()
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, H, T))
        assert weights.std(dim=1).max() > 0.01  # the heads differ


@every_attention
def test_padded_columns_get_no_weight_and_rows_of_padding_nothing(attention):
    model = make(attention)
    with record_attention(model) as recorded:
        model(tokens(), mask=padding_mask(torch.tensor([2, 5]), T, side="left"))
    for weights in recorded.values():
        assert (weights[0, :, :, :3] == 0).all()
        assert (weights[0, :, :3] == 0).all()
        torch.testing.assert_close(weights[0, :, 3:].sum(dim=-1), torch.ones(H, 2))


@every_attention
@every_kernel
def test_recording_beside_a_cache_changes_no_logits_and_shows_the_cached_keys(attention, kernel):
    model = make(attention, kernel)
    ids = tokens(7)

    @torch.no_grad()
    def read(record):
        cache = model.new_cache(B)
        logits, rows = [], []
        for part in ids.split([4, 1, 2], dim=1):
            if record:
                with record_attention(model) as recorded:
                    logits.append(model(part, cache=cache))
                rows.append(recorded)
            else:
                logits.append(model(part, cache=cache))
        return torch.cat(logits, dim=1), rows

    logits, rows = read(record=True)
    assert logits.equal(read(record=False)[0])
    with record_attention(model) as whole:
        model(ids)
    assert [part[NAMES[0]].shape for part in rows] == [(B, H, 4, 4), (B, H, 1, 5), (B, H, 2, 7)]
    for name in NAMES:
        start = 0
        for part in rows:
            t, s = part[name].shape[-2:]
            torch.testing.assert_close(part[name], whole[name][:, :, start : start + t, :s])
            start += t


def test_the_latest_forward_pass_is_kept_and_the_hooks_are_gone_afterwards():
    model = make()
    with record_attention(model) as recorded:
        model(tokens())
        first = recorded[NAMES[0]]
        model(tokens(3))
    assert recorded[NAMES[0]].shape == (B, H, 3, 3)
    model(tokens())
    assert recorded[NAMES[0]].shape == (B, H, 3, 3)
    assert first.shape == (B, H, T, T)
    with pytest.raises(RuntimeError, match="stop"), record_attention(model):
        raise RuntimeError("stop")
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_model_carries_no_flag_for_it():
    assert not any(word in inspect.getsource(gpt) for word in ("record", ".weights(", "return_weights", "need_weights"))


def test_a_new_variant_is_one_class_and_one_dictionary_entry(monkeypatch):
    class Mean(nn.Module):
        """Every token hears the mean of the past."""

        def __init__(self, n_embd, n_head, *, bias=True, **others):
            super().__init__()
            self.out = nn.Linear(n_embd, n_embd, bias=bias)

        def forward(self, x, mask=None, cache=None, angles=None):
            return self.out(self.weights(x)[:, 0] @ x)

        def weights(self, x, mask=None, cache=None, angles=None):
            past = torch.ones(x.shape[0], 1, x.shape[1], x.shape[1]).tril()
            return past / past.sum(dim=-1, keepdim=True)

    monkeypatch.setitem(ATTENTION, "mean", Mean)
    model = make("mean")
    with record_attention(model) as recorded:
        assert model(tokens()).shape == (B, T, V)
    assert recorded[NAMES[0]][1, 0, 3].tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]


def test_the_names_of_variants_and_kernels_are_those_that_the_config_offers():
    offered = get_type_hints(ModelConfig)["attention"], get_type_hints(TrainerConfig)["attention_kernel"]
    assert get_args(offered[0]) == tuple(ATTENTION)
    assert set(get_args(offered[1])) == {"auto", *KERNELS}


def test_cross_attention_is_recorded_with_its_context():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.look = CrossAttention(C, H, 10)

        def forward(self, x, context):
            return self.look(x, context, mask=padding_mask(torch.tensor([7, 4]), 7))

    torch.manual_seed(0)
    model = Reader()
    with record_attention(model) as recorded:
        model(torch.randn(B, T, C), torch.randn(B, 7, 10))
    assert recorded["look"].shape == (B, H, T, 7)
    assert (recorded["look"][1, ..., 4:] == 0).all()


def test_a_model_without_attention_is_refused_by_name():
    with (
        pytest.raises(ValueError, match="got Linear without a layer that states its weights"),
        record_attention(nn.Linear(2, 3)),
    ):
        pass
