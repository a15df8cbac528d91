"""The engine: texts come and go, each as it would be alone; what goes wrong touches nobody else."""

import asyncio
import threading

import pytest

from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.native.decoder import native_decoder
from minigpt.sampling.native.library import find_compiler
from minigpt.sampling.stream import TextStream
from minigpt.sampling.write import text_ends, texts_of, write
from minigpt.serving.engine import Answer, Busy, Choice, Engine, Piece, Served

KERNELS = ["torch", pytest.param("native", marks=pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"))]


def engine_of(loaded, *, kernel="torch", rows=4, queue=50):
    decoder = native_decoder(loaded.model) if kernel == "native" else None
    errors = []
    engine = Engine([Served("tiny", loaded, decoder, rows)], queue=queue, on_error=errors.append)
    engine.errors = errors
    return engine


def answer_of(loaded, prompt, *, n=1, **options):
    options = SamplingOptions(**{"max_new_tokens": 30, "temperature": 0.9, **options})
    return Answer("tiny", texts_of([loaded.tokenizer.encode(prompt)], options, n, text_ends(loaded.tokenizer)))


async def collect(answer):
    """The texts of an answer, and how they ended."""
    wholes = [Piece(index) for index in range(len(answer.texts))]
    while not all(whole.ended for whole in wholes):
        event = await asyncio.wait_for(answer.events.get(), 300)
        if isinstance(event, Exception):
            raise event
        wholes[event.choice].text += event.text
        wholes[event.choice].tokens += event.tokens
        wholes[event.choice].ended = event.ended
    return wholes


@pytest.mark.parametrize("kernel", KERNELS)
def test_requests_that_come_at_different_times_get_the_texts_of_minigpt_sample(loaded, kernel):
    requests = [
        ("how", {"seed": 1, "n": 3}),
        ("a much longer prompt than the window of the model is", {"seed": 2, "temperature": 0.0}),
        ("x", {"seed": 3, "top_k": 9, "stop": ["e", "o"]}),
        ("", {"seed": 4, "repetition_penalty": 1.3}),
        ("wood", {"seed": 5, "max_new_tokens": 3, "top_p": 0.8}),
    ] * 3

    async def ask(engine, prompt, options, delay):
        await asyncio.sleep(delay)
        answer = answer_of(loaded, prompt or "\n", **options)
        engine.submit(answer)
        return await collect(answer)

    async def main():
        async with engine_of(loaded, kernel=kernel) as engine:
            return await asyncio.gather(*(ask(engine, *request, n * 0.004) for n, request in enumerate(requests)))

    for (prompt, options), got in zip(requests, asyncio.run(main()), strict=True):
        decoder = native_decoder(loaded.model) if kernel == "native" else None
        own = {key: value for key, value in options.items() if key != "n"}
        options = SamplingOptions(**{"max_new_tokens": 30, "temperature": 0.9, **own})
        prompts = [loaded.tokenizer.encode(prompt or "\n")]
        wanted = write(loaded.model, loaded.tokenizer, prompts, options, num_samples=len(got), decoder=decoder)
        assert [whole.text for whole in got] == [sample.text for sample in wanted]
        assert [whole.ended for whole in got] == [sample.ended for sample in wanted]


def test_a_cancelled_answer_frees_its_rows_and_those_who_wait_go_on(loaded):
    async def main():
        async with engine_of(loaded, rows=2) as engine:
            long = answer_of(loaded, "long", n=2, max_new_tokens=10**6)
            gone = answer_of(loaded, "gone", n=2)
            short = answer_of(loaded, "short")
            for answer in (long, gone, short):
                engine.submit(answer)
            await long.events.get()
            assert len(engine.models["tiny"].writing) == 2
            gone.cancelled = True
            long.cancelled = True
            assert (await collect(short))[0].ended == "length"
            assert gone.events.empty()
            assert engine.models["tiny"].writing == {}
            assert engine.models["tiny"].reader.cache.lengths == []

    asyncio.run(main())


@pytest.mark.parametrize("reads", range(8))
def test_an_answer_that_is_cancelled_within_a_step_disturbs_no_other(loaded, reads):
    class Leaving(Answer):
        left = reads  # of the times that `cancelled` is read before the event loop sets it

        def __getattribute__(self, name):
            Leaving.left -= name == "cancelled"
            return Leaving.left < 0 if name == "cancelled" else super().__getattribute__(name)

    served, stays = Served("tiny", loaded, None, rows=4), answer_of(loaded, "stays")
    served.waiting = [Choice(stays, 0), Choice(Leaving("tiny", answer_of(loaded, "leaves").texts), 0)]
    while not stays.texts[0].ended:
        served.step(served.admit())
    assert stays.texts[0].ended == "length"


def test_an_error_ends_the_texts_it_touches_and_no_others(loaded):
    async def main():
        async with engine_of(loaded) as engine:
            answer = answer_of(loaded, "a", max_new_tokens=10**6)
            engine.submit(answer)
            await answer.events.get()
            served = engine.models["tiny"]
            forward, served.reader.forward = served.reader.forward, lambda *_: 1 / 0
            with pytest.raises(ZeroDivisionError):
                await collect(answer)
            served.reader.forward = forward
            after = answer_of(loaded, "how", seed=1)
            engine.submit(after)
            assert len((await collect(after))[0].tokens) == 30
            assert [type(error) for error in engine.errors] == [ZeroDivisionError]

    asyncio.run(main())


def test_questions_of_the_page_are_answered_between_two_steps_by_the_same_thread(loaded, monkeypatch):
    async def main():
        async with engine_of(loaded) as engine:
            answer, threads, feed = answer_of(loaded, "a", max_new_tokens=10**6), set(), TextStream.feed
            monkeypatch.setattr(TextStream, "feed", lambda *given: threads.add(threading.get_ident()) or feed(*given))
            engine.submit(answer)
            await answer.events.get()
            assert {await engine.call(threading.get_ident)} == threads
            with pytest.raises(UserFault):
                await engine.call(lambda: (_ for _ in ()).throw(UserFault("no")))
            answer.cancelled = True

    asyncio.run(main())


def test_when_the_engine_stops_nobody_is_left_waiting(loaded):
    async def main():
        async with engine_of(loaded, rows=1) as engine:
            answers = [answer_of(loaded, "a", max_new_tokens=10**6) for _ in range(3)]
            for answer in answers:
                engine.submit(answer)
            await answers[0].events.get()
        for answer in answers:
            with pytest.raises(Busy):
                await collect(answer)
        with pytest.raises(Busy):
            engine.submit(answer_of(loaded, "a"))

    asyncio.run(main())
