"""Processes that encode units of work: one for each core, started again if killed, and ended when their parent ends.

A worker is this file as a program. It reads the path of a tokenizer and then frames from stdin, and writes results to
stdout, each after its length in 8 bytes; a result begins with the word `made`, or with `fault` and a sentence. It
writes no file, so a kill can't leave half of one. It ends when its stdin does, and looks four times a second whether
its parent is still there.
"""

import contextlib
import fcntl
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

from minigpt.data.preparing.units import Job, encode_unit
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json

MAX_DEATHS = 5  # of processes over one unit
PARENT_SECONDS = 0.25  # between two looks at the parent
MADE, FAULT = b"made ", b"fault"
ROOT = Path(__file__).resolve().parents[3]  # the folder that holds minigpt/


@contextlib.contextmanager
def started_early(count: int) -> Iterator[None]:
    """Start `count` processes for the encoding in a `with` block; they load their modules while a text is read."""
    early = [Worker() for _ in range(count)]
    try:
        for worker in early:
            with contextlib.suppress(OSError):  # reported later, by `encode`
                worker.start()
        _early.extend(early)
        yield
    finally:
        _early.clear()
        for worker in early:
            worker.stop()
        for worker in early:
            worker.close()


_early: list["Worker"] = []  # workers that were started early and have no work yet


def encode_in_processes(jobs: Iterable[Job], count: int, tokenizer: Path) -> Generator[Job, None, None]:
    """Yield the results of frames as they come, from `count` processes; at most `count` + 2 frames are in memory.

    Args:
        jobs: files and frames.
        count: processes.
        tokenizer: a tokenizer.json.

    Raises:
        UserFault: as encoding does, or a unit's process died again and again.
    """
    workers = [_early.pop() if _early else Worker() for _ in range(count)]
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def work(path: Path, frame: bytes) -> Job:
        worker = free.get()
        try:
            return path, worker.encode(frame, tokenizer)
        finally:
            free.put(worker)

    threads = ThreadPoolExecutor(count)  # each waits for the answer of a process
    waiting: set[Future[Job]] = set()
    try:
        for job in jobs:
            waiting.add(threads.submit(work, *job))
            if len(waiting) >= count + 2:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()


class Worker:
    """A process that encodes one frame at a time with one tokenizer; it is started for its first frame, or before."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False  # whether the process has been sent its tokenizer
        self._stopped = False

    def start(self) -> "subprocess.Popen[bytes]":
        """Return the process; start it if there is none."""
        if self._process is None:
            self._process, self._told = self._start(), False
        return self._process

    def encode(self, frame: bytes, tokenizer: Path) -> bytes:
        """Return the result of a frame. A process that dies while encoding it is replaced.

        Args:
            frame: of a unit.
            tokenizer: a tokenizer.json.

        Raises:
            UserFault: the text's fault, or MAX_DEATHS processes died over it.
        """
        code = 0
        for _ in range(MAX_DEATHS):
            process = self.start()
            if self._stopped:
                self.stop()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                if not self._told:
                    _write(process.stdin, os.fsencode(tokenizer))
                    self._told = True
                _write(process.stdin, frame)
                said = _read(process.stdout)
            except (OSError, ValueError, EOFError):
                self.close()
                code, self._process = process.wait(), None
                if self._stopped:
                    break
                continue
            return result_of(said)
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        wrong = f"{MAX_DEATHS} processes in a row died over {len(frame):,} bytes of text ({end})"
        raise UserFault(f"{wrong}. If memory is short, use fewer: prepare.workers=1. What was encoded is kept")

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "minigpt.data.preparing.workers", str(os.getpid())]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for us; we end it
        )
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError, AttributeError):  # Linux only, which limits a user's pages of pipes
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)  # a full pipe stops the writer sixteen times less often
        return process

    def stop(self) -> None:
        """End the process at once; the frame it works on is lost."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process, and close its pipes."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(OSError), self._process:  # half a frame can't be sent any more
                pass


def answer(frame: bytes, tokenizer: Tokenizer) -> bytes:
    """Return a worker's answer to a frame: a result or a fault."""
    try:
        return MADE + encode_unit(frame, tokenizer)
    except UserFault as fault:
        return FAULT + str(fault).encode()


def result_of(said: bytes) -> bytes:
    """Return the result in a worker's answer.

    Raises:
        UserFault: the answer is a fault.
    """
    if said.startswith(FAULT):
        raise UserFault(said[len(FAULT) :].decode())
    return said[len(MADE) :]


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(struct.pack("<Q", len(content)))
    stream.write(content)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    """Return the next message.

    Raises:
        EOFError: there is none, or only a part of one.
    """
    head = stream.read(8)
    size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    content = stream.read(size)
    if len(head) < 8 or len(content) < size:
        raise EOFError
    return content


def main(parent: str) -> None:
    """Encode the frames that arrive on stdin until it ends."""
    threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        file = os.fsdecode(_read(sys.stdin.buffer))
        tokenizer = load_tokenizer(read_json(Path(file)), file)
        while True:
            _write(sys.stdout.buffer, answer(_read(sys.stdin.buffer), tokenizer))
    os._exit(0)  # nothing is left to flush to


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
