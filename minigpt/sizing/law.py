"""The law: the model with the lowest expected bits per byte for a text and a training time.

A 7-gram model, counted in a second, shows how hard a text is, and how much more text would help. The expected loss of
a GPT with N parameters, trained on S bytes, is a multiple of the 7-gram's on so many bytes:

    bits per byte = 7-gram(S) * (floor + size N^-a + seen S^-b + overfit (N / bytes of the text)^c)

docs/SIZING.md has the measurements; benchmarks/fit_law.py fits the constants anew. Standard library only.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

USUAL_SLOPE = 0.06  # of 7-grams before they are counted; also the most beyond the end of the text
MOST_SLOPE = 0.11  # a steeper one comes from passages that stand in several documents: counting learns them at once
# Repeated passes are worth at most so many passes of new text: for learning, and for the difficulty of a text.
REPEATS, NEW_REPEATS = 15.0, 2.5
# Each doubling of more than FEW_PASSES adds so much to overfitting; less if the run ends with the mean of its weights.
FEW_PASSES, BY_HEART, BY_HEART_AVERAGED = 4.0, 0.12, 0.02
AVERAGED = {"average_fraction": 0.4, "final_lr_fraction": 0.2, "bpe_dropout": 0.05}
AVERAGED_FROM = 3.0  # passes
# In more than FEW_PASSES, a text of fewer than SMALL bytes gains by BPE-dropout, which saves so much of the loss, and
# its rare tokens are learned by heart if squared gradients are remembered for long.
SMALL, DROPOUT_SAVES, BETA2, BETA2_SMALL = 6e5, 0.008, 0.99, 0.95
PART = 8  # `kneser_ney_part` is measured after 1 / PART of the text (data/measures/baselines.py)
UNTRIED_RANGE = 0.2  # relative error of a forecast without a pilot; nine of ten texts outside the fit stay within it
RANGE = 0.1  # the same with a pilot of 256 steps
PILOT_RANGE, REACH = 0.08, 1e7  # the same with a long pilot, up to so many tokens of training
LEAST_MEASURED, SMALL_RANGE = 2e5, 0.25  # bytes of a text; the error below


@dataclass(frozen=True)
class Constants:
    """What benchmarks/fit_law.py fits, for parameters and bytes in millions: powers, and a factor for each term."""

    size_power: float = 0.2
    seen_power: float = 0.05
    overfit_power: float = 0.17
    floor: float = 0.3
    factors: tuple[float, float, float] = (0.3557, 0.1469, 0.1895)


CONSTANTS = Constants()
# An output layer that is not the embedding saves UNTIED of the loss, and RARE more with beta2 = 0.99 and more than
# FEW_ROWS tokens: many of them are rare, and their squared gradients must be remembered until they come again.
# Beside this, such a memory saves MEMORY of the loss. Both save less in many passes, in which no token is rare.
UNTIED, RARE, MEMORY = 0.01, 0.02, 0.015
TIED_FROM, TIED_BELOW = 160, 2e6  # width; bytes of text: two layers of this width keep their own for a larger one
# Two layers or more begin with heads that copy from the context (model.init=induction). They save nothing below
# UNLEARNED tokens of training. From MASTERED on, a model of a million numbers saves COPIED times what a pointer saves
# (data/measures/repeats.py), up to MOST_COPIED. As shares of this, each doubling of its numbers adds GROWS, each
# doubling of the heads' width (up to 64; by half of it they tell tokens apart) WIDER, and four layers or more DEEPER.
COPIED, MOST_COPIED, GROWS, WIDER, DEEPER, UNLEARNED, MASTERED = 0.85, 0.17, 0.09, 0.28, 0.05, 2**15, 2**24
REPEATING = 1.15  # times the 7-gram's bits: a text for which xz, which only copies, needs more hardly repeats itself
# Each doubling of a context of NEAR tokens, up to FAR, saves so much of the loss for each doubling of the bytes seen,
# from FAR_FROM on and FAR_DOUBLINGS at most; and more of a text that repeats itself.
NEAR, FAR, FAR_FROM, FAR_DOUBLINGS, FAR_SAVES, FAR_COPIES = 128, 512, 7.5e5, 3.0, 0.0015, 0.025
# From LARGE to LARGEST FLOPs of training, each doubling saves so much of the loss, beside what the terms say.
LARGE, LARGEST, LARGE_SAVES = 1e14, 2e15, 0.014
BATCH_LOSS = 0.008  # added by a batch twice or half the best size
BEST_BATCH, BEST_FOR = 1024, 4e5  # best tokens per step, for this many training tokens; it grows with their square root

# Layers, width, context, largest vocabulary.
SHAPES = (
    (2, 64, 128, 2048),
    (2, 96, 256, 4096),
    (2, 128, 256, 4096),
    (2, 128, 512, 4096),
    (2, 160, 512, 4096),
    (2, 192, 512, 4096),
    (4, 160, 512, 4096),
    (4, 192, 512, 4096),
    (5, 224, 512, 8192),
    (5, 256, 512, 8192),
    (6, 320, 512, 8192),
    (6, 384, 512, 8192),
    (8, 448, 512, 16384),
    (8, 512, 512, 16384),
    (10, 640, 512, 16384),
    (12, 768, 1024, 32768),
    (16, 1024, 1024, 32768),
)
BATCHES = tuple(2**power for power in range(9, 20))
FEW_ROWS, BYTES_PER_ROW, BYTES_PER_RARE_ROW = 2048, 100, 1000  # of text, for each token of a vocabulary; above FEW_ROWS
BYTES_PER_PLACE = 500  # of text, for each place of a context
LEAST_STEPS = 30
# A pilot: the smallest size, trained on the text itself for so many tokens, gives the level of the law.
PILOT, LONG_PILOT = 2**17, 2**19
OF_PILOT = {"batch_tokens": 1024, "block_size": 128, "lr": 0.02, "matrix_lr": 0.015}  # with which it was measured
# A longer training gains a power of what the law says, the pace of its text. It grows with s, the logarithm of the
# pilot's bits per byte after half of its steps over those at its end, and is 1 for s = (1 - PACE) / PACE_GROWS.
PACE, PACE_GROWS, PACES = 0.48, 4.05, (0.6, 1.3)
SHORT_RANGE = 0.13  # relative error of a forecast with the shortest one
MOST_PASSES = 10  # more teach a text by heart; a larger model learns more of it in as many

# Weights forget their past at the rate DECAY a pass: weight decay instead of dropout, and hardly any in a single pass.
# Source: Wang & Aitchison 2024, "How to set AdamW's weight decay as you scale model and dataset size".
DECAY, MOST_DECAY = 0.9, 4.0


@dataclass(frozen=True)
class Text:
    """Measurements of a text. Bits per byte are those of its validation part, after counting its training part."""

    bytes: int  # of its training part
    kneser_ney: float  # bits per byte of a 7-gram model
    xz: float
    kneser_ney_part: float | None = None  # after 1 / PART of the training text
    level: float = 1.0  # factor on the law, from a short training on this text
    pace: float = 1.0  # power of the law, from the same
    error: float = UNTRIED_RANGE  # of a forecast
    density: float = 1.0  # bytes per token, over those of most texts with the same vocabulary
    repeats: float | None = None  # share of the 7-gram's bits that a pointer into the last bytes saves

    def seven_gram(self, n_bytes: float) -> float:
        """Return the bits per byte of a 7-gram model after n_bytes of such text."""
        part = self.kneser_ney_part
        slope = math.log(part / self.kneser_ney) / math.log(PART) if part else USUAL_SLOPE
        slope = min(slope, USUAL_SLOPE if n_bytes > self.bytes else MOST_SLOPE)
        return self.kneser_ney * (n_bytes / self.bytes) ** -slope

    def bytes_of(self, tokens: float, vocabulary: int) -> float:
        """Return the bytes of so many tokens of a vocabulary; without a measured density within 15 % for most texts."""
        return tokens * self.density * (2.85 * (vocabulary / 2048) ** 0.2)


@dataclass(frozen=True)
class Size:
    """A model, its training, and the expected bits per byte."""

    n_layer: int
    n_embd: int
    n_head: int
    n_kv_head: int
    head_dim: int
    n_hidden: int
    vocab_size: int
    block_size: int
    batch_tokens: int
    lr: float
    matrix_lr: float = 0.015
    beta2: float = BETA2
    tied: bool = False
    dropout: float = 0.0
    weight_decay: float = 0.0
    average_fraction: float = 0.0
    final_lr_fraction: float = 0.0
    bpe_dropout: float = 0.0
    steps: int = 0
    warmup_steps: int = 0
    passes: float = 0.0
    bits_per_byte: float = math.inf
    low: float = math.inf
    high: float = math.inf

    @property
    def multiplied(self) -> int:
        """Numbers that a token is multiplied with: the matrices of the blocks and of the output layer."""
        attention = self.head_dim * (2 * self.n_head + 2 * self.n_kv_head)
        return self.n_embd * (self.n_layer * (attention + 3 * self.n_hidden) + self.vocab_size)

    @property
    def parameters(self) -> int:
        """Numbers in all matrices."""
        return self.multiplied + (0 if self.tied else self.n_embd * self.vocab_size)

    @property
    def tokens(self) -> int:
        """Tokens of training."""
        return self.steps * self.batch_tokens

    @property
    def flops(self) -> float:
        """Floating-point operations of training, without those of the attention weights."""
        return 6.0 * self.multiplied * self.tokens


def candidates(text: Text) -> Iterator[Size]:
    """Yield all sizes, the smallest first, each with every batch size."""
    rows = min(text.bytes / BYTES_PER_ROW, FEW_ROWS + text.bytes / BYTES_PER_RARE_ROW)
    largest = max(512, 2 ** int(math.log2(max(1, rows))))
    longest = max(NEAR, 2 ** int(math.log2(max(1, text.bytes / BYTES_PER_PLACE))))
    for layers, width, context, vocabulary in SHAPES:
        heads, hidden = heads_of(width), max(3 * width if width <= 64 else 0, round(2.75 * width / 32) * 32)
        known, window = min(vocabulary, largest), min(context, longest)
        for batch in BATCHES:
            yield Size(layers, width, heads, heads, width // heads, hidden, known, window, batch, lr_of(width))


def lr_of(width: int) -> float:
    """Return the learning rate of tables and vectors."""
    return round(0.014 * min(1.0, 128 / width) ** 0.5, 4)


def heads_of(width: int) -> int:
    """Return how many heads of even width divide a width: two, from 192 on of about 64 each; one below 64."""
    most = max(1, min(2, width // 32), round(width / 64))
    return max((heads for heads in range(1, most + 1) if width % (2 * heads) == 0), default=1)


def fitted(size: Size, given: Mapping[str, Any]) -> Size:
    """Return a size with given values. What they leave open of its heads, MLP and lr follows from its width."""
    width, own = given.get("n_embd", size.n_embd), dict[str, Any]()
    if "n_embd" in given:
        own = {"n_hidden": math.ceil(8 * width / 3 / 32) * 32, "lr": lr_of(width)}
    if given.keys() & {"n_embd", "n_head"}:
        heads = given.get("n_head", heads_of(width))
        own |= {"n_head": heads, "n_kv_head": heads, "head_dim": max(2, width // heads // 2 * 2)}
    return replace(size, **{**own, **given})


def choose(text: Text, seconds: float, tokens_per_second: Callable[[Size], float], fixed: Mapping[str, Any]) -> Size:
    """Return the size with the fewest expected bits per byte after so many seconds of training.

    `tokens_per_second` is the machine's speed for a size; `fixed` holds fields of `Size` with given values.
    """

    def off(size: Size) -> int:  # a given width has the context and vocabulary of the nearest one
        return abs(size.n_embd - int(fixed.get("n_embd", size.n_embd)))

    least = min(map(off, candidates(text)))
    near = [size for size in candidates(text) if off(size) == least]
    deepest = max(2, fixed.get("n_embd", 0) // 32)
    depths = {shape[0] for shape in SHAPES if shape[0] <= deepest} if "n_embd" in fixed else ()
    sizes = dict.fromkeys(fitted(size, {"n_layer": n, **fixed}) for size in near for n in depths or [size.n_layer])
    batch = fixed.get("batch_tokens", 0)
    fit = [size for size in sizes if size.n_head % size.n_kv_head == batch % size.block_size == 0]
    made = [(size, seconds * tokens_per_second(size)) for size in fit or sizes]
    trained = [train(text, *pair, fixed, most) for pair in made for most in (FEW_PASSES, MOST_PASSES)]
    return min(trained, key=lambda size: (max(0, LEAST_STEPS - size.steps), size.bits_per_byte))


def train(text: Text, size: Size, tokens: float, given: Mapping[str, Any], most: float = MOST_PASSES) -> Size:
    """Return a size with the steps and weight decay for so many tokens (rounded: speeds vary), or `most` passes."""
    tokens = min(most * text.bytes / text.bytes_of(1, size.vocab_size), 1.05 ** round(math.log(max(1.0, tokens), 1.05)))
    steps = max(1, round(tokens / size.batch_tokens))
    passes = text.bytes_of(steps * size.batch_tokens, size.vocab_size) / text.bytes
    weight_decay = round(min(MOST_DECAY, DECAY * passes / (size.matrix_lr * steps)), 2)
    tied = size.n_embd >= TIED_FROM and (size.n_layer > 2 or text.bytes < TIED_BELOW)
    chosen: dict[str, Any] = {"steps": steps, "weight_decay": weight_decay, "tied": tied}
    chosen["warmup_steps"] = min(max(5, steps // 50), 200, steps)
    is_small = passes > FEW_PASSES and text.bytes < SMALL
    chosen["beta2"] = BETA2_SMALL if is_small else BETA2
    if passes > AVERAGED_FROM and given.get("average_fraction", 1.0):
        chosen |= AVERAGED | ({} if is_small else {"bpe_dropout": 0.0})
    size = replace(size, passes=passes, **{**chosen, **given})
    bits, error = bits_per_byte(text, size), max(text.error, RANGE if size.tokens >= REACH else 0.0)
    error = SMALL_RANGE if text.bytes < LEAST_MEASURED else error
    return replace(size, bits_per_byte=bits, low=(1 - error) * bits, high=(1 + error) * bits)


def pilot_of(text: Text, given: Mapping[str, Any], times: int = 1) -> Size:
    """Return the short training of a small model that shows how hard a text is, `times` as long as the shortest one.

    A 7-gram counts what repeats; two texts that it finds equally hard differ by a fifth in what a GPT learns early.
    """
    smallest = next(candidates(text))
    own = {"vocab_size": given.get("vocab_size", smallest.vocab_size), **dict.fromkeys(AVERAGED, 0.0), **OF_PILOT}
    return train(text, fitted(smallest, own), PILOT * times, own)


def leveled(text: Text, pilot: Size, halfway: float, bits: float) -> Text:
    """Return the text with the level and pace that follow from its pilot's bits per byte, halfway and at the end."""
    share, bits, halfway = pace_share(pilot.tokens), max(1e-4, bits), max(1e-4, halfway)  # of one line, repeated
    pace = min(PACES[1], max(PACES[0], PACE + PACE_GROWS * math.log(halfway / bits)))
    error = PILOT_RANGE if share > 0.9 else RANGE if share > 0.3 else SHORT_RANGE
    text = replace(text, pace=1 + share * (pace - 1), error=error)
    return replace(text, level=bits / bits_per_byte(text, pilot))


