"""minigpt sample: write text with a checkpoint. The text goes to stdout, everything else to stderr."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint, load_with_adapter
from minigpt.config.commands import ChatConfig
from minigpt.config.schema import SampleConfig
from minigpt.faults import FINISHED, UserFault
from minigpt.machine.hardware import probe
from minigpt.model.gpt import GPT
from minigpt.sampling.filters import SamplingOptions, options_of
from minigpt.sampling.generate import window_start
from minigpt.sampling.interactive import prompt_loop
from minigpt.sampling.native.decoder import NativeDecoder, native_decoder, round_to_int8
from minigpt.sampling.native.library import NoNativeCode
from minigpt.sampling.write import encode_prompt, start_tokens, write
from minigpt.screen import note, show

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32, "fp64": torch.float64}


def sample(config: SampleConfig) -> int:
    """Write texts with a trained model; return the exit code."""
    loaded, options = load(config), options_of(config)
    decoder = choose_decoder(loaded.model, config.compile if config.use_cache else "off", config.precision)
    if config.interactive:
        note("Type the beginning of a text. /help lists the commands, /quit or Ctrl-D leaves.")
        once = replace(config, prompt_file=None, num_samples=1, stream=True)
        prompt_loop(options, lambda line, now: write_prompts(loaded, decoder, replace(once, prompt=[line]), now))
    else:
        write_prompts(loaded, decoder, config, options)
    return FINISHED


def load(config: SampleConfig | ChatConfig) -> LoadedCheckpoint:
    """Load the checkpoint, with the adapter if one is given, to the device and in the precision of the settings."""
    loaded = load_checkpoint(str(config.checkpoint), config.which)
    if config.adapter is not None:
        loaded = load_with_adapter(config.adapter, config.which, [loaded])
    move(loaded, config.device, config.precision)
    return loaded


def move(loaded: LoadedCheckpoint, device: str, precision: str) -> None:
    """Bring a model that was just loaded to a device and into a precision."""
    device = probe(device).device
    loaded.model.to(device, DTYPES[precision]).eval()
    if precision == "int8":
        round_to_int8(loaded.model)
    note(f"{loaded.path}: on {device} in {precision}")


def choose_decoder(model: GPT, compile: str, precision: str) -> NativeDecoder | None:
    """Return the native decoder if it is wanted and works; None = decode with the model itself."""
    if compile == "off":
        return None
    try:
        return native_decoder(model, int8=precision == "int8")
    except NoNativeCode as reason:
        if compile == "on":
            raise UserFault(f"compile=on: {reason}. Use compile=auto, which then does without") from None
        if model.token_embedding.weight.device.type == "cpu":
            note(f"a token's step is not compiled: {reason}")
        return None


def write_prompts(
    loaded: LoadedCheckpoint, decoder: NativeDecoder | None, config: SampleConfig, options: SamplingOptions
) -> None:
    """Continue the config's prompts and show them."""
    prompts: list[str | bytes] = list(config.prompt)
    if config.prompt_file is not None:
        prompts.append(Path(os.path.expanduser(config.prompt_file)).read_bytes())
    prompts = prompts or [""]
    encoded = [encode_prompt(loaded.tokenizer, prompt, allow_special=config.allow_special) for prompt in prompts]
    if not all(prompts):
        note(f"note: an empty prompt starts from {start_tokens(loaded.tokenizer)[1]}")
    block_size = loaded.model.config.block_size
    pairs = zip(prompts, encoded, strict=True)
    beginnings = [beginning(number, *pair, block_size) for number, pair in enumerate(pairs, 1)]
    streaming = config.stream and len(prompts) * config.num_samples == 1
    writer = partial(write, loaded.model, loaded.tokenizer, decoder=decoder, use_cache=config.use_cache)
    on_text: Callable[[str], object] = show if streaming else lambda piece: None
    started = time.perf_counter()
    try:
        if streaming and not config.interactive:  # the user has just typed an interactive prompt
            show(beginnings[0])
        texts = writer(encoded, options, num_samples=config.num_samples, on_text=on_text)
    finally:
        if streaming:
            show("\n")  # so that the next message begins a new line, also after Ctrl-C
    seconds = time.perf_counter() - started
    for index, text in enumerate(texts if not streaming else ()):
        prompt, number = divmod(index, config.num_samples)
        if len(texts) > 1:
            show(f"--- prompt {prompt + 1} of {len(prompts)}, sample {number + 1} of {config.num_samples} ---\n")
        show(f"{beginnings[prompt]}{text.text}\n")
    tokens, seed = sum(len(text.written) for text in texts), f"; seed {options.seed}" if config.interactive else ""
    for reason, words in (("end of text", "the model's end-of-text token"), ("stopped", "a stop string")):
        if count := sum(text.ended == reason for text in texts):
            seed = f"; {count} ended by {words}{seed}"
    note(f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s{seed}")


def beginning(number: int, prompt: str | bytes, tokens: Sequence[int], block_size: int) -> str:
    """Return the prompt as shown before a text; print a note if it is longer than the model's window."""
    if n_left_out := window_start(len(tokens), block_size):
        window = f"{len(tokens):,} tokens and the model's window {block_size}"
        note(f"note: prompt {number} has {window}: it reads the last {len(tokens) - n_left_out}")
    return prompt if isinstance(prompt, str) else prompt.decode(errors="replace")
