"""The page's views of a model, as JSON: its choice of the next token, its attention and layers, its surprise."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minigpt.attention.kinds import first_token, induction, previous_token
from minigpt.attention.record import record_attention
from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.data.tokenizer import Tokenizer, pieces, utf8
from minigpt.evaluation.texts import encode_documents, score_text
from minigpt.faults import UserFault
from minigpt.sampling.generate import window_start
from minigpt.sampling.write import encode_prompt, gpt_forward

MOST_LIKELY = 40  # tokens that are named
MAX_SCORED = 4096  # tokens of a text that is scored: meanwhile answers that are being written wait
MAX_LOOKED_AT, MAX_WEIGHTS = 128, 2_000_000  # tokens, and attention weights of all heads
REPEATED = (4, 25)  # sequences, and random tokens in each, which is then repeated
NAMED_FROM = 0.4  # a head is named after its highest score, if that is so high


def label(tokenizer: Tokenizer, token: int) -> str:
    """Return one token as readable text."""
    return tokenizer.names.get(token) or tokenizer.token_bytes(token).decode("utf-8", "backslashreplace")


def distribution(tokenizer: Tokenizer, logits: Tensor, count: int = MOST_LIKELY) -> dict[str, Any]:
    """Return the distribution of the next token from its logits (V,), in a form that serves for any temperature.

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
    rest = [[tenth / 10, many] for tenth, many in zip(tenths.tolist(), counts.tolist(), strict=True)]
    return {"top": top, "rest": rest}


@torch.inference_mode()
def next_tokens(loaded: LoadedCheckpoint, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the distribution of the token that follows these."""
    V = loaded.tokenizer.vocab_size
    if not tokens or not all(0 <= token < V for token in tokens):
        raise UserFault(f"tokens must be at least one whole number from 0 to {V - 1}")
    window = tokens[window_start(len(tokens), loaded.model.config.block_size) :]
    return distribution(loaded.tokenizer, gpt_forward(loaded.model)(torch.tensor([window]), [len(window)], None)[0])


def score(loaded: LoadedCheckpoint, text: str) -> dict[str, Any]:
    """Return the loss of a text and the surprise of each of its tokens, in nats; the first is only read."""
    encoded = encode_documents(loaded.tokenizer, [[utf8(text)]])
    if len(encoded) > MAX_SCORED:
        raise UserFault(f"the text has {len(encoded):,} tokens; wanted at most {MAX_SCORED:,}")
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
    tokens, cut = tokens_to_look_at(loaded, text)
    logits, weights = read(loaded, [tokens])
    logits, weights = logits[0], weights[:, 0]
    texts = pieces(loaded.tokenizer, tokens)
    shown: list[dict[str, Any]] = [{"text": texts[0], "nats": None}]
    for place in range(1, len(tokens)):
        logprobs = logits[place - 1].double().log_softmax(-1)
        chances = distribution(loaded.tokenizer, logits[place - 1], 12)
        shown.append({"text": texts[place], "nats": round(-float(logprobs[tokens[place]]), 4), **chances})
    packed = (weights * 65535).round().to(torch.int32).numpy().astype("<u2").tobytes()
    attention = {"layers": weights.shape[0], "heads": weights.shape[1], "weights": base64.b64encode(packed).decode()}
    return {"name": name, "tokens": shown, "cut": cut, "attention": attention}


def tokens_to_look_at(loaded: LoadedCheckpoint, text: str) -> tuple[list[int], int]:
    """Return a text's first tokens, as many as can be shown, and how many more it has."""
    tokens = encode_prompt(loaded.tokenizer, text)
    if not text:
        raise UserFault('text: got an empty one; wanted at least one character. Give text="..."')
    config = loaded.config.model
    fits = int((MAX_WEIGHTS / (config.n_layer * config.n_head)) ** 0.5)
    shown = tokens[: min(config.block_size, MAX_LOOKED_AT, max(fits, 2))]
    return shown, len(tokens) - len(shown)


def read(loaded: LoadedCheckpoint, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the logits (B, T, V) of rows of tokens, and the attention weights (L, B, H, T, T)."""
    with record_attention(loaded.model) as recorded:
        logits = loaded.model(torch.tensor(rows, device=loaded.model.token_embedding.weight.device))
    return logits, torch.stack([layer.float().cpu() for layer in recorded.values()])


@torch.inference_mode()
def kinds(loaded: LoadedCheckpoint, text: str) -> list[list[dict[str, Any]]]:
    """Return the scores of every head (see attention/kinds.py) and the kind that follows, layer by layer.

    Two scores are measured on the text, if it has at least three tokens; induction on random tokens, repeated.
    """
    scores = {}
    tokens, _ = tokens_to_look_at(loaded, text)
    if len(tokens) > 2:
        weights = read(loaded, [tokens])[1][:, 0]
        scores = {"previous": previous_token(weights), "first": first_token(weights)}
    rows, period = REPEATED[0], min(REPEATED[1], loaded.config.model.block_size // 2)
    if period > 1:
        plain = torch.tensor(sorted({*range(loaded.tokenizer.vocab_size)} - loaded.tokenizer.names.keys()))
        drawn = plain[torch.randint(len(plain), (rows, period), generator=torch.Generator().manual_seed(0))]
        scores["induction"] = induction(read(loaded, drawn.repeat(1, 2).tolist())[1], period).mean(1)

    def head(layer: int, place: int) -> dict[str, Any]:
        of_head = {name: round(float(grid[layer, place]), 3) for name, grid in scores.items()}
        highest = max(of_head, key=lambda name: of_head[name], default="")
        return of_head | {"kind": highest if of_head.get(highest, 0) >= NAMED_FROM else ""}

    config = loaded.config.model
    return [[head(layer, place) for place in range(config.n_head)] for layer in range(config.n_layer)]


@torch.inference_mode()
def lens(loaded: LoadedCheckpoint, text: str) -> list[list[dict[str, Any]]]:
    """Return each layer's prediction: its stream through the final norm and the output layer.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".

    Returns:
        For the embedding and every layer, for each token but the first: top and share, the likeliest token and its
        probability; rank and nats of the text's own token.
    """
    tokens, _ = tokens_to_look_at(loaded, text)
    model, streams = loaded.model, []
    places = [*model.blocks, model.final_norm]
    hooks = [place.register_forward_pre_hook(lambda _, given: streams.append(given[0])) for place in places]
    try:
        model.hidden(torch.tensor([tokens], device=model.token_embedding.weight.device))
    finally:
        for hook in hooks:
            hook.remove()
    layers, true = [], torch.tensor(tokens[1:], dtype=torch.long)[:, None]

    def described(likeliest: int, share: float, rank: int, nats: float) -> dict[str, Any]:
        top = label(loaded.tokenizer, likeliest)
        return {"top": top, "share": round(share, 4), "rank": rank, "nats": round(nats, 4)}

    for stream in streams:
        logprobs = model.logits(model.final_norm(stream[0, :-1])).double().cpu().log_softmax(-1)  # (T - 1, V)
        nats, (highest, likeliest) = -logprobs.gather(1, true), logprobs.max(-1)
        ranks = 1 + (logprobs > -nats).sum(-1)
        columns = zip(likeliest.tolist(), highest.exp().tolist(), ranks.tolist(), nats[:, 0].tolist(), strict=True)
        layers.append([described(*column) for column in columns])
    return layers
