"""A text is the same alone and in company: texts with options of their own that join and leave at different times."""

import itertools
import random
from functools import partial

import pytest
import torch

from minigpt.sampling.filters import SamplingOptions, filter_logits, filter_rows
from minigpt.sampling.generate import Reader, TextInProgress, Writer, generate
from minigpt.sampling.native.decoder import MAX_ROWS, native_decoder, round_to_int8
from minigpt.sampling.native.library import find_compiler
from minigpt.sampling.write import gpt_forward
from tests.units.model.spread import spread_gpt

V, BLOCK_SIZE = 71, 19
gpt = partial(spread_gpt, vocab_size=V, std=0.2, n_layer=2, n_embd=66, n_head=3, block_size=BLOCK_SIZE)
native = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
KINDS = [
    {},
    {"attention": "rotary", "qk_norm": "rmsnorm", "norm": "rmsnorm", "activation": "swiglu", "bias": False},
    {"attention": "rotary", "n_head": 4, "n_kv_head": 2, "n_embd": 40, "activation": "relu_squared"},
]


def orders(count):
    """(prompt, options) of some texts, each with options of its own."""
    chance = random.Random(3)
    for index in range(count):
        options = SamplingOptions(
            max_new_tokens=chance.choice([3, 20, 45]),
            temperature=chance.choice([0.0, 0.8, 1.3]),
            top_k=chance.choice([0, 0, 12]),
            top_p=chance.choice([1.0, 0.9]),
            repetition_penalty=chance.choice([1.0, 1.0, 1.4]),
            seed=index % 5,
        )
        yield [chance.randrange(V) for _ in range(chance.choice([1, 4, 30]))], options


def in_company(forward, model, wanted, rows):
    """The texts where each step one more joins, while a row is free."""
    writer = Writer(Reader(forward, BLOCK_SIZE, model.new_cache, room=rows))
    waiting = [TextInProgress(list(prompt), options) for prompt, options in wanted]
    written = list(waiting)
    for step in itertools.count():
        if waiting and len(writer.texts) < rows and step % 3 != 1:
            writer.join([waiting.pop(0)])
        if writer.texts:
            list(writer.step())
        elif not waiting:
            return [row.tokens for row in written]


def alone(forward, model, prompt, options):
    text = TextInProgress(list(prompt), options)
    list(generate(Reader(forward, BLOCK_SIZE, model.new_cache), [text]))
    return text.tokens


@native
@pytest.mark.parametrize("kind", KINDS)
def test_natively_a_text_in_company_is_the_text_alone(kind, monkeypatch):
    model = gpt(**kind)
    forward, wanted = gpt_forward(model, native_decoder(model)), list(orders(10))
    texts = [alone(forward, model, *each) for each in wanted]
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert in_company(forward, model, wanted, 7) == texts


@pytest.mark.parametrize("kind", [KINDS[1], {"attention": "linear"}])
def test_through_torch_too_where_no_two_tokens_tie(kind):
    """Logits differ by 1e-6 with the batch's size: a text can differ only where two choices are that close."""
    model = gpt(**kind)
    forward, wanted = gpt_forward(model), list(orders(6))
    assert in_company(forward, model, wanted, 4) == [alone(forward, model, *each) for each in wanted]


WIDE, NARROW = {"n_embd": 128, "n_head": 4}, {"n_embd": 24, "n_head": 2}


@native
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("fp32", {}), ("bf16", {}), ("int8", {}), ("fp32", WIDE), ("bf16", NARROW)],
)
@torch.inference_mode()
def test_a_rows_bytes_do_not_depend_on_the_number_of_rows(dtype, sizes, monkeypatch):
    """Logits, keys and values, for every size of the batch, and one or two threads."""
    model = gpt(**sizes).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
    if dtype == "int8":
        round_to_int8(model)
    decoder = native_decoder(model, int8=dtype == "int8")
    tokens = torch.arange(MAX_ROWS * 6).reshape(MAX_ROWS, 6) * 31 % V

    def run(rows, threads):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        cache = model.new_cache(rows)
        logits = [decoder(tokens[:rows, place : place + 1], cache) for place in range(6)]
        return torch.stack(logits, 1), cache.keys, cache.values

    single = [run(rows, threads) for rows in (1, 3, 16, 31, 32) for threads in (1, 2)]
    logits, keys, values = single[-1]
    for one_logits, one_keys, one_values in single:
        rows = len(one_logits)
        assert torch.equal(one_logits, logits[:rows])
        assert torch.equal(one_keys, keys[:, :rows])
        assert torch.equal(one_values, values[:, :rows])


def test_a_text_that_is_taken_out_leaves_the_others_alone():
    model = gpt()
    forward, wanted = gpt_forward(model), [order for order in orders(30) if order[1].max_new_tokens == 45][:4]
    writer = Writer(Reader(forward, BLOCK_SIZE, model.new_cache, room=4))
    rows = [TextInProgress(list(prompt), options) for prompt, options in wanted]
    writer.join(rows)
    for step in range(45):
        if step == 9:
            writer.leave(rows[1])
        list(writer.step())
    assert len(rows[1].tokens) == len(wanted[1][0]) + 9
    for index in (0, 2, 3):
        assert rows[index].tokens == alone(forward, model, *wanted[index])
    assert writer.texts == []


def test_rows_are_filtered_as_each_would_be():
    logits = torch.randn(12, V, dtype=torch.float64)
    seen = torch.rand(12, V) < 0.3
    options = [order[1] for order in orders(12)]
    got = filter_rows(logits, seen, options)
    for row, own in enumerate(options):
        assert torch.equal(got[row], filter_logits(logits[[row]], seen[[row]], own)[0])
