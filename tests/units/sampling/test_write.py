"""The sampling loop with a real GPT: cached equals uncached, no two texts are alike, prompts are tokens."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.generate import Reader
from minigpt.sampling.write import encode_prompt, gpt_forward, start_tokens, write
from tests.units.model.spread import spread_gpt

BLOCK_SIZE = 11
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
BYTE = build_tokenizer("byte")
tiny_gpt = partial(
    spread_gpt, vocab_size=BYTE.vocab_size, std=0.3, n_layer=2, n_head=2, n_embd=24, block_size=BLOCK_SIZE
)
PROMPTS = [[72], [100, 101, 102, 10, 32], list(range(60, 90)), [7] * BLOCK_SIZE]  # short, longer than the window, full


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", ["explicit", "fused"])
@torch.inference_mode()
def test_cached_logits_are_the_uncached_ones_while_windows_move(dtype, kernel):
    model = tiny_gpt(dtype=dtype, kernel=kernel)
    cached = Reader(gpt_forward(model), BLOCK_SIZE, model.new_cache)
    uncached = Reader(gpt_forward(model), BLOCK_SIZE, None)
    written = [list(prompt) for prompt in PROMPTS]
    cached.join(written)
    for step in range(45):
        logits = uncached.next_logits(written)
        assert (cached.next_logits(written) - logits).abs().max() < TOLERANCE[dtype]
        for text, token in zip(written, (logits * (1 + step % 3)).argmax(-1).tolist(), strict=True):
            text.append(int(token) if step % 2 else (token + len(text)) % 257)
        if step == 20:
            cached.leave(1)
            written[1] = written.pop()  # the last one takes its row


def test_no_two_texts_of_a_request_share_random_numbers_and_others_change_none():
    model = tiny_gpt()
    options = SamplingOptions(max_new_tokens=12, temperature=1.5, seed=3)

    def ids(*prompts, num_samples=1):
        return [text.written for text in write(model, BYTE, prompts, options, num_samples=num_samples)]

    five = ids([72], [72], [72], [72], [72])
    assert len(set(map(tuple, five))) == 5
    assert five == ids([72], num_samples=5)
    assert ids([9, 9], [72], [72])[1:] == five[:2]  # as alone
    flat = tiny_gpt()  # of equal chances
    for parameter in flat.parameters():
        parameter.data.zero_()
    drawn = [text.written for text in write(flat, BYTE, [[65], [66], [67]], options)]
    assert len(set(map(tuple, drawn))) == 3  # the same distribution after other prompts


CHAR = build_tokenizer("char", alphabet="\nabé")


def test_prompts_are_text_bytes_or_control_tokens():
    assert encode_prompt(BYTE, "é \n") == [0xC3, 0xA9, 32, 10]
    assert encode_prompt(BYTE, "<|endoftext|>") == encode_prompt(BYTE, b"<|endoftext|>") == list(b"<|endoftext|>")
    assert encode_prompt(BYTE, b"a<|endoftext|>b", allow_special=True) == [97, 256, 98]
    assert encode_prompt(BYTE, b"\xff\x00\r\n") == [255, 0, 13, 10]
    for prompt, says in ((b"a\xff", "UTF-8"), ("abz", r"'z'.*position 2"), ("a\ud800", "surrogate")):
        with pytest.raises(UserFault, match=says):
            encode_prompt(CHAR, prompt)
    with pytest.raises(UserFault, match="surrogate"):
        encode_prompt(BYTE, b"a\xff", allow_special=True)


def test_an_empty_prompt_starts_somewhere():
    assert encode_prompt(BYTE, "") == encode_prompt(BYTE, b"") == [256, 10]
    assert start_tokens(BYTE) == ([256, 10], "<|endoftext|> and a newline")
    assert start_tokens(CHAR) == (CHAR.encode("\n"), "a newline")
    assert start_tokens(build_tokenizer("char", alphabet="xyz")) == ([0], "'x', the first character of its alphabet")


def test_a_gpu_continues_a_text_without_cudnns_attention_and_trains_with_it(monkeypatch):
    enabled = torch.backends.cuda.cudnn_sdp_enabled

    def hidden(tokens, cache):
        read.append(enabled())
        return torch.zeros(*tokens.shape, 4)

    read: list[bool] = []
    for device, wanted in (("cuda", False), ("cpu", True)):
        weight = SimpleNamespace(weight=SimpleNamespace(device=torch.device(device)))
        model = SimpleNamespace(token_embedding=weight, hidden=hidden, logits=lambda rows: rows)
        monkeypatch.setattr("minigpt.sampling.write.upload", lambda tensor, _: tensor)
        gpt_forward(model)(torch.zeros(1, 1, dtype=torch.long), [1], None)
        assert read.pop() is wanted
        assert enabled()
