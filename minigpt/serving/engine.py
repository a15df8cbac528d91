"""Writes the texts of all requests: one thread, one batch for each model, and per step a token for each of its texts.

A text joins the batch as soon as a row is free and leaves it when it ends, so no request waits for another one's end.
Only the thread computes with the models. Each text is what it would be alone: see sampling/generate.py.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint, load_with_adapter
from minigpt.config.commands import ServeConfig
from minigpt.sampling.generate import Reader, TextInProgress, Writer
from minigpt.sampling.native.decoder import NativeDecoder
from minigpt.sampling.sample import choose_decoder, move
from minigpt.sampling.stream import TextStream
from minigpt.sampling.write import gpt_forward


class Busy(Exception):
    """Raised when no more requests can wait."""


@dataclass(frozen=True)
class Token:
    """A token that was drawn."""

    id: int
    logprob: float = 0.0  # if wanted: nats, by the model's own distribution, before temperature and filters
    top: Sequence[tuple[int, float]] = ()  # the likeliest tokens


@dataclass
class Piece:
    """The part of one text of an answer that a step has added."""

    choice: int
    text: str = ""  # text that is certain: never half a character nor half a stop string
    tokens: list[Token] = field(default_factory=list)
    ended: str = ""  # as TextInProgress.ended


class Answer:
    """The texts that answer a request.

    Args:
        model: the name of the model that writes.
        texts: to write.
        top: how many of the likeliest tokens come with each token; None: no logprobs at all.
    """

    def __init__(self, model: str, texts: Sequence[TextInProgress], top: int | None = None):
        self.model, self.texts, self.top, self.cancelled = model, texts, top, False
        self.events: asyncio.Queue[Piece | Exception] = asyncio.Queue()  # an exception ends the answer


class Choice:
    """One text of an answer, while it is written."""

    def __init__(self, answer: Answer, index: int):
        self.answer, self.text = answer, answer.texts[index]
        self.stream = TextStream(self.text.options.stop)
        self.piece = Piece(index)

    def add(self, token: int, logits: Tensor, token_bytes: bytes) -> None:
        """Add a token that was drawn from logits (V,); its text ends once a stop string is complete."""
        top = self.answer.top
        self.piece.tokens.append(Token(token) if top is None else scored(token, logits, top))
        self.piece.text += self.stream.feed(token_bytes)
        if self.stream.stopped:
            self.text.ended = "stopped"

    def taken(self) -> Piece:
        """Return what was added since the last call."""
        piece, self.piece = self.piece, Piece(self.piece.choice)
        if self.text.ended:
            piece.text += self.stream.finish()
            piece.ended = self.text.ended
        return piece


def scored(token: int, logits: Tensor, top: int) -> Token:
    """Return a token with its logprob, and the `top` likeliest tokens, by logits (V,)."""
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(top, len(logprobs)))
    return Token(token, float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


class Served:
    """A model that is served, and the texts that it writes now, `rows` at a time."""

    def __init__(self, name: str, loaded: LoadedCheckpoint, decoder: NativeDecoder | None, rows: int):
        self.name, self.loaded, self.rows = name, loaded, rows
        self.native = decoder is not None
        self.created = int(time.time())
        forward = gpt_forward(loaded.model, decoder, vocab_size=loaded.tokenizer.vocab_size)
        self.reader = Reader(forward, loaded.model.config.block_size, loaded.model.new_cache, room=rows)
        self.writer = Writer(self.reader)
        self.waiting: list[Choice] = []
        self.writing: dict[TextInProgress, Choice] = {}

    def admit(self) -> list[Choice]:
        """Take texts of the first answer that waits, as many as there are free rows.

        They are of one answer only: reading its prompt holds up the texts that are being written.
        """
        self.waiting = [choice for choice in self.waiting if not choice.answer.cancelled]
        free = self.waiting[: self.rows - len(self.writing)]
        new = [choice for choice in free if choice.answer is free[0].answer]
        self.waiting = self.waiting[len(new) :]
        self.writing |= {choice.text: choice for choice in new}
        return new

    def step(self, new: Sequence[Choice]) -> list[tuple[Answer, Piece]]:
        """Let new texts join, and give each text a token; return the pieces that this has added."""
        if new:
            self.writer.join([choice.text for choice in new])
        # `cancelled` is read once: the event loop may set it at any time.
        writing = {text: choice for text, choice in self.writing.items() if not choice.answer.cancelled}
        for text in [text for text in self.writing if text not in writing]:
            self.writer.leave(text)
        for text, token, logits in self.writer.step() if writing else ():
            writing[text].add(token, logits, self.loaded.tokenizer.token_bytes(token))
        pieces = [(choice.answer, choice.taken()) for choice in writing.values()]
        self.writing = {text: choice for text, choice in writing.items() if not text.ended}
        return pieces

    def fail(self, error: Exception) -> list[tuple[Answer, Exception]]:
        """Drop all texts that are being written; return the error for each of their answers."""
        answers = dict.fromkeys(choice.answer for choice in self.writing.values())
        self.writing = {}
        self.writer = Writer(self.reader)
        self.reader.clear()
        return [(answer, error) for answer in answers]


def load_models(config: ServeConfig) -> list[Served]:
    """Load every checkpoint, and a model for each adapter on one of them; of equal names the later one ends in -2."""
    bases = [load_checkpoint(path, config.which) for path in config.checkpoint]
    models: dict[str, Served] = {}
    for loaded in [*bases, *(load_with_adapter(path, config.which, bases) for path in config.adapter)]:
        move(loaded, config.device, config.precision)
        name = loaded.run.name
        while name in models:
            name += "-2"
        models[name] = Served(name, loaded, choose_decoder(loaded.model, config.compile, config.precision), config.rows)
    return list(models.values())


class Engine:
    """Has the answers written, by one thread that computes; all else happens in the event loop.

    Used as `async with Engine(...)`.

    Args:
        models: that are served.
        queue: texts that may wait for a row, of each model.
        on_error: called with an exception that is a bug.
    """

    def __init__(self, models: Sequence[Served], *, queue: int, on_error: Callable[[Exception], object]):
        self.models = {served.name: served for served in models}
        self.queue = queue
        self.on_error = on_error
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self.changed = asyncio.Event()
        self.stopping = False

    async def __aenter__(self) -> "Engine":
        self.work = asyncio.create_task(self.run())
        return self

    def stop(self) -> None:
        """End all answers, and accept no more."""
        self.stopping = True
        self.changed.set()

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await self.work
        await asyncio.to_thread(self.thread.shutdown)

    def submit(self, answer: Answer) -> None:
        """Have an answer written; Busy is raised if too many texts wait already."""
        served = self.models[answer.model]
        held = sum(not choice.answer.cancelled for choice in [*served.writing.values(), *served.waiting])
        if self.stopping or held + len(answer.texts) > served.rows + self.queue:
            raise Busy
        served.waiting += [Choice(answer, index) for index in range(len(answer.texts))]
        self.changed.set()

    async def call(self, task: Callable[[], Any]) -> Any:
        """Run a function that uses the models between two steps, and return its result; Busy if there are no more."""
        if self.stopping:
            raise Busy
        return await asyncio.get_running_loop().run_in_executor(self.thread, task)

    async def run(self) -> None:
        """Work until `stop`; an exception ends the answers that it concerns, and no others."""
        loop = asyncio.get_running_loop()
        while not self.stopping:
            busy = [served for served in self.models.values() if served.waiting or served.writing]
            if not busy:
                self.changed.clear()
                await self.changed.wait()
            for served in busy:
                try:
                    hand_out(await loop.run_in_executor(self.thread, served.step, served.admit()))
                except Exception as error:
                    self.on_error(error)
                    hand_out(served.fail(error))
        for served in self.models.values():
            served.writing |= {choice.text: choice for choice in served.waiting}
            hand_out(served.fail(Busy()))


def hand_out(events: Sequence[tuple[Answer, Piece | Exception]]) -> None:
    """Put events into their answers' queues."""
    for answer, event in events:
        answer.events.put_nowait(event)
