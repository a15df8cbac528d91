"""The page's views of a model, as JSON: its choice of the next token, its attention, its surprise at a text."""

import base64
import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.attention.record import record_attention
from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.data.text import encode_documents
from minigpt.data.tokenizer import Tokenizer, utf8
from minigpt.evaluation.texts import score_text
from minigpt.faults import UserFault
from minigpt.sampling.generate import window_start
from minigpt.sampling.write import gpt_forward

MOST_LIKELY = 40  # tokens that are named
MAX_SCORED = 4096  # tokens of a text that is scored: meanwhile answers that are being written wait
MAX_LOOKED_AT, MAX_WEIGHTS = 128, 2_000_000  # tokens, and attention weights of all heads


def name_of(path: Path) -> str:
    """Return the name of a checkpoint: its run's, else that of its folder or file."""
    path = path.resolve()
    return path.parents[1].name if path.parent.name == "checkpoints" else path.name


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return what each token adds to the text; a character that consists of several tokens is at the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(tokenizer.token_bytes(token)) for token in tokens]
    return [*texts[:-1], texts[-1] + decoder.decode(b"", True)] if texts else []


def label(tokenizer: Tokenizer, token: int) -> str:
    """Return one token as readable text."""
    return tokenizer.names.get(token) or tokenizer.token_bytes(token).decode("utf-8", "backslashreplace")


def distribution(tokenizer: Tokenizer, logits: Tensor, count: int = MOST_LIKELY) -> dict[str, Any]:
    """Return the distribution of the next token by logits (V,), from which it follows for any temperature.

    Returns:
        top: id, text and logprob of the likeliest. rest: the others, as (logprob to a tenth, how many).
    """
    logprobs = logits[: tokenizer.vocab_size].double().cpu().log_softmax(-1)
    values, order = logprobs.sort(descending=True, stable=True)
    top = [
        {"id": token, "text": label(tokenizer, token), "logprob": round(value, 4)}
        for token, value in zip(order[:count].tolist(), values[:count].tolist(), strict=True)
    ]
    tenths, counts = (values[count:] * 10).round().unique(return_counts=True)
    return {
        "top": top,
        "rest": [[tenth / 10, many] for tenth, many in zip(tenths.tolist(), counts.tolist(), strict=True)],
    }


@torch.inference_mode()
def next_tokens(loaded: LoadedCheckpoint, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the distribution of the token that follows these."""
    V = loaded.tokenizer.vocab_size
    if not tokens or not all(0 <= token < V for token in tokens):
        raise UserFault(f"tokens must be at least one whole number from 0 to {V - 1}")
    window = tokens[window_start(len(tokens), loaded.model.config.block_size) :]
    logits = gpt_forward(loaded.model)(torch.tensor([window]), [len(window)], None)
    return distribution(loaded.tokenizer, logits[0])


def score(loaded: LoadedCheckpoint, text: str) -> dict[str, Any]:
    """Return the loss of a text and the surprise of each of its tokens, in nats; the first is only read."""
    encoded = encode_documents(loaded.tokenizer, [[utf8(text)]])
    if not 2 <= len(encoded) <= MAX_SCORED:
        raise UserFault(f"the text has {len(encoded):,} tokens; wanted from 2 to {MAX_SCORED:,}")
    scored = score_text(loaded.model, encoded)
    texts = pieces(loaded.tokenizer, encoded.tokens(0, len(encoded)).tolist())
    surprise = [None, *(round(nats, 4) for nats in scored.nats.tolist())]
    tokens = [{"text": piece, "nats": nats} for piece, nats in zip(texts, surprise, strict=True)]
    figures = scored.figures()
    return {"tokens": tokens} | {key: figures[key] for key in ("nats_per_token", "bits_per_byte", "perplexity")}


@torch.inference_mode()
def look(name: str, loaded: LoadedCheckpoint, text: str) -> dict[str, Any]:
    """Return a model's view of a short text: each token's surprise and alternatives, and the attention of every head.

    Only the first tokens of a long text are read: as many as the model takes at once and a picture can hold.

    Returns:
        name; tokens: text, nats and the distribution that it was drawn from; cut: tokens left out; attention:
        layers, heads, and the weights (layer, head, query, key) in units of 1/65535, little-endian 16 bits, base64.
    """
    tokens = loaded.tokenizer.encode(text)
    if not tokens:
        raise UserFault('text: got an empty one; wanted at least one character. Give text="..."')
    config = loaded.config.model
    fits = int((MAX_WEIGHTS / (config.n_layer * config.n_head)) ** 0.5)
    T = min(len(tokens), config.block_size, MAX_LOOKED_AT, max(fits, 2))
    read = torch.tensor([tokens[:T]], device=loaded.model.token_embedding.weight.device)
    with record_attention(loaded.model) as recorded:
        logits = loaded.model(read)[0]
    weights = torch.stack([layer[0].float().cpu() for layer in recorded.values()])  # (L, H, T, T)
    texts = pieces(loaded.tokenizer, tokens[:T])
    shown: list[dict[str, Any]] = [{"text": texts[0], "nats": None}]
    for place in range(1, T):
        logprobs = logits[place - 1].double().log_softmax(-1)
        chances = distribution(loaded.tokenizer, logits[place - 1], 12)
        shown.append({"text": texts[place], "nats": round(-float(logprobs[tokens[place]]), 4), **chances})
    packed = (weights * 65535).round().to(torch.int32).numpy().astype("<u2").tobytes()
    attention = {"layers": weights.shape[0], "heads": weights.shape[1], "weights": base64.b64encode(packed).decode()}
    return {"name": name, "tokens": shown, "cut": len(tokens) - T, "attention": attention}
