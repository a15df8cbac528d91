"""An encoder and a decoder, built from the layers of minigpt/attention and trained by ONE optimizer to reverse words.

    python docs/examples/encoder_decoder.py

The encoder reads a word in both directions; the decoder writes it backwards, letter by letter, looking at its own
letters so far (causal self-attention) and into the encoder's output (cross-attention). They differ in width, the
words differ in length. Words whose letters sum to a multiple of ten are never trained on: they are the test.
"""

import math
import time
from itertools import chain

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.layers import CausalSelfAttention, CrossAttention
from minigpt.attention.masks import padding_mask
from minigpt.model.gpt import MLP

LETTERS = 26  # tokens 0 .. 25
STOP = 26  # ends a word; it also stands before the first letter that the decoder writes
LONGEST = 12


class EncoderBlock(nn.Module):
    """Each letter looks at all letters of its word: cross-attention with the word itself as context."""

    def __init__(self, width: int, n_head: int):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CrossAttention(width, n_head, d_context=width)
        self.mlp = MLP(width, activation="gelu", dropout=0.0, bias=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        normed = self.norm_1(x)
        x = x + self.attention(normed, normed, padding)
        return x + self.mlp(self.norm_2(x))


class DecoderBlock(nn.Module):
    """Each letter looks back at the letters written so far, then at the encoder's."""

    def __init__(self, width: int, n_head: int, d_context: int):
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, n_head)
        self.cross = CrossAttention(width, n_head, d_context)
        self.mlp = MLP(width, activation="gelu", dropout=0.0, bias=True)

    def forward(self, x: Tensor, context: Tensor, padding: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        x = x + self.cross(self.norm_2(x), context, padding)
        return x + self.mlp(self.norm_3(x))


class Encoder(nn.Module):
    """Words (B, S) with their padding mask -> (B, S, width)."""

    def __init__(self, width: int = 48, n_head: int = 3, n_layer: int = 2):
        super().__init__()
        self.letters = nn.Embedding(LETTERS + 1, width)
        self.positions = nn.Embedding(LONGEST + 1, width)
        self.blocks = nn.ModuleList(EncoderBlock(width, n_head) for _ in range(n_layer))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        x = self.letters(words) + self.positions.weight[: words.shape[1]]
        for block in self.blocks:
            x = block(x, padding)
        return self.norm(x)


class Decoder(nn.Module):
    """Letters written so far (B, T) and the encoder's output -> logits of each next letter (B, T, LETTERS + 1)."""

    def __init__(self, width: int = 64, n_head: int = 4, n_layer: int = 2, d_context: int = 48):
        super().__init__()
        self.letters = nn.Embedding(LETTERS + 1, width)
        self.positions = nn.Embedding(LONGEST + 1, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, n_head, d_context) for _ in range(n_layer))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, LETTERS + 1)

    def forward(self, written: Tensor, context: Tensor, padding: Tensor) -> Tensor:
        x = self.letters(written) + self.positions.weight[: written.shape[1]]
        for block in self.blocks:
            x = block(x, context, padding)
        return self.head(self.norm(x))


def draw_words(count: int, *, unseen: bool, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random words of 3 to LONGEST letters.

    Returns:
        words (B, LONGEST + 1), each followed by STOP and filled up with STOP; the same reversed; lengths (B,) with
        one STOP counted.
    """
    letters = torch.randint(LETTERS, (12 * count, LONGEST), generator=generator)
    lengths = torch.randint(3, LONGEST + 1, (12 * count,), generator=generator)
    columns = torch.arange(LONGEST + 1)
    real = columns[:LONGEST] < lengths[:, None]
    held_out = (letters * real).sum(dim=1) % 10 == 0
    wanted = (held_out == unseen).nonzero().flatten()[:count]
    letters, lengths = letters[wanted], lengths[wanted]
    words = F.pad(letters, (0, 1)).masked_fill(columns >= lengths[:, None], STOP)
    backwards = words.gather(1, (lengths[:, None] - 1 - columns).clamp(min=0))
    return words, backwards.masked_fill(columns >= lengths[:, None], STOP), lengths + 1


def loss_of(encoder: Encoder, decoder: Decoder, words: Tensor, backwards: Tensor, lengths: Tensor) -> Tensor:
    """Teacher forcing: all letters at once, each predicted from the right ones before it."""
    padding = padding_mask(lengths, words.shape[1])
    shifted = F.pad(backwards[:, :-1], (1, 0), value=STOP)
    logits = decoder(shifted, encoder(words, padding), padding)
    real = padding[:, 0, 0]  # the letters and one STOP
    return F.cross_entropy(logits[real], backwards[real])


@torch.no_grad()
def reverse(encoder: Encoder, decoder: Decoder, words: Tensor, lengths: Tensor) -> Tensor:
    """Write each word backwards, one letter at a time, from the decoder's own letters. (B, LONGEST + 1)."""
    padding = padding_mask(lengths, words.shape[1])
    context = encoder(words, padding)
    written = torch.full((len(words), 1), STOP)
    for _ in range(LONGEST + 1):
        next_letter = decoder(written, context, padding)[:, -1].argmax(dim=-1)
        written = torch.cat([written, next_letter[:, None]], dim=1)
    written = written[:, 1:]
    after_stop = (written == STOP).cumsum(dim=1) > 0
    return written.masked_fill(after_stop, STOP)


def exactly_reversed(encoder: Encoder, decoder: Decoder, count: int, generator: torch.Generator) -> float:
    """The share of unseen words that come out reversed without one wrong letter."""
    words, backwards, lengths = draw_words(count, unseen=True, generator=generator)
    return (reverse(encoder, decoder, words, lengths) == backwards).all(dim=1).float().mean().item()


def train(steps: int = 600, batch: int = 64, seed: int = 0) -> tuple[Encoder, Decoder]:
    """Train both parts with one optimizer; print the loss now and then."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    encoder, decoder = Encoder(), Decoder()
    optimizer = torch.optim.AdamW(chain(encoder.parameters(), decoder.parameters()), lr=3e-3, weight_decay=0.01)
    warmup_steps = 50
    for step in range(1, steps + 1):
        rate = min(step / warmup_steps, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = 3e-3 * rate
        loss = loss_of(encoder, decoder, *draw_words(batch, unseen=False, generator=generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == 1:
            print(f"step {step:5}  loss {loss.item():.4f}", flush=True)
    return encoder, decoder


def main() -> None:
    """Train, then count."""
    torch.set_num_threads(1)  # at this size threads cost more than they bring
    start = time.perf_counter()
    encoder, decoder = train()
    share = exactly_reversed(encoder, decoder, 5000, torch.Generator().manual_seed(1))
    print(f"{100 * share:.2f} % of 5000 unseen words reversed exactly, after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
