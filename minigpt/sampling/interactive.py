"""The interactive prompt: type a beginning, the model goes on. It knows a function that writes a text, not a model."""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from minigpt.config.check import check
from minigpt.config.convert import read, settings, to_dict, value_from_text
from minigpt.config.schema import SampleConfig
from minigpt.faults import UserFault
from minigpt.sampling.stream import say

COMMANDS = {  # command -> the setting it changes; the setting's own name (/top_k) is a command, too
    "/temp": "temperature",
    "/topk": "top_k",
    "/topp": "top_p",
    "/minp": "min_p",
    "/penalty": "repetition_penalty",
    "/seed": "seed",
    "/len": "max_new_tokens",
}


def converse(options: SampleConfig, write_text: Callable[[SampleConfig], object]) -> None:
    """Ask for prompts and have them continued until /quit, the end of the input, or Ctrl-C at the prompt.

    Ctrl-C while the model writes stops the text only. Every text has its own seed, counted up from the options'
    and shown, so that each can be written again.

    Args:
        options: to start with.
        write_text: shows what the model writes with these options, which hold the prompt.
    """
    say("Type the beginning of a text. /help lists the commands, /quit or Ctrl-D leaves.")
    for line in typed_lines():
        if line.startswith("/") and not line.startswith("//"):
            options = obey(line, options)
            continue
        try:
            write_text(replace(options, prompt=[line.removeprefix("/")]))
        except UserFault as fault:
            say(str(fault))
            continue
        except KeyboardInterrupt:
            say("[stopped]")
        options = replace(options, seed=(options.seed + 1) % 2**32)


def typed_lines() -> Iterator[str]:
    """Yield what the user types, line by line, until /quit, the end of the input, or Ctrl-C at the prompt."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (line editing and history for input())
    while True:
        try:
            line = ask()
        except (EOFError, KeyboardInterrupt):
            say("")
            return
        except UnicodeDecodeError:
            say("that was not UTF-8 text: set the terminal to UTF-8")
            continue
        if line.split()[:1] == ["/quit"]:
            return
        yield line


def ask() -> str:
    """Return a line from the user; the mark before it never goes into a file to which stdout is redirected."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input("> ")  # through readline, which must know the mark to edit the line
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return input()


def obey(line: str, options: SampleConfig) -> SampleConfig:
    """Return the options after a command; for an unknown command or a wrong value, say so and leave them unchanged."""
    name, _, value = line.strip().partition(" ")
    key = COMMANDS.get(name, name[1:])
    if name == "/help":
        say(help_text(options))
    elif key not in COMMANDS.values():
        near = difflib.get_close_matches(name, [*COMMANDS, "/help", "/quit"], n=1)
        say(f"no command {name}.{f' Did you mean {near[0]}?' if near else ''} /help lists them; //text is a prompt")
    else:
        typed = value_from_text(settings(SampleConfig)[key].kind, value)
        changed, faults = read(SampleConfig, to_dict(options) | {key: typed})
        sentences = [fault.sentence for fault in faults] or check(changed)
        say("\n".join(sentences) or f"{key} = {getattr(changed, key)}")
        return options if sentences else changed
    return options


def help_text(options: SampleConfig) -> str:
    """Return the help: all commands with their present values."""
    about = settings(SampleConfig)
    lines = [f"  {name:<9}{getattr(options, key)!s:<8}{about[key].meaning}" for name, key in COMMANDS.items()]
    return "\n".join([*lines, "  /help, /quit", "  Text that begins with a slash: write two."])
