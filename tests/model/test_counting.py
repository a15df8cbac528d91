"""Operations and bytes are counted from the model: what GPT-2's formulas say for GPT-2, and right for the others."""

import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minigpt.attention.constants import causal_bias
from minigpt.attention.masks import find_documents
from minigpt.config.schema import ModelConfig
from minigpt.model.counting import activation_bytes, flops_per_token
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss, weighted_loss_sum

SIZES = {"n_layer": 3, "n_head": 2, "n_embd": 64, "block_size": 48}
GPT2_124M = ModelConfig(n_layer=12, n_head=12, n_embd=768, block_size=1024)
V = 192


def formula(config, vocab_size):
    """PaLM, appendix B: 6 per matrix weight, 12 L C T for attention."""
    matrices = 12 * config.n_layer * config.n_embd**2 + -(-vocab_size // 64) * 64 * config.n_embd
    return 6.0 * matrices + 12.0 * config.n_layer * config.n_embd * config.block_size


@pytest.mark.parametrize(("config", "vocab_size"), [(ModelConfig(**SIZES), V), (GPT2_124M, 50257)])
def test_operations_of_gpt2_are_those_of_the_formula(config, vocab_size):
    assert flops_per_token(config, vocab_size) == pytest.approx(formula(config, vocab_size), rel=1e-3)


@pytest.mark.parametrize("attention", ["softmax", "rotary", "linear"])
def test_operations_are_those_of_a_real_step_of_all_layers(attention):
    config = ModelConfig(**SIZES, attention=attention)
    gpt, tokens = GPT(config, V, kernel="explicit"), torch.zeros(2, 48, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        next_token_loss(gpt, tokens, tokens).backward()
    assert flops_per_token(config, V) == pytest.approx(counter.get_total_flops() / (2 * 48), rel=1e-3)


def test_linear_attention_does_not_pay_for_the_square_and_checkpointing_is_not_counted_twice():
    long = {"n_layer": 3, "n_head": 2, "n_embd": 64, "block_size": 2048}
    linear, softmax = (flops_per_token(ModelConfig(**long, attention=name), V) for name in ("linear", "softmax"))
    assert linear < 0.3 * softmax
    assert softmax == pytest.approx(formula(ModelConfig(**long), V), rel=1e-3)
    checkpointed = ModelConfig(**SIZES, checkpoint_activations=True, dropout=0.2)
    assert flops_per_token(checkpointed, V) == flops_per_token(ModelConfig(**SIZES), V)


def saved_bytes(config, *, precision, kernel, masked=False):
    """What a forward pass of two more sequences keeps for the backward pass, on real tensors."""
    totals = []
    for batch in (1, 3):
        torch.manual_seed(0)
        gpt, saved = GPT(config, V, kernel=kernel), {}

        def save(tensor, saved=saved):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        tokens = torch.zeros(batch, config.block_size, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), autocast("cpu", precision):
            documents = [torch.ones(tokens.shape), find_documents(tokens, 0)] if masked else []
            loss = (weighted_loss_sum if masked else next_token_loss)(gpt, tokens, tokens, *documents)
        loss.backward()
        totals.append(sum(saved.values()))
    return (totals[1] - totals[0]) / 2


@pytest.mark.parametrize("kernel", ["explicit", "fused"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["softmax", "rotary", "linear"])
@pytest.mark.parametrize("masked", [False, True])
def test_activations_are_what_real_tensors_take_and_the_way_back(attention, precision, kernel, masked):
    config = ModelConfig(**SIZES, attention=attention)
    counted = activation_bytes(config, V, precision=precision, kernel=kernel, masked=masked)
    saved = saved_bytes(config, precision=precision, kernel=kernel, masked=masked)
    assert saved < counted < 1.1 * (saved + saved / 3) + 8 * 48 * V  # one more block of three, and the logits twice


def test_checkpointing_keeps_the_blocks_inputs_and_one_block():
    whole = activation_bytes(ModelConfig(**SIZES), V, precision="bf16", kernel="fused")
    less = activation_bytes(ModelConfig(**SIZES, checkpoint_activations=True), V, precision="bf16", kernel="fused")
    two = activation_bytes(ModelConfig(**SIZES | {"n_layer": 2}), V, precision="bf16", kernel="fused")
    assert less == whole - 3 * (whole - two) + 3 * 4 * 48 * 64


def test_counting_the_124m_model_takes_half_a_second_at_most_and_leaves_only_real_constants():
    started = time.process_time()
    activation_bytes(GPT2_124M, 50257, precision="bf16", kernel="explicit")
    flops_per_token(GPT2_124M, 50257)
    assert time.process_time() - started < 1.0  # both, and with what PyTorch makes at first use
    bias = causal_bias(1024, 1024, torch.device("cpu"), torch.float32)
    assert type(bias) is torch.Tensor
    assert float(bias[0, 0]) == 0
