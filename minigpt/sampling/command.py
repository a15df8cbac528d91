"""What minigpt sample does: a checkpoint writes. Text goes to stdout, everything else to stderr."""

import codecs
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint
from minigpt.config.schema import SampleConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import FINISHED, UserFault
from minigpt.machine.hardware import probe
from minigpt.model.gpt import GPT
from minigpt.sampling.generate import window_start
from minigpt.sampling.interactive import converse
from minigpt.sampling.native.decoder import NativeDecoder, native_decoder, round_to_int8
from minigpt.sampling.native.library import NoNativeCode
from minigpt.sampling.prompt import encode_prompt, start_token
from minigpt.sampling.terminal import say, show
from minigpt.sampling.write import Text, write

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
        decoder = choose_decoder(config, loaded.model)
        if config.interactive:
            if config.prompt or config.prompt_file is not None:
                say("note: interactive=true asks for the prompt; prompt= and prompt_file= are not used")
            converse(loaded.model, loaded.tokenizer, config, decoder=decoder)
        else:
            write_once(loaded, config, decoder)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has seen enough; Python must not try to flush again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FINISHED


def load(config: SampleConfig) -> LoadedCheckpoint:
    """Load the checkpoint, its model on the device and in the precision asked for.

    Raises:
        UserFault: no such checkpoint or device.
    """
    if config.checkpoint is None:
        raise UserFault("no checkpoint was given, so there is no model to sample from. Type checkpoint=RUN")
    device = choose_device(config)
    loaded = load_checkpoint(config.checkpoint, config.which)
    loaded.model.to(device, DTYPES[config.precision]).eval()
    if config.precision == "int8":
        round_to_int8(loaded.model)
    say(f"{loaded.path}: on {device} in {config.precision}")
    return loaded


def choose_device(config: SampleConfig) -> str:
    """Return the device asked for; auto = the best there is. MPS has no fp64, which then runs on the CPU.

    Raises:
        UserFault: the device asked for is not there.
    """
    found = probe(config.device).device
    if config.device not in ("auto", found):
        raise UserFault(f"device={config.device}: this machine has none that PyTorch can use. Use device=auto or cpu")
    return "cpu" if found == "mps" and config.precision == "fp64" else found


def choose_decoder(config: SampleConfig, model: GPT) -> NativeDecoder | None:
    """Return native code for a token's step where it is wanted and works; None = the model's own step.

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
            raise UserFault(
                f"prompt_file={config.prompt_file} can't be read: {error.strerror or error}. Give a text file"
            ) from None
    return prompts or [""]


def write_once(loaded: LoadedCheckpoint, config: SampleConfig, decoder: NativeDecoder | None) -> None:
    """Continue the config's prompts and show them.

    Raises:
        UserFault: a prompt that can't be encoded, or too many samples for the memory.
    """
    prompts = read_prompts(config)
    encoded = [encode_prompt(loaded.tokenizer, prompt, allow_special=config.allow_special) for prompt in prompts]
    for note in notes(loaded, config, prompts, encoded):
        say(f"note: {note}")
    block_size = loaded.model.config.block_size
    beginnings = [shown_prompt(*each, loaded.tokenizer, block_size) for each in zip(prompts, encoded, strict=True)]
    started = time.perf_counter()
    if config.stream and len(prompts) * config.num_samples == 1:
        try:
            show(beginnings[0])
            texts = write(loaded.model, loaded.tokenizer, encoded, config, decoder=decoder, on_text=show)
        finally:
            show("\n")  # what is said next, of Ctrl-C too, has a line of its own
    else:
        texts = write_batch(loaded, config, encoded, decoder)
        show_all(beginnings, texts, config.num_samples)
    seconds = time.perf_counter() - started
    tokens = sum(len(text.sample.tokens) for text in texts)
    say(f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s{endings(texts)}")


def shown_prompt(prompt: str | bytes, tokens: Sequence[int], tokenizer: Tokenizer, block_size: int) -> str:
    """Return what stands before a text: the prompt, or the end of it that the model reads; of binary data nothing."""
    unread = window_start(len(tokens), block_size)
    text = as_text(prompt)
    return f"... {tokenizer.decode(tokens[unread:])}" if unread and text is not None else text or ""


def as_text(prompt: str | bytes) -> str | None:
    """Return a prompt as text, or None if its bytes are not UTF-8."""
    try:
        return prompt if isinstance(prompt, str) else prompt.decode()
    except UnicodeDecodeError:
        return None


def write_batch(
    loaded: LoadedCheckpoint, config: SampleConfig, encoded: Sequence[Sequence[int]], decoder: NativeDecoder | None
) -> list[Text]:
    """Write all samples at once.

    Raises:
        UserFault: they don't fit into memory.
    """
    try:
        return write(loaded.model, loaded.tokenizer, encoded, config, decoder=decoder)
    except RuntimeError as error:  # CUDA's is torch.OutOfMemoryError; the CPU's has no class of its own
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise UserFault(
                f"{len(encoded)} prompts x num_samples={config.num_samples} don't fit into memory at once. "
                "Use a smaller num_samples"
            ) from None
        raise


def show_all(beginnings: Sequence[str], texts: Sequence[Text], num_samples: int) -> None:
    """Print the texts, each under a headline if there are several."""
    for text in texts:
        if len(texts) > 1:
            prompt, number = text.sample.prompt + 1, text.sample.number + 1
            show(f"--- prompt {prompt} of {len(beginnings)}, sample {number} of {num_samples} ---\n")
        show(f"{beginnings[text.sample.prompt]}{text.text}\n")


def endings(texts: Sequence[Text]) -> str:
    """Say how many texts ended before max_new_tokens, and why."""
    reasons = {"end of text": "the model's end-of-text token", "stopped": "a stop string"}
    counts = {reason: sum(text.sample.ended == reason for text in texts) for reason in reasons}
    return "".join(f"; {count} ended by {reasons[reason]}" for reason, count in counts.items() if count)


def notes(
    loaded: LoadedCheckpoint, config: SampleConfig, prompts: Sequence[str | bytes], encoded: Sequence[Sequence[int]]
) -> list[str]:
    """Return what the user may not expect."""
    block_size, V = loaded.model.config.block_size, loaded.tokenizer.vocab_size
    found = []
    if not all(prompts):
        found.append(f"an empty prompt starts from {start_token(loaded.tokenizer)[1]}")
    for index, tokens in enumerate(encoded):
        if unread := window_start(len(tokens), block_size):
            found.append(
                f"prompt {index + 1} has {len(tokens):,} tokens and the model's window {block_size}: "
                f"it reads the last {len(tokens) - unread}, and only they are shown"
            )
    for index, prompt in enumerate(prompts, 1):
        if as_text(prompt) is None:
            found.append(f"prompt {index} is not UTF-8 text: its {len(prompt):,} bytes are read and not shown")
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        found.append(f"this terminal writes {sys.stdout.encoding}, other characters become ?: set LC_ALL=C.UTF-8")
    if config.top_k > V:
        found.append(f"top_k={config.top_k} is more than the vocabulary of {V}: all tokens are kept")
    if config.allow_special and loaded.tokenizer.eot is None:
        found.append(f"allow_special=true changes nothing: tokenizer={loaded.tokenizer.name} has no control token")
    return found
