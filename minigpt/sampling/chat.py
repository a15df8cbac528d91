"""minigpt chat: a conversation at the terminal, encoded as minigpt serve does it.

The answers go to stdout, everything else to stderr.
"""

import time

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.commands import ChatConfig
from minigpt.faults import FINISHED, UserFault
from minigpt.sampling.conversation import ConversationTooLong, Turn, form_of, refuse_too_long, turn_of
from minigpt.sampling.filters import SamplingOptions, options_of
from minigpt.sampling.generate import Forward, Reader
from minigpt.sampling.interactive import prompt_loop
from minigpt.sampling.sample import choose_decoder, load
from minigpt.sampling.write import gpt_forward, texts_of, write_texts
from minigpt.screen import note, show


def chat(config: ChatConfig) -> int:
    """Talk until /quit, the end of the input, or Ctrl-C at the prompt; return the exit code."""
    loaded = load(config)
    decoder = choose_decoder(loaded.model, config.compile, config.precision)
    note(f"The model reads {form_of(loaded.tokenizer)}.")
    forward = gpt_forward(loaded.model, decoder, vocab_size=loaded.tokenizer.vocab_size)
    conversation = Conversation(loaded, forward, config.system)
    note("Type a message. /reset forgets the conversation, /help lists the commands, /quit or Ctrl-D leaves.")
    prompt_loop(options_of(config), conversation.answer, conversation.reset)
    return FINISHED


class Conversation:
    """A conversation and the model that answers in it; `system` is its first message, if there is one."""

    def __init__(self, loaded: LoadedCheckpoint, forward: Forward, system: str | None = None):
        self.loaded, self.forward = loaded, forward
        self.system = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = []
        self.noted = False  # whether a note has said that the oldest messages are left out

    def answer(self, message: str, options: SamplingOptions) -> None:
        """Print the answer to a message, and its speed. Ctrl-C ends the answer early.

        A message that can't be encoded, or that is too long for the context, is dropped.
        """
        if not (message := message.strip()):
            return
        model, started = self.loaded.model, time.perf_counter()
        self.messages.append({"role": "user", "content": message})
        try:
            turn = self.turn(options.max_new_tokens)
        except UserFault:
            self.messages.pop()
            raise
        (text,) = texts_of([turn.tokens], turn.options(options), 1, turn.ends)
        pieces: list[str] = []

        def on_text(piece: str) -> None:
            pieces.append(piece)
            show(piece)

        reader = Reader(self.forward, model.config.block_size, model.new_cache)
        try:
            write_texts(reader, self.loaded.tokenizer, [text], on_text)
        finally:
            show("\n")
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
        note(f"{len(text.written):,} tokens in {time.perf_counter() - started:.1f} s; seed {options.seed}")

    def turn(self, max_new_tokens: int) -> Turn:
        """Return the tokens of the conversation, without its oldest exchanges if it is too long."""
        block_size = self.loaded.model.config.block_size
        for forgotten in range(0, len(self.messages), 2):
            turn = turn_of(self.loaded.tokenizer, [*self.system, *self.messages[forgotten:]])
            try:
                refuse_too_long(turn, block_size, max_new_tokens)
                break
            except ConversationTooLong:
                if forgotten == len(self.messages) - 1:
                    raise
        if forgotten and not self.noted:
            note(f"note: the model reads {block_size} tokens: the oldest messages are left out from now on")
            self.noted = True
        return turn

    def reset(self) -> None:
        """Forget all messages."""
        self.messages.clear()
        self.noted = False
        note("forgotten")
