"""Three ways to map a function over units of work: in this process, on all cores, or on a Ray cluster."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from minigpt.faults import UserFault

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # handled by this process, not by its workers

Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]  # as Python's own map


def workers(engine: str, count: int) -> contextlib.AbstractContextManager[Map]:
    """Return a context that yields a parallel `map` over `count` workers; engine: processes | ray."""
    if engine == "ray":
        return _ray_cluster()
    return _processes(count) if count > 1 else contextlib.nullcontext(map)


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Map]:
    """Start processes that end with the block, or with this process even if it is killed."""
    context = get_context("spawn")
    lifeline, end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, initializer=_end_with, initargs=(lifeline,))

    def mapped(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
        with _not_inherited():  # no pool.map: it cancels what waits, and a pool that breaks then prints a traceback
            futures = deque(pool.submit(function, job) for job in jobs)
        try:
            while futures:
                yield futures.popleft().result()
        except BrokenProcessPool:
            wrong = "a process that prepares the text was killed. If memory is short, use fewer: prepare.workers=1"
            raise UserFault(f"{wrong}. The same command continues: finished units are kept") from None

    try:
        yield mapped
    finally:
        end.close()
        pool.shutdown()
        lifeline.close()


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end of the lifeline is closed."""

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _not_inherited() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach and that don't run the user's script again."""
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _ray_cluster() -> Iterator[Map]:
    """Join the cluster that RAY_ADDRESS names, or start one of this machine's cores. If a node dies, others work on."""
    import ray

    def mapped(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
        remote: Any = ray.remote(lambda job: function(job))  # Ray takes functions only, no partial ones
        try:
            yield from map(ray.get, [remote.remote(job) for job in jobs])
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        yield mapped
    finally:
        ray.shutdown()
