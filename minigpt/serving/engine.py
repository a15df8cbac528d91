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

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint, load_with_adapter
from minigpt.config.commands import ServeConfig
from minigpt.sampling.generate import Reader, TextInProgress, Writer
from minigpt.sampling.native.decoder import NativeDecoder
from minigpt.sampling.sample import choose_decoder, move
from minigpt.sampling.stream import TextStream
from minigpt.sampling.write import gpt_forward
from minigpt.serving.views import name_of

MAX_TASKS = 8  # requests of the page that may wait


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


@dataclass(eq=False)
class Answer:
    """The texts that answer a request.

    Attributes:
        model: the name of the model that writes.
        texts: to write.
        top: how many of the likeliest tokens come with each token; None: no logprobs at all.
        events: pieces, and in place of the last one the exception that ended the answer.
    """

    model: str
    texts: Sequence[TextInProgress]
    top: int | None = None
    cancelled: bool = False
    events: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)


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
        self.waiting: deque[Choice] = deque()
        self.writing: dict[TextInProgress, Choice] = {}

    def admit(self) -> list[Choice]:
        """Take texts of the first answer that waits, as many as there are free rows; under the engine's lock.

        They are of one answer only: reading its prompt holds up the texts that are being written.
        """
        self.waiting = deque(choice for choice in self.waiting if not choice.answer.cancelled)
        first = self.waiting[0].answer if self.waiting else None
        of_first = itertools.takewhile(lambda choice: choice.answer is first, self.waiting)
        new = list(itertools.islice(of_first, self.rows - len(self.writing)))
        for _ in new:
            self.waiting.popleft()
        return new

    def step(self, new: Sequence[Choice]) -> list[tuple[Answer, Piece]]:
        """Let new texts join, and give each text a token; return the pieces that this has added."""
        if new:
            self.writer.join([choice.text for choice in new])
        self.writing = {**self.writing, **{choice.text: choice for choice in new}}  # other threads read the old one
        for text in [text for text, choice in self.writing.items() if choice.answer.cancelled]:
            self.writer.leave(text)
        self.writing = {text: choice for text, choice in self.writing.items() if not choice.answer.cancelled}
        if not self.writing:
            return []
        for text, token, logits in self.writer.step():
            self.writing[text].add(token, logits, self.loaded.tokenizer.token_bytes(token))
        pieces = [(choice.answer, choice.taken()) for choice in self.writing.values()]
        self.writing = {text: choice for text, choice in self.writing.items() if not text.ended}
        return pieces

    def fail(self, error: Exception) -> list[tuple[Answer, Exception]]:
        """Drop all texts that are being written; return the error for each of their answers."""
        answers = dict.fromkeys(choice.answer for choice in self.writing.values())
        self.writing = {}
        self.writer = Writer(self.reader)
        self.reader.clear()
        return [(answer, error) for answer in answers]


def load_models(config: ServeConfig) -> list[Served]:
    """Load every checkpoint, and a model for each adapter on one of them; equal names get a number."""
    bases = [load_checkpoint(path, config.which) for path in config.checkpoint]
    models: dict[str, Served] = {}
    for loaded in [*bases, *(load_with_adapter(path, config.which, bases) for path in config.adapter)]:
        move(loaded, config.device, config.precision)
        name = name_of(loaded.path)
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        name = next(free for free in names if free not in models)
        models[name] = Served(name, loaded, choose_decoder(loaded.model, config.compile, config.precision), config.rows)
    return list(models.values())


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
        """Have an answer written; Busy is raised if too many texts wait already."""
        served = self.models[answer.model]
        choices = [Choice(answer, index) for index in range(len(answer.texts))]
        with self.changed:
            held = sum(not choice.answer.cancelled for choice in [*served.writing.values(), *served.waiting])
            if self.stopping or held + len(choices) > served.rows + self.queue:
                raise Busy
            served.waiting.extend(choices)
            self.changed.notify()

    async def call(self, task: Callable[[], Any]) -> Any:
        """Run a function that uses the models between two steps, and return its result, or raise Busy."""
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
                self.changed.wait_for(
                    lambda: (
                        self.stopping or self.tasks or any(one.waiting or one.writing for one in self.models.values())
                    )
                )
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
                    self.hand_out(served.step(new[served]))
                except Exception as error:
                    self.on_error(error)
                    self.hand_out(served.fail(error))
        for _, future in self.tasks:
            if future.set_running_or_notify_cancel():
                future.set_exception(Busy())
        for served in self.models.values():
            served.writing = {**served.writing, **{choice.text: choice for choice in served.waiting}}
            self.hand_out(served.fail(Busy()))

    def hand_out(self, events: Sequence[tuple[Answer, Piece | Exception]]) -> None:
        """Put events into their answers' queues, in the callers' event loop."""

        def put() -> None:
            for answer, event in events:
                answer.events.put_nowait(event)

        if events:
            with contextlib.suppress(RuntimeError):  # the loop is over
                self.loop.call_soon_threadsafe(put)
