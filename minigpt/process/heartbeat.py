"""Processes of one run watch each other: when one fails, dies or stands still, all end, and the cause is named once.

Rank 0 is the hub. Each other rank holds a connection to it. Over it both sides send a sign of life every second from
a thread of their own, so a long validation, a compilation or a save is not mistaken for a death. A process that
dies closes its connection, which is noticed at once; one that stands still (SIGSTOP, a frozen machine) goes silent.
No collective operation takes part: these wait for ever for a process that is gone.

The connections are Unix sockets in a folder that only this user may enter. Still, nothing that comes in is waited for,
and what is no message of ours is not obeyed.
"""

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from minigpt.faults import BUG
from minigpt.rundir.rows import parse_row

BEAT_SECONDS = 1.0
SILENCE_SECONDS = float(os.environ.get("MINIGPT_HEARTBEAT_SECONDS", "20"))  # after which a stopped process is given up
HUNG_SECONDS = 15 * SILENCE_SECONDS  # and one that is at work, but silent (a library that keeps Python from running)
START_SECONDS = 600.0  # for all processes to come together
MAX_MESSAGE_BYTES = 1 << 20
GRACE_SECONDS = 1.5  # an exception is often the consequence of another rank's end: so long it waits for that news


@dataclass(eq=False)
class Peer:
    """The other end of a connection."""

    socket: socket.socket
    heard: float  # when, by time.monotonic()
    rank: int = -1  # until it has greeted
    pid: int = 0
    unread: bytes = b""
    left: bool = False  # has said that it is done


