"""minigpt chat: a conversation at the terminal, encoded as minigpt serve does it.

The answers go to stdout, everything else to stderr.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.commands import ChatConfig
from minigpt.config.schema import SampleConfig
from minigpt.data.chat.roles import has_roles
from minigpt.faults import FINISHED, UserFault
from minigpt.sampling.command import choose_decoder, load
from minigpt.sampling.conversation import Turn, refuse_too_long, turn_of
from minigpt.sampling.generate import Forward
from minigpt.sampling.interactive import help_text, obey, typed_lines
from minigpt.sampling.stream import say, show
from minigpt.sampling.write import gpt_forward, write_answer

HELP = "  /reset   forget the conversation"


def chat(config: ChatConfig) -> int:
    """Talk until /quit, the end of the input, or Ctrl-C at the prompt.

    Args:
        config: checked (minigpt.config.check).

    Returns:
        The exit code.

    Raises:
        UserFault: a checkpoint, adapter, device or message of the system that can't be used.
    """
    shared = {field.name for field in fields(SampleConfig)} & {field.name for field in fields(config)}
    options = SampleConfig(**{name: getattr(config, name) for name in shared})
    try:
        loaded = load(options)
        decoder = choose_decoder(options, loaded.model)
        if not has_roles(loaded.tokenizer):
            say("note: this model has not learned conversations (data=chat): it continues a plain transcript")
        forward = gpt_forward(loaded.model, decoder, vocab_size=loaded.tokenizer.vocab_size)
        talk(Conversation(loaded, forward, config.system), options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; Python must not try to flush again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FINISHED


class Conversation:
    """A conversation and the model that answers in it.

    Args:
        loaded: the model that answers.
        forward: gives its logits (see generate.py).
        system: the first message, if there is one.

    Raises:
        UserFault: the context does not hold that message.
    """

    def __init__(self, loaded: LoadedCheckpoint, forward: Forward, system: str | None = None):
        self.loaded, self.forward = loaded, forward
        self.first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = []
        self.told = False  # whether a note has said that the oldest messages are left out
        if system is not None:
            try:
                empty = turn_of(loaded.tokenizer, [*self.first, {"role": "user", "content": ""}])
                refuse_too_long(empty, loaded.model.config.block_size)
            except UserFault as fault:
                raise UserFault(f"system=: {fault}") from None

    def answer(self, text: str, options: SampleConfig, on_text: Callable[[str], object] = show) -> int:
        """Answer a message; return the number of tokens. After Ctrl-C the text written so far is the answer.

        Raises:
            UserFault: a character that the tokenizer does not know, or a message that the context can't hold; the
                message is then forgotten.
            KeyboardInterrupt: raised again after the answer so far was kept.
        """
        model, tokenizer, pieces = self.loaded.model, self.loaded.tokenizer, list[str]()

        def told(piece: str) -> None:
            pieces.append(piece)
            on_text(piece)

        self.messages.append({"role": "user", "content": text})
        try:
            turn = self.turn(options.max_new_tokens)
        except UserFault:
            self.messages.pop()
            raise
        try:
            return write_answer(
                self.forward,
                tokenizer,
                turn,
                options,
                block_size=model.config.block_size,
                new_cache=model.new_cache,
                on_text=told,
            )
        finally:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def turn(self, max_new_tokens: int) -> Turn:
        """Return what the model reads: the conversation, without its oldest exchanges if it would be too long.

        Raises:
            UserFault: the last message alone is longer than the context.
        """
        block_size, forgotten = self.loaded.model.config.block_size, 0
        room = block_size - min(max_new_tokens, block_size // 4)
        while True:
            turn = turn_of(self.loaded.tokenizer, [*self.first, *self.messages[forgotten:]])
            if len(turn.tokens) <= room or forgotten == len(self.messages) - 1:
                break
            forgotten += 2
        refuse_too_long(turn, block_size)
        if forgotten and not self.told:
            say(f"note: the model reads {block_size} tokens: the oldest messages are left out from now on")
            self.told = True
        return turn

    def reset(self) -> None:
        """Forget all messages."""
        self.messages.clear()
        self.told = False


def talk(conversation: Conversation, options: SampleConfig) -> None:
    """Ask for messages and have them answered. Ctrl-C stops the answer only; at the prompt it ends the program."""
    say("Type a message. /reset forgets the conversation, /help lists the commands, /quit or Ctrl-D leaves.")
    for line in typed_lines():
        command = line.strip()
        name = command.partition(" ")[0]
        if name == "/reset":
            conversation.reset()
            say("forgotten")
        elif name == "/help":
            say(f"{HELP}\n{help_text(options)}")
        elif command.startswith("/") and not command.startswith("//"):
            options = obey(line, options)
        elif command:
            options = reply(conversation, command.removeprefix("/"), options)


def reply(conversation: Conversation, text: str, options: SampleConfig) -> SampleConfig:
    """Answer a message and say how fast; return the options with the next seed."""
    started = time.perf_counter()
    try:
        tokens = conversation.answer(text, options)
    except UserFault as fault:
        say(str(fault))
        return options
    except KeyboardInterrupt:
        show("\n")
        say("[stopped]")
    else:
        show("\n")
        seconds = time.perf_counter() - started
        say(f"{tokens:,} tokens in {seconds:.1f} s; seed {options.seed}")
    return replace(options, seed=(options.seed + 1) % 2**32)
