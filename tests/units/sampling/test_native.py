"""A token's step as native code against its readable twin, the model: the same logits, the same cache."""

from dataclasses import fields
from functools import partial

import pytest
import torch
import torch.nn as nn

from minigpt.config.schema import ModelConfig
from minigpt.sampling.native import decoder as native_module
from minigpt.sampling.native import library as native_library
from minigpt.sampling.native.decoder import NativeDecoder, native_decoder, round_to_int8, to_int8
from minigpt.sampling.native.library import NoNativeCode, build, find_compiler, library
from tests.units.model.spread import spread_gpt

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
V, BLOCK_SIZE = 71, 19
gpt = partial(spread_gpt, vocab_size=V, std=0.1, n_layer=2, n_embd=24, n_head=2, block_size=BLOCK_SIZE)
# Widths and head widths that are whole vectors, and that are not.
SIZES = [{"n_embd": 24, "n_head": 2}, {"n_embd": 66, "n_head": 3}, {"n_embd": 128, "n_head": 4}]


def assert_same(decoder, model, prompts, steps):
    """Logits differ by 1e-5 of the greatest logit at most, and what the caches hold by 1e-4."""
    logits, held, greatest = 0.0, 0.0, 0.0
    ours, twins = model.new_cache(len(prompts)), model.new_cache(len(prompts))
    longest = max(map(len, prompts))
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    for cache in (ours, twins):
        model(padded, cache=cache)
        cache.set_lengths([len(prompt) for prompt in prompts])
    tokens = torch.arange(len(prompts))[:, None]
    for _ in range(steps):
        got, wanted = decoder(tokens, ours), model(tokens, cache=twins)[:, 0].float()
        logits, greatest = max(logits, float((got - wanted).abs().max())), max(greatest, float(wanted.abs().max()))
        assert ours.lengths == twins.lengths
        for row, length in enumerate(ours.lengths):
            for one, other in ((ours.keys, twins.keys), (ours.values, twins.values)):
                difference = one[:, row, :, :length].float() - other[:, row, :, :length].float()
                held = max(held, float(difference.abs().max()))
        tokens = wanted.argmax(-1, keepdim=True)
    assert logits / greatest < 1e-5
    assert held < 1e-4


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("attention", native_module.ATTENTIONS)
@pytest.mark.parametrize(  # test_block.py has all values
    ("bias", "activation", "qk_norm"), [(True, "gelu", "none"), (False, "swiglu", "layernorm")]
)
@torch.inference_mode()
def test_the_native_step_is_the_models(sizes, attention, bias, activation, qk_norm):
    model = gpt(bias=bias, activation=activation, attention=attention, qk_norm=qk_norm, **sizes)
    assert_same(native_decoder(model), model, [[3, 1, 4]], BLOCK_SIZE - 3)


