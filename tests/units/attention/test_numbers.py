"""One sentence of eight tokens, worked out to four decimals, through all four ways to compute it."""

import pytest
import torch

from minigpt.attention.functional import attention_weights, explicit_attention, fused_attention
from minigpt.attention.layers import SelfAttention

Q1 = [1.0321, 1.3501, 1.6555]
SCORES1 = [-0.0879, 4.3783, 1.7863, 1.0502, -2.4988, -1.9530, 1.7863, -1.0434]
WEIGHTS1 = [0.0432, 0.5687, 0.1273, 0.0832, 0.0107, 0.0147, 0.1273, 0.0249]
CONTEXT1 = [0.2593, 0.5718, 1.0390, 0.9041]


def sentence():
    ids = torch.tensor([0, 6, 2, 7, 5, 4, 2, 3])
    torch.manual_seed(123)
    x = torch.nn.Embedding(8, 2)(ids).detach()
    torch.manual_seed(123)
    W_q, W_k, W_v = torch.rand(3, 2), torch.rand(3, 2), torch.rand(4, 2)
    return x, W_q, W_k, W_v


def rounded(tensor):
    return pytest.approx(tensor.tolist(), abs=5.1e-5)


def test_the_sentence_is_the_one_the_numbers_were_made_with():
    x, W_q, W_k, _ = sentence()
    assert rounded(x[1]) == [0.1794, 1.8951]
    q, k = x @ W_q.T, x @ W_k.T
    assert rounded(q[1]) == Q1
    assert rounded(q[1] @ k.T) == SCORES1


def test_numbers_come_out_of_attention_weights():
    x, W_q, W_k, _ = sentence()
    assert rounded(attention_weights(x @ W_q.T, x @ W_k.T)[1]) == WEIGHTS1


def test_numbers_come_out_of_explicit_attention():
    x, W_q, W_k, W_v = sentence()
    out, weights = explicit_attention(x @ W_q.T, x @ W_k.T, x @ W_v.T)
    assert rounded(weights[1]) == WEIGHTS1
    assert rounded(out[1]) == CONTEXT1


def test_numbers_come_out_of_fused_attention():
    x, W_q, W_k, W_v = sentence()
    assert rounded(fused_attention(x @ W_q.T, x @ W_k.T, x @ W_v.T)[1]) == CONTEXT1


def test_numbers_come_out_of_self_attention_with_these_weights_loaded():
    x, W_q, W_k, W_v = sentence()
    layer = SelfAttention(d_in=2, d_k=3, d_v=4)
    layer.load_state_dict({"W_q.weight": W_q, "W_k.weight": W_k, "W_v.weight": W_v})
    out, weights = layer(x)
    assert out.shape == (8, 4)
    assert weights.shape == (8, 8)
    assert rounded(weights[1]) == WEIGHTS1
    assert rounded(out[1]) == CONTEXT1