def pace_share(tokens: float) -> float:
    """Return how much of the pace that a pilot of so many tokens shows is no chance: 0 to 1."""
    return min(1.0, max(0.0, math.log(tokens / PILOT) / math.log(LONG_PILOT / PILOT)))


def terms(text: Text, size: Size, by: Constants) -> tuple[float, float, float]:
    """Return the three losses of the law: from few parameters, from few bytes, and from overfitting."""
    growth = BY_HEART_AVERAGED if size.average_fraction else BY_HEART
    by_heart = 1 + growth * math.log2(max(1.0, size.passes / FEW_PASSES))
    small, seen = (size.multiplied / 1e6) ** -by.size_power, (worth(text, size, REPEATS) / 1e6) ** -by.seen_power
    return small, seen, by_heart * (size.multiplied / text.bytes) ** by.overfit_power


def worth(text: Text, size: Size, most: float) -> float:
    """Return the unique bytes that all passes are worth. Source: Muennighoff et al. 2023, equation 5."""
    again = most * (1 - math.exp(-max(0.0, size.passes - 1) / most))
    return text.bytes * (min(size.passes, 1.0) + again)


def counted(text: Text, size: Size) -> float:
    """Return the law's factor: the 7-gram's bits per byte, for the batch (its best: 1), output layer and beta2."""
    off = math.log2(size.batch_tokens / BEST_BATCH) - 0.5 * math.log2(size.tokens / BEST_FOR)
    remembers = size.beta2 >= BETA2
    rare = RARE / max(1.0, size.passes) * (remembers and size.vocab_size > FEW_ROWS)
    untied = 1 if size.tied else 1 - UNTIED - rare
    saved = untied * (1 - MEMORY * remembers / max(1.0, size.passes / FEW_PASSES) ** 2)
    return text.seven_gram(worth(text, size, NEW_REPEATS)) * (1 + BATCH_LOSS * off**2) * saved


