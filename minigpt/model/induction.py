"""`model.init=induction`: initial weights with which a model copies from its context from the first step on.

A text that said "Ada Lovelace" and now says "Ada" probably goes on with "Lovelace". Two attention heads find that out:

    first block    a head attends to the previous token and writes into the stream which one it is
    second block   the induction head attends to places whose previous token equals the current token, and makes the
                   token that stands there more likely

A model with random weights learns both late, and then suddenly. This one begins with them. Nothing is frozen, and
checkpoints and exports hold the same tensors. docs/RECIPES.md says what it gains.

Source: Olsson et al. 2022, "In-context Learning and Induction Heads"; these weights are our own.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from minigpt.attention.rotary import angles, turn

if TYPE_CHECKING:
    from minigpt.model.gpt import GPT

LOGIT = 10.0  # of the token whose embedding fills the stream, at any width
GAIN = 0.5  # scale of the matrices
FAST = 1 / 3  # share of the rotary pairs, the fastest, that tell neighbours apart


@torch.no_grad()
def add_induction_head(gpt: "GPT") -> None:
    """Set the embeddings and the first head of the first two blocks of a GPT with rotary positions.

    Some dimensions of the residual stream get a meaning: the first is the same for all tokens, the next n identify the
    token, and the next n, 0 in the embeddings, the previous token. The first block writes only the latter at first.
    All other weights are random.
    """
    blocks: Any = gpt.blocks
    C, D = gpt.config.n_embd, blocks[0].attention.head_dim
    n = 2 * (min(D // 2, C // 2 - 1) // 2)
    stream = torch.eye(C)
    common, token, previous = stream[0], stream[1 : 1 + n], stream[1 + n : 1 + 2 * n]

    table = nn.init.normal_(gpt.token_embedding.weight, std=LOGIT / C)
    table[:, 0], table[:, 1 + n : 1 + 2 * n] = LOGIT / C**0.5, 0.0  # the first as long as all the rest
    if gpt.output is not None:  # the output layer recognises what the induction head copies: an embedding
        gpt.output.weight.copy_(table)

    # All queries are alike, and so are all keys; turned by their positions, they agree best at a distance of 1.
    number, pair = torch.arange(D), torch.arange(D) % (D // 2)
    query = ((number < D // 2) & (pair < FAST * D / 2)).float()
    key = turn(query, *angles(torch.tensor(1), D, query.dtype, gpt.config.rope_theta))
    for weight in (blocks[0].attention.out.weight, blocks[0].mlp.down.weight):
        nn.init.zeros_(weight)
    value, out = rows(number < n, token), rows(number < n, previous)
    set_first_head(blocks[0].attention, query.outer(common), key.outer(common), value, out)

    # Tokens are compared in the slowest pairs: over a hundred tokens their distance hardly matters.
    slow, copied = pair >= (D - n) / 2, rows(number < C, stream[-D:])
    set_first_head(blocks[1].attention, rows(slow, token), rows(slow, previous), copied, copied)


def rows(which: Tensor, vectors: Tensor) -> Tensor:
    """Return a matrix (D, C) whose rows `which` (D,) are the vectors (n, C), the others 0."""
    matrix = torch.zeros(len(which), vectors.shape[1])
    matrix[which] = vectors
    return matrix


def set_first_head(attention: Any, query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> None:
    """Set what the first head reads as query, key and value, and where it writes; (D, C) each."""
    H, G, D = attention.n_head, attention.n_kv_head, attention.head_dim
    heads = attention.qkv.weight.view(H + 2 * G, D, -1)
    heads[0], heads[H], heads[H + G] = GAIN * query, GAIN * key, GAIN * value
    attention.out.weight[:, :D] = GAIN * out.T
