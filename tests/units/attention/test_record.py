"""Recording looks at a model without touching it: same bits, and the weights that the output is made of."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from minigpt.attention.layers import ATTENTION, KERNELS
from minigpt.attention.record import record_attention
from tests.units.model.spread import spread_gpt

B, T, L, H, C, V, BLOCK = 2, 5, 4, 3, 12, 71, 9
make = partial(spread_gpt, vocab_size=V, std=0.3, n_layer=L, n_head=H, n_embd=C, block_size=BLOCK)
NAMES = [f"blocks.{layer}.attention" for layer in range(L)]


def tokens(T=T):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("kernel", KERNELS)
def test_recording_beside_a_cache_changes_no_logits_and_shows_the_cached_keys(attention, kernel):
    model = make(attention=attention, kernel=kernel)
    ids = tokens(7)

    @torch.no_grad()
    def read(record):
        cache = model.new_cache(B)
        logits, rows = [], []
        for part in ids.split([4, 1, 2], dim=1):
            with record_attention(model) if record else nullcontext() as recorded:
                logits.append(model(part, cache=cache))
            rows.append(recorded)
        return torch.cat(logits, dim=1), rows

    logits, rows = read(record=True)
    assert logits.equal(read(record=False)[0])
    with record_attention(model) as whole:
        model(ids)
    assert list(whole) == NAMES
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


def test_a_model_without_attention_is_refused_by_name():
    with (
        pytest.raises(ValueError, match="got Linear without a layer that states its weights"),
        record_attention(nn.Linear(2, 3)),
    ):
        pass
