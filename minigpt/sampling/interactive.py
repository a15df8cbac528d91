"""The interactive prompt: type a beginning, the model goes on."""

import contextlib
import difflib
import sys
import time
from dataclasses import replace

from minigpt.config.check import check
from minigpt.config.schema import SampleConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from minigpt.sampling.native.decoder import NativeDecoder
from minigpt.sampling.prompt import encode_prompt
from minigpt.sampling.terminal import say, show
from minigpt.sampling.write import write

# Command: the option it sets, and what to say of it.
COMMANDS = {
    "/temp": ("temperature", "0 = greedy"),
    "/topk": ("top_k", "keep the k likeliest tokens; 0 = off"),
    "/topp": ("top_p", "keep the likeliest tokens that together have this probability; 1 = off"),
    "/minp": ("min_p", "drop tokens below this fraction of the likeliest one's probability; 0 = off"),
    "/penalty": ("repetition_penalty", "more than 1 discourages repetition; 1 = off"),
    "/seed": ("seed", "the next text's; each text after it counts one up"),
    "/len": ("max_new_tokens", "tokens to write"),
}


def converse(model: GPT, tokenizer: Tokenizer, config: SampleConfig, *, decoder: NativeDecoder | None = None) -> None:
    """Ask for prompts and continue them until /quit, the end of the input, or Ctrl-C at the prompt.

    Ctrl-C while the model writes stops the text only. Every text has its own seed, counted up from the config's
    and shown, so each can be had again.

    Args:
        model: in eval mode.
        tokenizer: its own.
        config: the options to start with.
        decoder: the model's, for a faster step from token to token.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (line editing and history for input())
    options = replace(config, num_samples=1)
    say("Type the beginning of a text. /help lists the commands, /quit or Ctrl-D leaves.")
    while True:
        try:
            line = ask()
        except (EOFError, KeyboardInterrupt):
            say("")
            return
        except UnicodeDecodeError:
            say("that was not UTF-8 text: set the terminal to UTF-8")
            continue
        if line.strip() == "/quit":
            return
        if line.startswith("/") and not line.startswith("//"):
            options = obey(line, options)
            continue
        try:
            prompt = line.removeprefix("/") if line.startswith("//") else line
            continue_text(model, tokenizer, prompt, options, decoder=decoder)
        except UserFault as fault:
            say(str(fault))
            continue
        except KeyboardInterrupt:
            show("\n")
            say("[stopped]")
        options = replace(options, seed=(options.seed + 1) % 2**32)


def ask() -> str:
    """Return a line from the user; the mark before it never goes into a file."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input("> ")  # through readline, which must know the mark to edit the line
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return input()


def obey(line: str, options: SampleConfig) -> SampleConfig:
    """Return the options after a command; unchanged, with a sentence, if it is none or has a wrong value."""
    name, _, value = line.strip().partition(" ")
    name = next((each for each, (key, _) in COMMANDS.items() if name == f"/{key}"), name)  # /temperature is /temp
    if name == "/help":
        say(help_text(options))
        return options
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, [*COMMANDS, "/help", "/quit"], n=1)
        say(f"no command {name}.{f' Did you mean {near[0]}?' if near else ''} /help lists them; //text is a prompt")
        return options
    key = COMMANDS[name][0]
    kind = type(getattr(options, key))
    try:
        changed = replace(options, **{key: kind(value)})
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        say(f"{name} wants {wanted}, got {value!r}: e.g. {name} {getattr(options, key)}")
        return options
    if faults := check(changed):
        say("\n".join(faults))
        return options
    say(f"{key} = {getattr(changed, key)}")
    return changed


def help_text(options: SampleConfig) -> str:
    """Return the help: all commands with their present values."""
    lines = [f"  {name:<9}{getattr(options, key)!s:<8}{meaning}" for name, (key, meaning) in COMMANDS.items()]
    return "\n".join([*lines, "  /help, /quit", "  Text that begins with a slash: write two."])


def continue_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, options: SampleConfig, *, decoder: NativeDecoder | None
) -> None:
    """Stream one text, then say how it was made."""
    tokens = encode_prompt(tokenizer, prompt, allow_special=options.allow_special)
    started = time.perf_counter()
    text = write(model, tokenizer, [tokens], options, decoder=decoder, on_text=show)[0]
    seconds = time.perf_counter() - started
    show("\n")
    sample = text.sample
    say(
        f"[{len(sample.tokens)} tokens, {len(sample.tokens) / seconds:,.0f} tokens/s, seed {options.seed}"
        + (f", the prompt's first {sample.unread} tokens were not read]" if sample.unread else "]")
    )
