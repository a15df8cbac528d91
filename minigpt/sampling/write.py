"""Text in, text out: the model, the tokenizer and the sampling loop put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.config.schema import SampleConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.model.cache import KVCache
from minigpt.model.gpt import GPT
from minigpt.sampling.draw import upload
from minigpt.sampling.generate import Forward, Sample, generate
from minigpt.sampling.native.decoder import MAX_ROWS, NativeDecoder
from minigpt.sampling.prompt import encode_prompt
from minigpt.sampling.stream import TextStream


@dataclass
class Text:
    """A sample as text."""

    sample: Sample
    text: str  # what was written, without the prompt


def write(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    options: SampleConfig,
    *,
    decoder: NativeDecoder | None = None,
    on_text: Callable[[str], None] | None = None,
) -> list[Text]:
    """Continue prompts with a model.

    Args:
        model: in eval mode.
        tokenizer: the one it was trained with.
        prompts: token ids, at least one each (see `encode_prompt`).
        options: SampleConfig's sampling options.
        decoder: the model's, for a faster step from token to token.
        on_text: called with each piece of text as it is made; for a single sample.

    Returns:
        The texts: all samples of prompt 0, then of prompt 1, ...

    Raises:
        UserFault: the model's weights are not finite.
    """
    streams = [TextStream(options.stop) for _ in range(len(prompts) * options.num_samples)]
    pieces: list[list[str]] = [[] for _ in streams]

    def emit(index: int, piece: str) -> None:
        pieces[index].append(piece)
        if on_text is not None and piece:
            on_text(piece)

    def on_token(index: int, token: int) -> bool:
        emit(index, streams[index].feed(tokenizer.token_bytes(token)))
        return streams[index].stopped

    samples = generate(
        gpt_forward(model, decoder),
        prompts,
        options,
        block_size=model.config.block_size,
        new_cache=model.new_cache if options.use_cache else None,
        eot=tokenizer.eot,
        on_token=on_token,
    )
    for index, stream in enumerate(streams):
        emit(index, stream.finish())
    return [Text(sample, "".join(parts)) for sample, parts in zip(samples, pieces, strict=True)]


def write_sample(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 1337,
) -> str:
    """One sample of a model in training, which does not notice: its mode is restored, no global random number is drawn.

    Args:
        model: in any mode.
        tokenizer: the one it is trained with.
        prompt: text to continue; empty starts from `start_token`.
        max_new_tokens: tokens to write.
        temperature: 0 = greedy.
        top_k: 0 = off.
        seed: the text follows from it and the weights.

    Returns:
        What was written, without the prompt.

    Raises:
        UserFault: a character the tokenizer does not know, or non-finite weights.
    """
    options = SampleConfig(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, seed=seed)
    training = model.training
    model.eval()
    try:
        return write(model, tokenizer, [encode_prompt(tokenizer, prompt)], options)[0].text
    finally:
        model.train(training)


def gpt_forward(model: GPT, decoder: NativeDecoder | None = None) -> Forward:
    """A GPT as the sampling loop wants it: only the last real position goes through the output layer."""
    device = model.token_embedding.weight.device

    def forward(tokens: Tensor, lengths: Sequence[int], cache: KVCache | None) -> Tensor:
        if decoder is not None and cache is not None and tokens.shape[1] == 1 and len(lengths) <= MAX_ROWS:
            return decoder(tokens, cache)
        hidden = model.hidden(upload(tokens, device), cache=cache)  # (B, T, C)
        if tokens.shape[1] == 1:
            return model.logits(hidden[:, 0])
        last = upload(torch.tensor(lengths) - 1, device)
        return model.logits(hidden[torch.arange(len(lengths), device=device), last])

    return forward
