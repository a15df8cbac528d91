"""The prompt at the terminal, which `minigpt sample interactive=true` and `minigpt chat` share."""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from minigpt.config.check import check
from minigpt.config.convert import read, settings, value_from_text
from minigpt.config.schema import SampleConfig
from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions
from minigpt.screen import note

# Settings that a command of the same name changes: /temperature 0.5.
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "seed")

Answer = Callable[[str, SamplingOptions], object]  # shows what the model writes after a line


def prompt_loop(options: SamplingOptions, answer: Answer, reset: Callable[[], object] | None = None) -> None:
    """Call `answer` for each typed line until /quit, the end of the input, or Ctrl-C at the prompt.

    Ctrl-C while the model writes stops that text only. Every text has its own seed, counted up from the options'.

    Args:
        options: to start with; commands change them.
        answer: called with each line and the options as they are then.
        reset: forgets the conversation, for the command /reset.
    """
    for line in typed_lines():
        word = line.split()[:1]
        if reset is not None and word == ["/reset"]:
            reset()
        elif word == ["/help"]:
            about = settings(SampleConfig)
            lines = [f"  /{name:<20}{getattr(options, name)!s:<8}{about[name].meaning}" for name in NAMES]
            lines += ["  /reset               forget the conversation"] if reset else []
            note("\n".join([*lines, "  /help, /quit", "  Text that begins with a slash: write two."]))
        elif line.startswith("/") and not line.startswith("//"):
            options = changed(options, line)
        else:
            try:
                answer(line.removeprefix("/"), options)
            except UserFault as fault:
                note(str(fault))
                continue
            except KeyboardInterrupt:
                note("[stopped]")
            options = replace(options, seed=(options.seed + 1) % 2**32)


def typed_lines() -> Iterator[str]:
    """Yield what the user types, line by line, until /quit, the end of the input, or Ctrl-C at the prompt."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (line editing and history for input())
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no UTF-8 becomes U+FFFD
    while True:
        try:
            line = input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "")  # a file gets no prompt sign
        except (EOFError, KeyboardInterrupt):
            note("")
            return
        if line.split()[:1] == ["/quit"]:
            return
        yield line


def changed(options: SamplingOptions, line: str) -> SamplingOptions:
    """Return the options after a command; for an unknown command or a wrong value, say so and leave them unchanged."""
    name, _, value = line[1:].strip().partition(" ")
    if name not in NAMES:
        note(f"no command /{name}. /help lists them; //text is a text")
        return options
    typed = value_from_text(settings(SampleConfig)[name].kind, value)
    config, faults = read(SampleConfig, {"checkpoint": ".", name: typed})
    if sentences := [fault.sentence for fault in faults] or check(config):
        note("\n".join(sentences))
        return options
    note(f"{name} = {getattr(config, name)}")
    return replace(options, **{name: getattr(config, name)})
