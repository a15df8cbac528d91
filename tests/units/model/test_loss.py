"""The loss as a mean, and as a weighted sum of the targets' losses."""

import torch
import torch.nn.functional as F
from torch import nn

from minigpt.model.loss import next_token_loss, weighted_loss_sum

B, T, V = 3, 5, 11


def some(seed=0):
    torch.manual_seed(seed)
    return nn.Embedding(V, V, dtype=torch.float64), torch.randint(V, (B, T)), torch.randint(V, (B, T))


def test_weights_of_one_give_the_sum_and_zeros_hide_a_target():
    gpt, tokens, targets = some()
    whole = weighted_loss_sum(gpt, tokens, targets, torch.ones(B, T))
    torch.testing.assert_close(whole / (B * T), next_token_loss(gpt, tokens, targets))
    weights = torch.zeros(B, T)
    weights[1, 2], weights[2, 4] = 1.0, 0.5
    nats = -F.log_softmax(gpt(tokens), dim=-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(weighted_loss_sum(gpt, tokens, targets, weights), nats[1, 2] + 0.5 * nats[2, 4])
    weighted_loss_sum(gpt, tokens, targets, weights).backward()
    touched = (gpt.weight.grad.abs().sum(dim=-1) > 0).nonzero().flatten().tolist()
    assert touched == sorted({int(tokens[1, 2]), int(tokens[2, 4])})