@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (3, 2), (8, 1), (15, 3)])
@torch.inference_mode()
def test_rows_of_different_lengths_in_batches_of_every_size(rows, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = gpt()
    prompts = [[(7 * row + at) % V for at in range(1 + row % 5)] for row in range(rows)]
    assert_same(native_decoder(model), model, prompts, 6)


@pytest.mark.parametrize("sizes", SIZES)
@torch.inference_mode()
def test_in_int8_it_is_the_rounded_model(sizes):
    model = gpt(**sizes)
    round_to_int8(model)
    decoder = native_decoder(model, int8=True)
    assert decoder.weights == torch.int8
    assert_same(decoder, model, [[3, 1, 4], [5]], 9)


def test_int8_is_the_nearest_of_255_steps_and_rounding_twice_changes_nothing():
    weight = torch.randn(5, 33) * torch.tensor([[1e-3], [1.0], [40.0], [1e-9], [0.0]])
    numbers, scale = to_int8(weight)
    rounded = numbers * scale[:, None]
    assert (rounded - weight).abs().max(dim=1).values.le(scale * 0.5001).all()
    again, scale_again = to_int8(rounded)
    assert torch.equal(again, numbers)
    assert torch.allclose(scale_again, scale, rtol=1e-6)


def test_a_model_that_it_does_not_know_keeps_its_own_step(monkeypatch):
    with pytest.raises(NoNativeCode, match="attention=linear"):
        native_decoder(gpt(attention="linear"))
    with pytest.raises(NoNativeCode, match="float64"):
        native_decoder(gpt(dtype=torch.float64))
    with pytest.raises(NoNativeCode, match="got meta"):
        native_decoder(gpt().to("meta"))
    monkeypatch.delitem(native_module.ACTIVATIONS, "gelu")  # as if it came later
    native_decoder(gpt())
    with pytest.raises(NoNativeCode, match="activation=gelu"):
        native_decoder(gpt(activation="gelu"))


def test_every_setting_of_the_model_is_followed_or_refused():
    """A new one comes to decode.cpp with the shapes or the angles, or `WORDS` names it, or it must be refused."""
    by_shape = {"n_layer", "n_head", "n_kv_head", "head_dim", "n_embd", "n_hidden", "block_size", "bias", "tied"}
    by_angles = {"rope_theta", "rope_scaling", "rope_factor", "rope_low_freq_factor", "rope_high_freq_factor"}
    by_angles |= {"rope_original_context"}
    of_training = {"dropout", "checkpoint_activations", "init"}
    known = {*native_module.WORDS, *by_shape, *by_angles, "norm_eps", *of_training}
    assert {field.name for field in fields(ModelConfig)} == known


def test_a_model_that_computes_something_else_is_noticed():
    model = gpt()
    model.blocks[0].mlp.activation = nn.ReLU()
    with pytest.raises(NoNativeCode, match="differ by"):
        native_decoder(model)
    model = gpt()
    with torch.no_grad():
        model.blocks[1].mlp.up.weight[3, 2] = torch.nan
    with pytest.raises(NoNativeCode, match="differ by nan"):
        native_decoder(model)


def test_calls_that_would_reach_outside_are_refused():
    model = gpt()
    decoder = NativeDecoder(model)
    for token in (-1, V, 2**40):
        with pytest.raises(AssertionError, match="a token outside"):
            decoder(torch.tensor([[token]]), model.new_cache(1))
    full = model.new_cache(1)
    full.set_lengths([BLOCK_SIZE])
    with pytest.raises(AssertionError, match="full"):
        decoder(torch.tensor([[1]]), full)
    with pytest.raises(AssertionError):
        decoder(torch.ones(2, 1, dtype=torch.int64), model.new_cache(1))


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that we write: a shell script. A process builds once; here each test is the first."""
    native_library.library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def script(text):
        (tmp_path / "compiler").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "compiler").chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "compiler"))

    yield script
    native_library.library.cache_clear()


HONEST = 'echo called >> "$0.log"; for last; do :; done; echo "$@" > "$last"'  # writes its arguments after -o


def test_it_is_built_once_for_a_compiler_and_a_source_with_the_flags_that_work(compiler, tmp_path, monkeypatch):
    compiler(f'case "$*" in *-fopenmp*|*-march*) echo no such flag >&2; exit 1;; esac\n{HONEST}')
    first = build(tmp_path)
    assert "-mcpu=native" in first.read_text()
    assert build(tmp_path) == first
    assert (tmp_path / "compiler.log").read_text() == "called\n"
    changed = tmp_path / "decode.cpp"
    changed.write_text("int main;")
    monkeypatch.setattr(native_library, "SOURCE", changed)
    assert build(tmp_path) != first


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('echo "decode.cpp: this is no C++" >&2; exit 1', r"compiler can't compile decode.cpp: decode.cpp: this is no"),
        ("exec sleep 60", "TimeoutExpired"),
        (HONEST, "OSError"),  # what it wrote is no library
    ],
)
def test_why_it_can_not_be_built_is_told(compiler, monkeypatch, script, says):
    compiler(script)
    if "sleep" in script:
        monkeypatch.setattr(native_library, "COMPILER_SECONDS", 0.2)
    with pytest.raises(NoNativeCode, match=says):
        library()
