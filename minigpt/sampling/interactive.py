"""The prompt at the terminal, which `minigpt sample interactive=true` and `minigpt chat` share."""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from minigpt.config.check import check
from minigpt.config.convert import read, settings, value_from_text
from minigpt.config.schema import SampleConfig
from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions
from minigpt.screen import note

SHORT = {  # command -> the setting it changes; the setting's own name (/top_k) is a command, too
    "/temp": "temperature",
    "/topk": "top_k",
    "/topp": "top_p",
    "/minp": "min_p",
    "/penalty": "repetition_penalty",
    "/seed": "seed",
    "/len": "max_new_tokens",
}


def prompt_loop(
    options: SamplingOptions,
    answer: Callable[[str, SamplingOptions], object],
    commands: Mapping[str, tuple[str, Callable[[], object]]] | None = None,
) -> None:
    """Call `answer` for each typed line until /quit, the end of the input, or Ctrl-C at the prompt.

    Ctrl-C while the model writes stops that text only. Every text has its own seed, counted up from the options'.

    Args:
        options: to start with; commands change them.
        answer: shows what the model writes after a line.
        commands: further commands: for each a description and a function.
    """
    commands = commands or {}
    for line in typed_lines():
        name = line.split()[0] if line.split() else ""
        if name in commands:
            commands[name][1]()
        elif name == "/help":
            about = settings(SampleConfig)
            values = [f"  {name:<9}{getattr(options, key)!s:<8}{about[key].meaning}" for name, key in SHORT.items()]
            others = [f"  {name:<17}{words}" for name, (words, _) in commands.items()]
            note("\n".join([*values, *others, "  /help, /quit", "  Text that begins with a slash: write two."]))
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
    name, _, value = line.strip().partition(" ")
    key = SHORT.get(name, name[1:])
    if key not in SHORT.values():
        note(f"no command {name}. /help lists them; //text is a text")
        return options
    typed = value_from_text(settings(SampleConfig)[key].kind, value)
    config, faults = read(SampleConfig, {"checkpoint": ".", key: typed})
    sentences = [fault.sentence for fault in faults] or check(config)
    if sentences:
        note("\n".join(sentences))
        return options
    note(f"{key} = {getattr(config, key)}")
    return replace(options, **{key: getattr(config, key)})
