"""The proof that an export is the same model: read back, it gives the same logits, tokens and text."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.compare.sides import open_run
from minigpt.data.tokenizer import END_OF_TEXT, Tokenizer
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.model.evaluate import MAX_LOGITS
from minigpt.model.gpt import GPT

SEED = 1337
TOKENS, STRINGS, TEXT_TOKENS = 4096, 10_000, 1 << 20  # compared at most; TEXT_TOKENS are decoded for the text
WORDS = (
    *" \n\t  'llGPT-2's don't 12 3,456 é ß 你好 мир 🙂 👩‍🚀 \u00a0 \u2028 \u0301 <|",
    END_OF_TEXT,
    "the",
    "The",
    " of",
    "==",
)


@dataclass(frozen=True)
class Sample:
    """Tokens and text on which two models are compared."""

    tokens: Tensor  # (n,)
    text: str  # "" without a tokenizer
    source: str  # in words


@dataclass(frozen=True)
class Reloaded:
    """A model and tokenizer that were read back.

    Attributes:
        by: the program that read them, in words.
        logits: (1, T) tokens -> (1, T, V).
        tokens_of: texts -> the tokens of each; None = without a tokenizer.
        text_of: tokens -> text.
        merges: of the tokenizer.
    """

    by: str
    logits: Callable[[Tensor], Tensor]
    tokens_of: Callable[[list[str]], list[list[int]]] | None = None
    text_of: Callable[[list[int]], str] = str
    merges: Sequence[Sequence[str]] = ()


def sample_of(loaded: LoadedCheckpoint, path: str, which: str) -> Sample:
    """Return the run's validation text, or a text made from a seed if the run's prepared tokens are gone."""
    tokenizer = tokenizer_of(loaded)
    try:
        val = open_run(path, which).val
        tokens = torch.from_numpy(val.tokens(0, TOKENS).astype("int64"))
        return Sample(tokens, loaded.tokenizer.decode(val.tokens(0, TEXT_TOKENS)), "the validation text")
    except (UserFault, NoUsableCheckpoint):
        pass
    source = f"a text made from the seed {SEED} (the validation text is not there)"
    if tokenizer is None:
        generator = torch.Generator().manual_seed(SEED)
        return Sample(torch.randint(loaded.model.vocab_size, (TOKENS,), generator=generator), "", source)
    text = "".join(strings(tokenizer, STRINGS // 10))
    return Sample(torch.tensor(tokenizer.encode(text)[:TOKENS]), text, source)


def tokenizer_of(loaded: LoadedCheckpoint) -> Tokenizer | None:
    """Return a checkpoint's tokenizer, or None for a foreign folder without one."""
    return loaded.tokenizer if isinstance(loaded.tokenizer, Tokenizer) else None


def strings(tokenizer: Tokenizer, count: int) -> list[str]:
    """Return texts made from the seed: words, spaces, scripts and any characters; for char, characters it knows."""
    drawn = random.Random(SEED)
    of_char = range(tokenizer.vocab_size if tokenizer.name == "char" else 0)
    alphabet: Sequence[str] = [tokenizer.decode([token]) for token in of_char]

    def piece() -> str:
        if alphabet:
            return drawn.choice(alphabet)
        place = drawn.randrange(0x30000)
        return drawn.choice(WORDS) if drawn.random() < 0.8 or 0xD800 <= place < 0xE000 else chr(place)

    return ["".join(piece() for _ in range(drawn.randrange(1, 30))) for _ in range(count)]


def prove(loaded: LoadedCheckpoint, sample: Sample, reloaded: Reloaded, *, tolerance: float) -> list[str]:
    """Compare and return the proof as lines.

    Args:
        loaded: the model that was exported.
        sample: tokens and text to compare on.
        reloaded: the model that was read back.
        tolerance: of the logits, relative to the largest, or to 1.

    Raises:
        RuntimeError: it is not the same model.
    """
    lines, faults = [f"Read back with {reloaded.by}"], []
    largest, reach, losses = _logit_difference(loaded.model, reloaded, sample.tokens)
    lines.append(
        f"Logits  largest difference {largest:.1e} over {len(sample.tokens):,} tokens of {sample.source} (they reach "
        f"{reach:.1f})"
    )
    lines.append(f"Loss    {losses[1]:.6f} nats per token there, {losses[0]:.6f} here: {losses[1] - losses[0]:+.1e}")
    if not largest <= tolerance * max(1.0, reach):
        faults.append(lines[1])
    tokenizer = tokenizer_of(loaded)
    if tokenizer is not None and reloaded.tokens_of is not None:
        texts = [sample.text, *strings(tokenizer, STRINGS)]
        line, equal = _tokenizer_differences(tokenizer, reloaded, texts, sample.source)
        lines.append(line)
        faults += [] if equal else [line]
    if faults:
        raise RuntimeError(f"what was written is not the same model, so it was removed. {'; '.join(faults)}")
    return lines


@torch.inference_mode()
def _logit_difference(model: GPT, reloaded: Reloaded, tokens: Tensor) -> tuple[float, float, tuple[float, float]]:
    """Return the largest difference, the largest logit, and the mean loss of both, over windows of context length."""
    largest, reach, nats = 0.0, 0.0, torch.zeros(2, dtype=torch.float64)
    windows = tokens.split(max(2, min(model.config.block_size, MAX_LOGITS // model.vocab_size)))
    for window in windows:
        own, other = model(window[None])[0], reloaded.logits(window[None])[0]
        if own.shape != other.shape:
            raise RuntimeError(f"what was written gives logits {tuple(other.shape)}, the model {tuple(own.shape)}")
        largest = max(largest, float((own - other).abs().max().nan_to_num(torch.inf)))
        reach = max(reach, float(own.abs().max()))
        nats += torch.stack([cross_entropy(x[:-1].double(), window[1:], reduction="sum") for x in (own, other)])
    predicted = max(1, len(tokens) - len(windows))
    here, there = (nats / predicted).tolist()
    return largest, reach, (here, there)


def _tokenizer_differences(tokenizer: Tokenizer, reloaded: Reloaded, texts: list[str], source: str) -> tuple[str, bool]:
    """Return a line about the tokenizers, and whether they are equal."""
    from minigpt.export.tokenizer_json import tokenizer_json

    assert reloaded.tokens_of is not None
    ours = [tokenizer.encode(text) for text in texts]
    ids = sum(own != other for own, other in zip(ours, reloaded.tokens_of(texts), strict=True))
    back = sum(tokenizer.decode(own) != reloaded.text_of(own) for own in ours)
    wanted: Any = tokenizer_json(tokenizer)["model"]["merges"]
    merges = [list(merge) for merge in reloaded.merges] == wanted
    line = (
        f"Tokens  {ids} differences in ids and {back} in text over {len(texts[0]):,} characters of {source} and "
        f"{len(texts) - 1:,} strings; {len(wanted):,} merges {'equal' if merges else 'DIFFER'}"
    )
    return line, not ids and not back and merges