class Heartbeat:
    """This process's part.

    Args:
        rank: of this process.
        world_size: processes in all.
        folder: where they meet; only this user may enter it. Removed when the run is over.
        children: rank -> process, those that this process has started.
    """

    def __init__(
        self, rank: int, world_size: int, folder: Path, children: Mapping[int, subprocess.Popen] | None = None
    ):
        self.rank = rank
        self.world_size = world_size
        self.folder = folder
        self.children = {} if children is None else children
        self.peers: dict[int, Peer] = {}
        self._store = folder / f"store-{secrets.token_hex(4)}"
        self._server: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._sending = threading.Lock()
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._ending = threading.Lock()  # taken by the thread that ends the process, never given back
        self._done = threading.Event()
        self._met = threading.Event()
        self._released = threading.Event()  # the hub has said that all is done
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def meet(self) -> Path:
        """Become the hub (rank 0), or connect to it, and begin to beat.

        Returns:
            The file through which the group is formed, the same for all.
        """
        address = self.folder / "hub"
        if self.rank == 0:
            address.unlink(missing_ok=True)  # of a process with the same number that was killed
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._server.bind(str(address))
            self._server.listen()
            self._selector.register(self._server, selectors.EVENT_READ)
            self._met.set()
            self._thread.start()
            return self._store
        deadline = time.monotonic() + START_SECONDS
        while (connection := _connect(str(address))) is None:  # rank 0 is not there yet
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 did not start within {START_SECONDS:.0f} s")
            time.sleep(0.05)
        self.peers[0] = self._listen_to(connection, rank=0)
        self._send(self.peers[0], {"rank": self.rank, "pid": os.getpid()})
        self._thread.start()
        if not self._met.wait(START_SECONDS):
            raise TimeoutError(f"rank 0 did not answer within {START_SECONDS:.0f} s")
        return self._store

    def fail(self, code: int, text: str) -> NoReturn:
        """End all processes because this one can't go on: `text` is printed once, all exit with `code`."""
        if code == BUG:
            time.sleep(GRACE_SECONDS)  # the thread ends this process if it hears of another cause
        if self.rank and self.peers and not self._done.is_set():
            with contextlib.suppress(OSError):
                self._send(self.peers[0], {"failed": code, "text": text})
                time.sleep(10)  # rank 0 prints it and tells everyone to end
        self._end(code, text)

    def leave(self) -> None:
        """The run is over for this process. Rank 0 leaves last, when all its files are written."""
        if self.rank:
            self._send(self.peers[0], {"left": True})
            self._released.wait()
        else:
            for peer in self.peers.values():
                with contextlib.suppress(OSError):
                    self._send(peer, {"left": True})
        self._done.set()
        self._thread.join(5 * BEAT_SECONDS)
        for process in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        self._clear()

    def _run(self) -> None:
        began = looked = time.monotonic()
        beaten = 0.0
        while not self._done.is_set():
            ready = self._selector.select(BEAT_SECONDS / 4)
            now = time.monotonic()
            if now - looked > SILENCE_SECONDS / 2:  # this process itself stood still (Ctrl-Z): the others may have too
                began = now
                for peer in self.peers.values():
                    peer.heard = now
            looked = now
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data, now)
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                for peer in list(self.peers.values()):
                    with contextlib.suppress(OSError):
                        self._send(peer, {"beat": True})
            self._look_for_silence(began, now)

    def _accept(self) -> None:
        """Take a connection; who is there is known when its greeting has come, and nobody waits for that."""
        assert self._server is not None
        with contextlib.suppress(OSError):
            self._listen_to(self._server.accept()[0])

    def _listen_to(self, connection: socket.socket, rank: int = -1) -> Peer:
        connection.settimeout(5.0)
        peer = Peer(connection, time.monotonic(), rank)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        return peer

    def _welcome(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Take a peer in whose greeting is right."""
        rank, pid = message.get("rank"), message.get("pid")
        if not (type(rank) is type(pid) is int and 0 < rank < self.world_size and rank not in self.peers and pid > 1):
            return False
        peer.rank, peer.pid = rank, pid
        self.peers[rank] = peer
        with contextlib.suppress(OSError):
            self._send(peer, {"pid": os.getpid(), "store": str(self._store)})
        return True

    def _send(self, peer: Peer, message: dict[str, Any]) -> None:
        with self._sending:
            peer.socket.sendall(json.dumps(message).encode() + b"\n")

    def _drop(self, peer: Peer) -> None:
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _hear(self, peer: Peer, now: float) -> None:
        try:
            data = peer.socket.recv(1 << 16)
        except OSError:
            data = b""
        *lines, peer.unread = (peer.unread + data).split(b"\n")
        if not data or len(peer.unread) > MAX_MESSAGE_BYTES:
            self._drop(peer)
            if peer.rank >= 0 and not peer.left:
                self._lost(peer, self._how_it_ended(peer))
            return
        peer.heard = now
        for line in lines:
            message = parse_row(line) or {}
            if peer.rank >= 0:
                self._obey(peer, message)
            elif not self._welcome(peer, message):
                self._drop(peer)
                return

    def _obey(self, peer: Peer, message: dict[str, Any]) -> None:
        for kind in ("failed", "end"):
            if kind in message:
                code = message[kind]  # 0 is no way to end a run that is going on
                self._end(code if isinstance(code, int) and 0 < code < 256 else BUG, str(message.get("text", "")))
        if "store" in message:
            peer.pid, self._store = int(message["pid"]), Path(message["store"])
            self._met.set()
        peer.left = peer.left or "left" in message
        if peer.left and self.rank:
            self._released.set()

    def _look_for_silence(self, began: float, now: float) -> None:
        for peer in list(self.peers.values()):
            silent = now - peer.heard
            if silent > SILENCE_SECONDS and not peer.left and (silent > HUNG_SECONDS or not _at_work(peer.pid)):
                self._lost(peer, f"has given no sign of life for {silent:.0f} s; it was stopped (SIGSTOP?) or hangs")
        for rank, process in self.children.items():
            if rank not in self.peers and process.poll() is not None:
                self._end(BUG, f"rank {rank} (process {process.pid}) {_outcome(process)} while starting.")
        if self.rank == 0 and len(self.peers) < self.world_size - 1 and now - began > START_SECONDS:
            missing = sorted(set(range(1, self.world_size)) - self.peers.keys())
            self._end(BUG, f"rank {missing} did not start within {START_SECONDS:.0f} s.")
        if self.rank == 0 and self._parent not in (None, os.getppid()):
            self._parent = None
            os.kill(os.getpid(), signal.SIGTERM)  # the launcher is gone: stop as if it had asked for it

    def _how_it_ended(self, peer: Peer) -> str:
        process = self.children.get(peer.rank)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
                return _outcome(process)
        return "ended without a word (killed, or out of memory)"

    def _lost(self, peer: Peer, how: str) -> NoReturn:
        """Name the cause, unless someone else does, and end all."""
        says_it = self.rank == 0 or self.rank == 1
        if not says_it:
            time.sleep(2 * BEAT_SECONDS)  # who says it must see the cause, not the end that is made of it here
        with contextlib.suppress(OSError):
            if peer.pid:
                os.kill(peer.pid, signal.SIGKILL)  # one that stands still would wake up to a run that is over
        text = (
            f"rank {peer.rank} (process {peer.pid}) {how}. All processes of the run end. "
            "The same command goes on from the last checkpoint, if there is one."
        )
        self._end(BUG, f"Error: {text}" if says_it else "")

    def _end(self, code: int, text: str) -> NoReturn:
        """Print, tell the others, and be gone: no clean-up that could wait for a process that is not there."""
        self._ending.acquire()  # whoever comes second waits here for the end
        speaker = threading.Thread(target=_say_last, args=(text,), daemon=True)
        speaker.start()
        speaker.join(2.0)  # a terminal that was paused (Ctrl-S) takes nothing
        for peer in list(self.peers.values()):
            with contextlib.suppress(OSError):
                self._send(peer, {"end": code})
        deadline = time.monotonic() + 3.0
        for process in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
        self._clear()
        os._exit(code)

    def _clear(self) -> None:
        """Remove the meeting place. Rank 0 does it, or whoever is left when rank 0 is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _connect(address: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _at_work(pid: int) -> bool:
    """Whether a process exists and is not stopped. False where the system doesn't tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "TtZX"


def _outcome(process: subprocess.Popen) -> str:
    code = process.returncode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return f"was killed by {name}" + (" (by hand, or out of memory)" if code == -signal.SIGKILL else "")
    return f"ended with exit code {code}"


def _say_last(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        if text:
            os.write(2, f"{text.rstrip()}\n".encode())
