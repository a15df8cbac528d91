"""Everything in docs/ATTENTION.md that a machine can make: its numbers, its excerpts, its pictures.

python docs/tour.py                    check the numbers and the excerpts
python docs/tour.py checkpoint=RUN     write numbers and pictures again; RUN has four layers (section 12 of the page)
"""

import doctest
import re
import sys
from itertools import pairwise
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "examples"))

import encoder_decoder
from attention_pictures import draw_heads, draw_masks

from minigpt.attention.functional import attention_weights
from minigpt.attention.layers import SelfAttention
from minigpt.attention.masks import causal_mask, combine_masks, padding_mask
from minigpt.attention.record import record_attention
from minigpt.checkpoint.load import load_checkpoint
from minigpt.faults import UserFault, run_script
from minigpt.sampling.generate import window_start

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ATTENTION.md"
PICTURES = ROOT / "docs" / "pictures"
SENTENCE = ["every", "word", "can", "ask", "who", "else", "can", "answer"]
CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a"
WORD = "attention"


# Numbers and excerpts


class NearlyEqual(doctest.OutputChecker):
    """The same text, and numbers that agree to a unit in the fourth decimal: the last digit differs between CPUs."""

    def check_output(self, want, got, optionflags):
        number = r"-?\d+\.\d*"
        texts = [" ".join(re.sub(number, " # ", text).split()) for text in (want, got)]
        values = [[float(value) for value in re.findall(number, text)] for text in (want, got)]
        return texts[0] == texts[1] and all(abs(a - b) < 1.5e-4 for a, b in zip(*values, strict=True))