def copied(text: Text, size: Size) -> float:
    """Return the share of the loss that copying from the context saves."""
    usual = min(0.2, max(0.0, 0.44 - 0.35 * text.xz / text.kneser_ney))  # before it is measured
    repeats = min(MOST_COPIED, COPIED * (usual if text.repeats is None else text.repeats))
    learned = math.log(max(1.0, size.tokens / UNLEARNED)) / math.log(MASTERED / UNLEARNED)
    able = max(0.0, 1 + GROWS * math.log2(size.multiplied / 1e6))
    able += WIDER * math.log2(min(size.head_dim, 64) / 32) + DEEPER * (size.n_layer > 3)
    return able * repeats * min(1.0, learned) if size.n_layer > 1 else 0.0


def far(text: Text, size: Size) -> float:
    """Return the share of the loss that a context beyond NEAR tokens saves."""
    doublings = math.log2(min(max(size.block_size, NEAR), FAR) / NEAR)
    learned = min(FAR_DOUBLINGS, max(0.0, math.log2(worth(text, size, NEW_REPEATS) / FAR_FROM)))
    return doublings * learned * (FAR_SAVES + FAR_COPIES * max(0.0, REPEATING - text.xz / text.kneser_ney))


def bits_per_byte(text: Text, size: Size, by: Constants = CONSTANTS) -> float:
    """Return the expected bits per byte of the validation text."""
    lacks = sum(factor * term for factor, term in zip(by.factors, terms(text, size, by), strict=True))
    left = (1 - copied(text, size)) * (1 - far(text, size)) * (1 - DROPOUT_SAVES * (size.bpe_dropout > 0))
    left *= 1 - LARGE_SAVES * math.log2(min(max(size.flops, LARGE), LARGEST) / LARGE)
    return text.level * (left * counted(text, size) * (by.floor + lacks)) ** text.pace


def outside(text: Text, size: Size) -> str:
    """Return a warning if a size or its text is outside the range of the law's measurements, else ""."""
    is_inside = 2e11 <= size.flops <= LARGEST and LEAST_MEASURED <= text.bytes <= 2e7
    wrong = "this is outside of what the law was measured on (2e11 to 2e15 FLOPs, 0.2 to 20 MB of text): trust it less"
    return "" if is_inside else wrong
