"""minigpt sample: a checkpoint writes. Text goes to stdout, everything else to stderr."""

import codecs
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint, load_with_adapter
from minigpt.config.schema import SampleConfig
from minigpt.faults import FINISHED, UserFault
from minigpt.machine.hardware import find_named
from minigpt.model.gpt import GPT
from minigpt.sampling.generate import Sample, window_start
from minigpt.sampling.interactive import converse
from minigpt.sampling.native.decoder import NativeDecoder, native_decoder, round_to_int8
from minigpt.sampling.native.library import NoNativeCode
from minigpt.sampling.stream import say, show
from minigpt.sampling.write import encode_prompt, start_token, write

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32, "fp64": torch.float64}


def sample(config: SampleConfig) -> int:
    """Write texts with a trained model.

    Args:
        config: checked (minigpt.config.check).

    Returns:
        The exit code.

    Raises:
        UserFault: a checkpoint, prompt or device that can't be used.
    """
    try:
        loaded = load(config)
        write_these = partial(write_texts, loaded, choose_decoder(config, loaded.model))
        if config.interactive:
            if config.prompt or config.prompt_file is not None:
                say("note: interactive=true asks for the prompt; prompt= and prompt_file= are not used")
            converse(replace(config, prompt_file=None, num_samples=1, stream=True), write_these)
        else:
            write_these(config)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has seen enough; Python must not try to flush again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FINISHED


def load(config: SampleConfig) -> LoadedCheckpoint:
    """Load the checkpoint, with the adapter if one is given; its model is on the device and in the precision asked for.

    Raises:
        UserFault: no such checkpoint, adapter or device.
    """
    assert config.checkpoint is not None, "config/rules asks for it"
    loaded = load_checkpoint(config.checkpoint, config.which)
    return ready(
        loaded if config.adapter is None else load_with_adapter(config.adapter, config.which, [loaded]), config
    )


def ready(loaded: LoadedCheckpoint, config: SampleConfig) -> LoadedCheckpoint:
    """Bring a model that was just loaded to the device and the precision asked for.

    Raises:
        UserFault: no such device.
    """
    device = find_named(config.device)
    if device == "mps" and config.precision == "fp64":
        device = "cpu"  # MPS has no fp64
    loaded.model.to(device, DTYPES[config.precision]).eval()
    if config.precision == "int8":
        round_to_int8(loaded.model)
    say(f"{loaded.path}: on {device} in {config.precision}")
    return loaded


def choose_decoder(config: SampleConfig, model: GPT) -> NativeDecoder | None:
    """Return native code for a token's step if it is wanted and works; None = the model's own step.

    Raises:
        UserFault: compile=on, and it does not work here.
    """
    if config.compile == "off" or not config.use_cache:
        return None
    try:
        return native_decoder(model, int8=config.precision == "int8")
    except NoNativeCode as reason:
        if config.compile == "on":
            raise UserFault(f"compile=on: {reason}. Use compile=auto, which then does without") from None
        if model.token_embedding.weight.device.type == "cpu":
            say(f"a token's step is not compiled: {reason}")
        return None


def read_prompts(config: SampleConfig) -> list[str | bytes]:
    """Return the prompts on the command line, then the file's; one empty prompt if there is neither.

    Raises:
        UserFault: the file can't be read.
    """
    prompts: list[str | bytes] = list(config.prompt)
    if config.prompt_file is not None:
        try:
            prompts.append(Path(os.path.expanduser(config.prompt_file)).read_bytes())
        except OSError as error:
            why = error.strerror or error
            raise UserFault(f"prompt_file={config.prompt_file} can't be read: {why}. Give a text file") from None
    return prompts or [""]


def write_texts(loaded: LoadedCheckpoint, decoder: NativeDecoder | None, config: SampleConfig) -> None:
    """Continue the config's prompts and show them.

    Raises:
        UserFault: a prompt that can't be encoded, or too many samples for the memory.
    """
    prompts = read_prompts(config)
    encoded = [encode_prompt(loaded.tokenizer, prompt, allow_special=config.allow_special) for prompt in prompts]
    if not all(prompts):
        say(f"note: an empty prompt starts from {start_token(loaded.tokenizer)[1]}")
    if config.top_k > loaded.tokenizer.vocab_size:
        say(f"note: top_k={config.top_k} is more than the vocabulary of {loaded.tokenizer.vocab_size:,}: all are kept")
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        say(f"note: this terminal writes {sys.stdout.encoding}, other characters become ?: set LC_ALL=C.UTF-8")
    beginnings = [beginning(number, *each, loaded) for number, each in enumerate(zip(prompts, encoded, strict=True), 1)]
    streaming = config.stream and len(prompts) * config.num_samples == 1
    started = time.perf_counter()
    try:
        if streaming and not config.interactive:  # an interactive prompt is on the screen already, as it was typed
            show(beginnings[0])
        on_text = show if streaming else lambda piece: None
        samples = write(loaded.model, loaded.tokenizer, encoded, config, decoder=decoder, on_text=on_text)
    except (MemoryError, RuntimeError) as error:
        from minigpt.machine.memory import is_out_of_memory  # here, not above: it takes a fifth of a second

        if is_out_of_memory(error):
            many = f"{len(prompts)} prompts x num_samples={config.num_samples} don't fit into memory at once"
            raise UserFault(f"{many}. Use a smaller num_samples") from None
        raise
    finally:
        if streaming:
            show("\n")  # the next message, also that on Ctrl-C, has a line of its own
    seconds = time.perf_counter() - started
    for each in samples if not streaming else ():
        if len(samples) > 1:
            place = f"prompt {each.prompt + 1} of {len(prompts)}, sample {each.number + 1} of {config.num_samples}"
            show(f"--- {place} ---\n")
        show(f"{beginnings[each.prompt]}{each.text}\n")
    tokens, seed = sum(len(each.tokens) for each in samples), f"; seed {config.seed}" if config.interactive else ""
    say(f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s{endings(samples)}{seed}")


def beginning(number: int, prompt: str | bytes, tokens: Sequence[int], loaded: LoadedCheckpoint) -> str:
    """Return what is shown before a text: the prompt, or the part of it that can be shown, which a note then says."""
    block_size = loaded.model.config.block_size
    unread = window_start(len(tokens), block_size)
    if unread:
        window = f"{len(tokens):,} tokens and the model's window {block_size}"
        say(f"note: prompt {number} has {window}: it reads the last {len(tokens) - unread}, and only they are shown")
    try:
        text = prompt if isinstance(prompt, str) else prompt.decode()
    except UnicodeDecodeError:
        say(f"note: prompt {number} is not UTF-8 text: its {len(prompt):,} bytes are read and not shown")
        return ""
    return f"... {loaded.tokenizer.decode(tokens[unread:])}" if unread else text


def endings(samples: Sequence[Sample]) -> str:
    """Return how many texts ended before max_new_tokens, and why."""
    reasons = {"end of text": "the model's end-of-text token", "stopped": "a stop string"}
    counts = {reason: sum(each.ended == reason for each in samples) for reason in reasons}
    return "".join(f"; {count} ended by {reasons[reason]}" for reason, count in counts.items() if count)