def run_examples(page: str) -> list[tuple[doctest.Example, str]]:
    """Run every `>>>` line of the page in one go; what came out differently, with the place where it stands."""
    differing: list[tuple[doctest.Example, str]] = []

    class Runner(doctest.DocTestRunner):
        def report_failure(self, out, test, example, got):
            differing.append((example, got))

        def report_unexpected_exception(self, out, test, example, exc_info):
            differing.append((example, f"{exc_info[0].__name__}: {exc_info[1]}\n"))

    without_fences = re.sub(r"^```.*$", "", page, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(without_fences, {}, PAGE.name, str(PAGE), 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Runner(NearlyEqual(), verbose=False).run(test, out=lambda _: None)
    torch.set_printoptions(profile="default")
    return differing


def write_numbers(page: str) -> str:
    """The page with every example's output as it is now."""
    lines = page.split("\n")
    for example, got in reversed(run_examples(page)):
        start = example.lineno + example.source.count("\n")
        lines[start : start + example.want.count("\n")] = got.rstrip("\n").split("\n") if got else []
    return "\n".join(lines)


def excerpts(page: str) -> list[tuple[str, str]]:
    """(file, text) of every block that quotes the project: its first line names the file."""
    return re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def stale_excerpts(page: str) -> list[str]:
    """What the page quotes and the source no longer says."""
    return [f"{file}:\n{text}" for file, text in excerpts(page) if text not in (ROOT / file).read_text()]


def fill(page: str, name: str, text: str) -> str:
    """Put text between the marks <!-- name --> and <!-- end -->."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: match[1] + text + "\n" + match[2], page, flags=re.DOTALL)


# Pictures


def draw_sentence() -> None:
    """The eight-word sentence through one head, untrained: the numbers of the page."""
    ids = torch.tensor([0, 6, 2, 7, 5, 4, 2, 3])
    torch.manual_seed(123)
    x = torch.nn.Embedding(8, 2)(ids)
    torch.manual_seed(123)
    layer = SelfAttention(d_in=2, d_k=3, d_v=4)
    for W, rows in zip((layer.W_q, layer.W_k, layer.W_v), (3, 3, 4), strict=True):
        W.load_state_dict({"weight": torch.rand(rows, 2)})
    weights = torch.stack([layer(x)[1], layer(x, causal_mask(8))[1]])
    names = ["everybody sees everybody", "causal"]
    draw_heads(weights, PICTURES / "sentence.png", title="one head, eight words", rows=SENTENCE, names=names)


def draw_all_masks() -> None:
    """Causal, bottom-right aligned, padded on either side, combined."""
    causal = causal_mask(6)
    left, right = (padding_mask(torch.tensor([4]), 6, side=side)[0, 0].expand(6, 6) for side in ("left", "right"))
    both = combine_masks(causal, left)
    assert both is not None
    masks = {
        "causal_mask(6)": causal,
        "causal_mask(3, 6)": causal_mask(3, 6),
        "4 real keys, padded right": right,
        "4 real keys, padded left": left,
        "causal and padded left": both,
        "a graph: a ring": torch.eye(6, dtype=torch.bool).roll(1, 0) | torch.eye(6, dtype=torch.bool).roll(-1, 0),
    }
    draw_masks(masks, PICTURES / "masks.png", title="blue: may attend; grey: hidden")


def draw_cache_growth(block_size: int = 8, tokens: int = 14) -> None:
    """For each token written: which keys are computed (1) and which read from the cache (0.35)."""
    cached, uncached = torch.zeros(2, tokens, tokens).unbind()
    starts = [window_start(length, block_size) for length in range(1, tokens + 1)]
    for length, (before, start) in enumerate(pairwise([-1, *starts]), start=1):
        uncached[length - 1, start:length] = 1.0
        cached[length - 1, start:length] = 1.0 if start != before else 0.35
        cached[length - 1, length - 1] = 1.0
    counts = [int((picture == 1).sum()) for picture in (uncached, cached)]
    pictures = {
        f"without a cache: {counts[0]} keys computed": uncached,
        f"with a cache: {counts[1]} keys computed": cached,
    }
    draw_masks(
        pictures,
        PICTURES / "cache.png",
        title=f"keys needed for each token written, window of {block_size}; dark: computed, light: read from the cache",
    )


def draw_mistakes() -> None:
    """What the classic mistakes do to the weights of one random head."""
    draw = torch.Generator().manual_seed(2)
    q, k = (2 * torch.randn(6, 16, generator=draw) for _ in range(2))
    mask, scores = causal_mask(6), q @ k.T / 4
    weights = {
        "right": attention_weights(q, k, mask),
        "the diagonal hidden too": torch.nan_to_num(scores.masked_fill(~mask.tril(-1), -torch.inf).softmax(dim=-1)),
        "zeros before the softmax": scores.masked_fill(~mask, 0.0).softmax(dim=-1),
        "zeros after the softmax": scores.softmax(dim=-1).masked_fill(~mask, 0.0),
        "not scaled": attention_weights(4 * q, k, mask),
        "scaled by a model's width of 256": attention_weights(q / 4, k, mask),
    }
    shown = torch.stack(list(weights.values()))
    rows = [str(t) for t in range(6)]
    draw_heads(
        shown, PICTURES / "mistakes.png", title="one head of width 16 and five mistakes", rows=rows, names=list(weights)
    )


def draw_reversal(encoder: encoder_decoder.Encoder, decoder: encoder_decoder.Decoder) -> None:
    """What the decoder's cross-attention looks at while it writes a word backwards."""
    letters = [ord(letter) - ord("a") for letter in WORD]
    word = torch.tensor([letters + [encoder_decoder.STOP] * (encoder_decoder.LONGEST + 1 - len(letters))])
    with torch.no_grad(), record_attention(decoder) as recorded:
        written = encoder_decoder.reverse(encoder, decoder, word, torch.tensor([len(letters) + 1]))
    assert written[0, : len(letters)].tolist() == letters[::-1]
    last = len(decoder.blocks) - 1
    looked = [recorded[f"blocks.{layer}.cross"][0, :, : len(letters) + 1] for layer in (0, last)]
    weights = torch.cat(looked)[..., : len(letters) + 2]
    H = len(weights) // 2
    draw_heads(
        weights,
        PICTURES / "reversal.png",
        title=f"writing {WORD!r} backwards: after each letter, where the decoder looks for the next",
        rows=["start", *WORD[::-1]],
        columns=[*WORD, "stop", "pad"],
        names=[f"layer {layer}, head {head}" for layer in (1, last + 1) for head in range(1, H + 1)],
    )


def draw_trained(checkpoint: str) -> str:
    """Every layer of a trained model reading a few lines of code; what its heads do, as a table."""
    loaded = load_checkpoint(checkpoint)
    tokens = loaded.tokenizer.encode(CODE)
    labels = [loaded.tokenizer.decode([token]).replace(" ", "␣").replace("\n", "↵") for token in tokens]
    with torch.inference_mode(), record_attention(loaded.model) as recorded:
        loaded.model(torch.tensor([tokens]))
    weights = {name: each[0] for name, each in recorded.items()}
    table = ["| layer | head | itself | the token before | the first token |", "|---|---|---|---|---|"]
    for layer, per_head in enumerate(weights.values(), start=1):
        draw_heads(per_head, PICTURES / f"layer-{layer}.png", title=f"layer {layer} of {len(weights)}", rows=labels)
        for head, each in enumerate(per_head[:, 2:], start=1):  # from the third token on, the three are different ones
            table.append(f"| {layer} | {head} | " + " | ".join(f"{share:.2f}" for share in habits(each)) + " |")
    return "\n".join(table)


def habits(weights: Tensor) -> tuple[float, float, float]:
    """Mean weight (T - 2, T) that the tokens from the third on give to themselves, the one before, the first."""
    rows = torch.arange(len(weights))
    places = (rows + 2, rows + 1, torch.zeros_like(rows))
    itself, before, first = (weights[rows, columns].mean().item() for columns in places)
    return itself, before, first


def main(arguments: list[str]) -> int:
    """Check, or write anew."""
    others = [argument for argument in arguments if not argument.startswith("checkpoint=")]
    if others or len(arguments) > 1:
        raise UserFault(f"tour.py takes checkpoint=RUN or nothing, got {' '.join(arguments)!r}")
    page = PAGE.read_text()
    if arguments:
        PICTURES.mkdir(exist_ok=True)
        draw_sentence()
        draw_all_masks()
        draw_cache_growth()
        draw_mistakes()
        page = fill(page, "heads", draw_trained(arguments[0].removeprefix("checkpoint=")))
        torch.set_num_threads(1)
        encoder, decoder = encoder_decoder.train()
        share = encoder_decoder.exactly_reversed(encoder, decoder, 5000, torch.Generator().manual_seed(1))
        page = fill(page, "reversed", f"**{100 * share:.2f} %** of 5,000 words it has never seen come out exactly.")
        draw_reversal(encoder, decoder)
        for picture in PICTURES.glob("*.png"):  # 256 colours are enough: a third of the bytes
            Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)
        page = write_numbers(page)
        PAGE.write_text(page)
        print(f"wrote {PAGE} and {PICTURES}; sections 12 and 15 say what some heads do: see whether they still do it")
    stale, differing = stale_excerpts(page), run_examples(page)
    for text in [*stale, *(f"{example.source}now gives\n{got}" for example, got in differing)]:
        print(text)
    print(f"{len(excerpts(page)) - len(stale)} excerpts agree with the source, {len(stale)} do not; ", end="")
    print(f"{len(differing)} numbers differ")
    return bool(stale or differing)


if __name__ == "__main__":
    run_script(main)
