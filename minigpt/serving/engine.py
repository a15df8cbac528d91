"""Writes the texts of all requests: one thread, one batch for each model, and per step a token for each of its texts.

A text joins the batch as soon as a row is free and leaves it when it ends, so no request waits for another one's end.
Only the thread touches the models. Each text is what it would be alone: see sampling/generate.py.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.sampling.generate import Reader, Row, Writer
from minigpt.sampling.native.decoder import NativeDecoder
from minigpt.sampling.stream import TextStream
from minigpt.sampling.write import gpt_forward

MAX_TASKS = 8  # requests of the page that may wait


class Busy(Exception):
    """Raised when no more requests can wait."""


@dataclass(frozen=True)
class Token:
    """A token that was drawn."""

    id: int
    logprob: float = 0.0  # if asked for: nats, by the model's own distribution, before temperature and filters
    top: Sequence[tuple[int, float]] = ()  # the likeliest tokens


@dataclass
class Piece:
    """The part of one text of an answer that a step has added."""

    choice: int
    text: str = ""  # text that is certain: never half a character nor half a stop string
    tokens: list[Token] = field(default_factory=list)
    ended: str = ""  # as Sample.ended


@dataclass(eq=False)
class Answer:
    """The texts that a request asked for.

    Attributes:
        model: the name of the model that writes.
        rows: the texts; those of one prompt may share its list of tokens.
        top: how many of the likeliest tokens come with each token; None: no logprobs at all.
        events: pieces, and in place of the last one the exception that ended the answer.
    """

    model: str
    rows: Sequence[Row]
    top: int | None = None
    cancelled: bool = False
    events: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)


class Choice:
    """One text of an answer, while it is written."""

    def __init__(self, answer: Answer, index: int, token_bytes: Callable[[int], bytes]):
        self.answer, self.index, self.row = answer, index, answer.rows[index]
        self.token_bytes = token_bytes
        self.stream = TextStream(self.row.options.stop)
        self.piece = Piece(index)
        self.row.on_token = self.on_token

    def on_token(self, token: int, logits: Tensor) -> bool:
        """Add a token; return True once a stop string is complete."""
        self.piece.tokens.append(Token(token) if self.answer.top is None else scored(token, logits, self.answer.top))
        self.piece.text += self.stream.feed(self.token_bytes(token))
        return self.stream.stopped

    def taken(self) -> Piece:
        """Return what was added since the last call."""
        piece, self.piece = self.piece, Piece(self.index)
        if self.row.ended:
            piece.text += self.stream.finish()
            piece.ended = self.row.ended
        return piece


def scored(token: int, logits: Tensor, top: int) -> Token:
    """Return a token with its logprob, and the `top` likeliest tokens, by logits (V,)."""
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(top, len(logprobs)))
    return Token(token, float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


class Served:
    """A model that is served, and the texts that it writes now.

    Args:
        name: by which requests ask for it.
        loaded: model and tokenizer.
        decoder: the model's native code, if it has any.
        rows: texts written at a time.
    """

    def __init__(self, name: str, loaded: LoadedCheckpoint, decoder: NativeDecoder | None, rows: int):
        self.name, self.loaded, self.rows = name, loaded, rows
        self.native = decoder is not None
        forward = gpt_forward(loaded.model, decoder, vocab_size=loaded.tokenizer.vocab_size)
        self.reader = Reader(forward, loaded.model.config.block_size, loaded.model.new_cache, room=rows)
        self.writer = Writer(self.reader)
        self.waiting: deque[Choice] = deque()
        self.writing: list[Choice] = []
        self.created = int(time.time())
        self.tokens_read = self.tokens_written = 0

    def admit(self) -> list[Choice]:
        """Take texts of the first answer that waits, as many as there are free rows; under the engine's lock.

        They are of one answer only: reading its prompt holds up the texts that are being written.
        """
        self.waiting = deque(choice for choice in self.waiting if not choice.answer.cancelled)
        free = self.rows - len(self.writing)
        first = self.waiting[0].answer if self.waiting else None
        new = list(itertools.islice(itertools.takewhile(lambda each: each.answer is first, self.waiting), free))
        for _ in new:
            self.waiting.popleft()
        return new

    def step(self, new: Sequence[Choice]) -> list[tuple[Answer, Piece]]:
        """Let new texts join, and give each text a token; return the pieces that this has added."""
        self.writing += new
        for choice in new:
            choice.row.tokens = list(choice.row.tokens)  # it will grow; texts that wait share their prompt's list
        if new:
            self.writer.join([choice.row for choice in new])
            self.tokens_read += sum(len(choice.row.tokens) for choice in new)
        for choice in [each for each in self.writing if each.answer.cancelled]:
            self.writer.leave(choice.row)
            self.writing.remove(choice)
        if not self.writing:
            return []
        self.writer.step()
        self.tokens_written += len(self.writing)
        pieces = [(choice.answer, choice.taken()) for choice in self.writing]
        for choice in self.writing:
            if choice.row.ended:
                choice.row.tokens = []  # free the memory: its answer may still wait for other texts
        self.writing = [choice for choice in self.writing if not choice.row.ended]
        return pieces

    def fail(self, error: Exception) -> list[tuple[Answer, Exception]]:
        """Drop all texts that are being written; return the error for each of their answers."""
        answers = dict.fromkeys(choice.answer for choice in self.writing)
        self.writing = []
        self.writer = Writer(self.reader)
        self.reader.clear()
        return [(answer, error) for answer in answers]


class Engine:
    """The thread that computes. Used as `async with Engine(...)`, in the event loop of its callers.

    Args:
        models: that are served.
        queue: texts that may wait for a row, of each model.
        on_error: called with an exception that is a bug.
    """

    def __init__(self, models: Sequence[Served], *, queue: int, on_error: Callable[[Exception], object]):
        self.models = {served.name: served for served in models}
        self.queue = queue
        self.on_error = on_error
        self.tasks: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    async def __aenter__(self) -> "Engine":
        self.loop = asyncio.get_running_loop()
        self.thread.start()
        return self

    def stop(self) -> None:
        """End all answers, and accept no more."""
        with self.changed:
            self.stopping = True
            self.changed.notify()

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await asyncio.to_thread(self.thread.join)

    def submit(self, answer: Answer) -> None:
        """Have an answer written.

        Raises:
            Busy: too many texts wait already.
        """
        served = self.models[answer.model]
        token_bytes = served.loaded.tokenizer.token_bytes
        choices = [Choice(answer, index, token_bytes) for index in range(len(answer.rows))]
        with self.changed:
            there = [*served.writing, *served.waiting]
            held = sum(not choice.answer.cancelled for choice in there)
            if self.stopping or held + len(choices) > served.rows + self.queue:
                raise Busy
            served.waiting.extend(choices)
            self.changed.notify()

    def cancel(self, answer: Answer) -> None:
        """Free the rows of an answer that nobody waits for."""
        answer.cancelled = True

    async def call(self, task: Callable[[], Any]) -> Any:
        """Run a function that uses the models between two steps, and return its result.

        Raises:
            Busy: too many functions wait already.
        """
        future: Future[Any] = Future()
        with self.changed:
            if self.stopping or len(self.tasks) >= MAX_TASKS:
                raise Busy
            self.tasks.append((task, future))
            self.changed.notify()
        return await asyncio.wrap_future(future)

    def run(self) -> None:
        """Work until `stop`; an exception ends the answers that it concerns, not the thread."""
        while True:
            with self.changed:
                self.changed.wait_for(self.has_work)
                if self.stopping:
                    break
                task, future = self.tasks.popleft() if self.tasks else (None, None)
                new = {served: served.admit() for served in self.models.values()}
            if task is not None and future is not None and future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except Exception as error:
                    future.set_exception(error)
            for served in self.models.values():
                try:
                    self.tell(served.step(new[served]))
                except Exception as error:
                    self.on_error(error)
                    self.tell(served.fail(error))
        for served in self.models.values():
            served.writing += served.waiting
            self.tell(served.fail(Busy()))

    def has_work(self) -> bool:
        """Return whether there is something to do."""
        return self.stopping or bool(self.tasks) or any(each.waiting or each.writing for each in self.models.values())

    def tell(self, events: Sequence[tuple[Answer, Piece | Exception]]) -> None:
        """Hand events to their answers, in the callers' event loop."""
        if events:
            with contextlib.suppress(RuntimeError):  # the loop is over
                self.loop.call_soon_threadsafe(hand_out, events)


def hand_out(events: Sequence[tuple[Answer, Piece | Exception]]) -> None:
    """Put events into their answers' queues."""
    for answer, event in events:
        answer.events.put_nowait(event)
