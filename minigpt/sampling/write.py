"""Text in, text out: the model, the tokenizer and the sampling loop put together."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minigpt.config.schema import SamplesConfig
from minigpt.data.chat.roles import has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.cache import KVCache
from minigpt.model.evaluate import upload
from minigpt.model.gpt import GPT
from minigpt.sampling.conversation import turn_of
from minigpt.sampling.filters import SamplingOptions, options_of
from minigpt.sampling.generate import Forward, Reader, TextInProgress, generate
from minigpt.sampling.native.decoder import MAX_ROWS, NativeDecoder
from minigpt.sampling.stream import TextStream
from minigpt.screen import Say
from minigpt.seeds import fold

# On a GPU, without cuDNN, which plans anew for each length of a text: 58 instead of 4 ms a token.
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def encode_prompt(tokenizer: Tokenizer, prompt: str | bytes, *, allow_special: bool = False) -> list[int]:
    """Return a prompt's tokens after those that begin each text; for an empty prompt, `start_tokens`.

    A file's bytes need not be UTF-8 if the tokenizer takes any bytes. With `allow_special`, `<|endoftext|>` becomes the
    control token; otherwise it is text.
    """
    if not prompt:
        return start_tokens(tokenizer)[0]
    if isinstance(prompt, bytes) and allow_special:
        prompt = prompt.decode("utf-8", "surrogateescape")  # bad bytes become surrogates, which are refused
    if isinstance(prompt, bytes):
        tokens = tokenizer.encode_bytes(prompt).tolist()
    else:
        tokens = tokenizer.encode(prompt, allow_special=allow_special)
    start = tokenizer.start
    return tokens if tokens[: len(start)] == start else [*start, *tokens]


def start_tokens(tokenizer: Tokenizer) -> tuple[list[int], str]:
    """Return the tokens from which a text without a prompt starts, and their name.

    They are the file's own token, else end-of-text, else a newline, else token 0. A text of one document never taught
    what follows end-of-text: a newline after it leads back to the text. Records have no such newline.
    """
    if tokenizer.rules is not None:
        token = tokenizer.start[0] if tokenizer.start else tokenizer.rules.eot
        return [token], tokenizer.names[token]
    if tokenizer.eot is not None and tokenizer.begins_texts:
        return [tokenizer.eot], tokenizer.names[tokenizer.eot]
    try:
        newline = tokenizer.encode("\n")
        if tokenizer.eot is not None:
            return [tokenizer.eot, *newline], f"{tokenizer.names[tokenizer.eot]} and a newline"
        return newline[:1], "a newline"
    except UserFault:  # the alphabet has none
        return [0], f"{tokenizer.decode([0])!r}, the first character of its alphabet"


def write(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    options: SamplingOptions,
    *,
    num_samples: int = 1,
    decoder: NativeDecoder | None = None,
    use_cache: bool = True,
    on_text: Say = lambda piece: None,
) -> list[TextInProgress]:
    """Continue each prompt with a model.

    Args:
        model: in eval mode.
        tokenizer: the one it was trained with.
        prompts: token ids, at least one each (see `encode_prompt`).
        options: of all texts.
        num_samples: texts per prompt.
        decoder: the model's native code, for a faster step from token to token.
        use_cache: False reads the whole window for every token: slower, and the same text.
        on_text: called with each piece of text as it is made; for a single text.

    Returns:
        The texts: all of prompt 0, then of prompt 1, ...
    """
    texts = texts_of(prompts, options, num_samples, text_ends(tokenizer))
    forward = gpt_forward(model, decoder, vocab_size=tokenizer.vocab_size)
    reader = Reader(forward, model.config.block_size, model.new_cache if use_cache else None)
    write_texts(reader, tokenizer, texts, on_text)
    return texts


def text_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the token that ends a text, if the tokenizer has one."""
    return frozenset() if tokenizer.eot is None else frozenset({tokenizer.eot})


def texts_of(
    prompts: Sequence[Sequence[int]], options: SamplingOptions, num_samples: int, ends: frozenset[int]
) -> list[TextInProgress]:
    """Return `num_samples` new texts for each prompt.

    Each text has its own random numbers, which follow from the seed, its prompt and its number among the samples of
    this prompt: other prompts in the same call change nothing.
    """
    texts, samples = [], Counter[tuple[int, ...]]()
    for prompt in map(tuple, prompts):
        seeded = replace(options, seed=fold(options.seed, *prompt))
        for _ in range(num_samples):
            texts.append(TextInProgress(list(prompt), seeded, samples[prompt], ends))
            samples[prompt] += 1
    return texts


def write_texts(
    reader: Reader, tokenizer: Tokenizer, texts: Sequence[TextInProgress], on_text: Say = lambda piece: None
) -> None:
    """Write texts to their ends or stop strings, and set their `text`; on_text as for `write`."""
    streams = {text: TextStream(text.options.stop) for text in texts}
    for text, token, _ in generate(reader, texts):
        on_text(streams[text].feed(tokenizer.token_bytes(token)))
        if streams[text].stopped:
            text.ended = "stopped"
    for text, stream in streams.items():
        on_text(stream.finish())
        text.text = stream.text


def write_sample(model: GPT, tokenizer: Tokenizer, samples: SamplesConfig, *, seed: int) -> str:
    """Return one sample of a model in training after its prompt; with roles, the prompt is a message and left out.

    Training does not notice: the model's mode is restored, and no global random number is drawn.
    """
    options = replace(options_of(samples), seed=seed)
    if has_roles(tokenizer):
        turn = turn_of(tokenizer, [{"role": "user", "content": samples.prompt}])
        shown, text = "", TextInProgress(turn.tokens, options, ends=turn.ends)
    else:
        shown, prompt = samples.prompt, encode_prompt(tokenizer, samples.prompt)
        text = TextInProgress(prompt, options, ends=text_ends(tokenizer))
    reader = Reader(gpt_forward(model, vocab_size=tokenizer.vocab_size), model.config.block_size, model.new_cache)
    training = model.training
    model.eval()
    try:
        write_texts(reader, tokenizer, [text])
    finally:
        model.train(training)
    return shown + text.text


def gpt_forward(model: GPT, decoder: NativeDecoder | None = None, *, vocab_size: int | None = None) -> Forward:
    """Return a GPT in the form the sampling loop needs: only the last real position goes through the output layer.

    An imported model may have more tokens than the tokenizer's vocab_size; those have no text and are left out.
    """
    device = model.token_embedding.weight.device

    def forward(tokens: Tensor, lengths: Sequence[int], cache: KVCache | None) -> Tensor:
        if decoder is not None and cache is not None and tokens.shape[1] == 1 and len(lengths) <= MAX_ROWS:
            return decoder(tokens, cache)[..., :vocab_size]
        with sdpa_kernel(WITHOUT_CUDNN) if device.type == "cuda" else contextlib.nullcontext():
            hidden = model.hidden(upload(tokens, device), cache=cache)  # (B, T, C)
        if tokens.shape[1] == 1:
            return model.logits(hidden[:, 0])[..., :vocab_size]
        last = upload(torch.tensor(lengths) - 1, device)
        return model.logits(hidden[torch.arange(len(lengths), device=device), last])[..., :vocab_size]

    return forward
