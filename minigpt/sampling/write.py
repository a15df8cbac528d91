"""Text in, text out: the model, the tokenizer and the sampling loop put together."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minigpt.config.schema import SampleConfig, SamplesConfig
from minigpt.data.chat.roles import has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.cache import KVCache
from minigpt.model.gpt import GPT
from minigpt.sampling.conversation import Turn, turn_of
from minigpt.sampling.draw import upload
from minigpt.sampling.generate import Forward, Reader, Row, Sample, Writer, generate
from minigpt.sampling.native.decoder import MAX_ROWS, NativeDecoder
from minigpt.sampling.stream import TextStream


def encode_prompt(tokenizer: Tokenizer, prompt: str | bytes, *, allow_special: bool = False) -> list[int]:
    """Return a prompt as tokens; at least one.

    Args:
        tokenizer: the model's.
        prompt: text, or a file's bytes, which need not be UTF-8 if the tokenizer takes any bytes.
        allow_special: let `<|endoftext|>` become the control token. Otherwise it is text like any other.

    Returns:
        Its tokens; the one of `start_token` if it is empty.

    Raises:
        UserFault: the bytes are no text although text is needed, or a character is unknown to the tokenizer.
    """
    if not prompt:
        return [start_token(tokenizer)[0]]
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, allow_special=allow_special)
    if not allow_special:
        return tokenizer.encode_bytes(prompt).tolist()
    try:
        return tokenizer.encode(prompt.decode(), allow_special=True)
    except UnicodeDecodeError as error:
        place = f"byte {prompt[error.start]:#04x} at offset {error.start}"
        remedy = "Leave allow_special out (then any bytes will do), or save the file as UTF-8"
        raise UserFault(f"the prompt is not UTF-8 text, which allow_special=true needs: {place}. {remedy}") from None


def start_token(tokenizer: Tokenizer) -> tuple[int, str]:
    """Return where a text without a prompt starts, as token and name: end-of-text, else a newline, else token 0."""
    if tokenizer.eot is not None:
        return tokenizer.eot, next(name for name, token in tokenizer.special.items() if token == tokenizer.eot)
    try:
        return tokenizer.encode("\n")[0], "a newline"
    except UserFault:  # the alphabet has none
        return 0, f"{tokenizer.decode([0])!r}, the first character of its alphabet"


def write(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    options: SampleConfig,
    *,
    decoder: NativeDecoder | None = None,
    forward: Forward | None = None,
    on_text: Callable[[str], object] = lambda piece: None,
) -> list[Sample]:
    """Continue prompts with a model.

    Args:
        model: in eval mode.
        tokenizer: the one it was trained with.
        prompts: token ids, at least one each (see `encode_prompt`).
        options: SampleConfig's sampling options.
        decoder: the model's native code, for a faster step from token to token.
        forward: used in place of the model's own, without a cache.
        on_text: called with each piece of text as it is made; for a single sample.

    Returns:
        The samples: all of prompt 0, then of prompt 1, ...

    Raises:
        UserFault: the model's weights are not finite.
    """
    streams = [TextStream(options.stop) for _ in range(len(prompts) * options.num_samples)]

    def on_token(index: int, token: int) -> bool:
        on_text(streams[index].feed(tokenizer.token_bytes(token)))
        return streams[index].stopped

    samples = generate(
        forward or gpt_forward(model, decoder, vocab_size=tokenizer.vocab_size),
        prompts,
        options,
        block_size=model.config.block_size,
        new_cache=model.new_cache if options.use_cache and forward is None else None,
        eot=tokenizer.eot,
        on_token=on_token,
    )
    for sample, stream in zip(samples, streams, strict=True):
        on_text(stream.finish())
        sample.text = stream.text
    return samples


def write_answer(
    forward: Forward,
    tokenizer: Tokenizer,
    turn: Turn,
    options: SampleConfig,
    *,
    block_size: int,
    new_cache: Callable[[int], KVCache] | None = None,
    on_text: Callable[[str], object],
) -> int:
    """Write the answer to a conversation, and return the number of its tokens.

    Args:
        forward, block_size, new_cache: the model, as for `generate`.
        tokenizer: the model's.
        turn: the conversation.
        options: SampleConfig's sampling options.
        on_text: called with each piece of text as it is made.

    Raises:
        NonFiniteLogits: the model's weights are not finite.
    """
    stream = TextStream([*options.stop, *turn.stop])

    def on_token(token: int, logits: Tensor) -> bool:
        on_text(stream.feed(tokenizer.token_bytes(token)))
        return stream.stopped

    row = Row(list(turn.tokens), options, ends=turn.ends, on_token=on_token)
    writer = Writer(Reader(forward, block_size, new_cache))
    writer.join([row])
    while writer.rows:
        writer.step()
    on_text(stream.finish())
    return row.written


def write_sample(
    model: GPT, tokenizer: Tokenizer, samples: SamplesConfig, *, seed: int, forward: Forward | None = None
) -> str:
    """Return one sample of a model in training, without its prompt.

    Training does not notice: the model's mode is restored, and no global random number is drawn.
    `forward` as for `write`.

    Raises:
        UserFault: a character the tokenizer does not know, or non-finite weights.
    """
    options = SampleConfig(
        max_new_tokens=samples.max_new_tokens, temperature=samples.temperature, top_k=samples.top_k, seed=seed
    )
    training = model.training
    model.eval()
    try:
        if has_roles(tokenizer):  # the prompt is a message
            turn, text = turn_of(tokenizer, [{"role": "user", "content": samples.prompt}]), list[str]()
            own = forward or gpt_forward(model, vocab_size=tokenizer.vocab_size)
            write_answer(own, tokenizer, turn, options, block_size=model.config.block_size, on_text=text.append)
            return "".join(text)
        return write(model, tokenizer, [encode_prompt(tokenizer, samples.prompt)], options, forward=forward)[0].text
    finally:
        model.train(training)


def gpt_forward(model: GPT, decoder: NativeDecoder | None = None, *, vocab_size: int | None = None) -> Forward:
    """Return a GPT in the form the sampling loop needs: only the last real position goes through the output layer.

    Args:
        model: in eval mode.
        decoder: the model's native code, if it has any.
        vocab_size: the tokenizer's: a foreign model may have more tokens, and those stand for no text.
    """
    device = model.token_embedding.weight.device

    def forward(tokens: Tensor, lengths: Sequence[int], cache: KVCache | None) -> Tensor:
        if decoder is not None and cache is not None and tokens.shape[1] == 1 and len(lengths) <= MAX_ROWS:
            return decoder(tokens, cache)[..., :vocab_size]
        hidden = model.hidden(upload(tokens, device), cache=cache)  # (B, T, C)
        if tokens.shape[1] == 1:
            return model.logits(hidden[:, 0])[..., :vocab_size]
        last = upload(torch.tensor(lengths) - 1, device)
        return model.logits(hidden[torch.arange(len(lengths), device=device), last])[..., :vocab_size]

    return forward
