"""Processes of one run watch each other: when one fails, dies or stands still, all end, and the cause is named once.

Rank 0 is the hub. Each other rank has a connection to it. Over it both sides send a sign of life every second from
a thread of their own, so a long validation, a compilation or a save is not mistaken for a death. A process that
dies closes its connection, which is noticed at once; one that stands still (SIGSTOP, a frozen machine) goes silent.
No collective operation is used: it would wait for ever for a process that is gone.

The connections are Unix sockets in a folder that only this user may enter; between hosts they are TCP, and each line
carries a code made with the run's key (hosts.py). Even so, each connection has a thread of its own, so that none holds
up the others, and a line that is no valid message is ignored. A message is a line of JSON:
{"rank", "pid"} says who is there and alive, {"end", "text"} that all must end, {"left"} that the sender is done,
{"stop"} that it got a signal.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from minigpt.faults import BUG, UserFault
from minigpt.files import is_gone
from minigpt.ranks.hosts import (
    Hosts,
    Seal,
    close_meeting,
    end_agent_later,
    find_meeting,
    is_own_loopback,
    open_meeting,
    shake,
)
from minigpt.ranks.signals import SIGNALS
from minigpt.rundir.rows import parse_row


def seconds_of_environment() -> float:
    """Return MINIGPT_HEARTBEAT_SECONDS, or 20.

    Raises:
        UserFault: it is no number of seconds.
    """
    text = os.environ.get("MINIGPT_HEARTBEAT_SECONDS", "20")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        remedy = "Give a number above 0, such as 20, or unset it"
        raise UserFault(f"MINIGPT_HEARTBEAT_SECONDS={text!r} in the environment is no number of seconds. {remedy}")
    return seconds


SILENCE_SECONDS = seconds_of_environment()  # after so long a silence a stopped process is given up
HUNG_SECONDS = 15 * SILENCE_SECONDS  # the same for one that is running (a library may keep Python from sending)
BEAT_SECONDS = min(1.0, SILENCE_SECONDS / 8)
START_SECONDS = 600.0  # for all processes to come together
LOST_SECONDS = 1.5 * SILENCE_SECONDS  # after so long a silence another host, or the line to it, is given up
MEET_SECONDS = 6 * SILENCE_SECONDS  # for the processes of several hosts to find each other
LEAVE_SECONDS = 30.0  # for the others to leave before rank 0, and for their processes to end
SEND_SECONDS = 5  # for the other end to take a message
MAX_STRANGERS = 64  # connections that have not said who they are, besides one for each rank
MAX_MESSAGE_BYTES = 1 << 20
GRACE_SECONDS = 1.5  # an exception is often caused by another rank's end: it waits so long for news of that end


@dataclass(eq=False)
class Peer:
    """The other end of a connection."""

    socket: socket.socket
    rank: int = -1  # rank and pid are known from its first message
    pid: int = 0
    heard: float = field(default_factory=time.monotonic)
    left: bool = False  # has said that it is done
    seal: Seal | None = None  # of lines between hosts


class Heartbeat:
    """One process's part in the watch: rank 0 is the hub, every other rank is connected to it.

    Args:
        rank: of this process.
        world_size: processes in all.
        folder: where they meet; only this user may enter it. Removed when the run is over.
        hosts: this process's place among several hosts, which agree on a folder in the run directory; else None.

    Attributes:
        children: rank -> process, those that this process has started.
        peers: rank -> the other end of the connection to it.
    """

    def __init__(self, rank: int, world_size: int, folder: Path, hosts: Hosts | None = None):
        self.rank = rank
        self.world_size = world_size
        self.folder = folder
        self.hosts = hosts
        self.key = ""
        self.children: dict[int, subprocess.Popen] = {}
        self.peers: dict[int, Peer] = {}
        self.on_stop: Callable[[int], object] = lambda number: None  # rank 0: another rank got a signal
        self._unknown: list[Peer] = []  # connections that have not said who they are, oldest first
        self._names_causes = rank < 2  # rank 0 names the cause of an end; rank 1 does if rank 0 itself is lost
        first = rank == 0 if hosts is None else hosts.local_rank == 0
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ and first else None
        self._sending = threading.Lock()
        self._ending = threading.Lock()  # taken by the thread that ends the process, never given back
        self._done = threading.Event()
        self._released = threading.Event()  # set when the hub has said that it is done

    def meet(self, patience: float = START_SECONDS) -> Path:
        """Become the hub (rank 0), or connect to it, and begin to beat.

        Args:
            patience: seconds that rank 0 may take to be there.

        Returns:
            The file through which the group is formed, the same for all.
        """
        if self.hosts is not None:
            return self._meet_hosts(self.hosts)
        hub, store = self.folder / "hub", self.folder / "store"
        connection = socket.socket(socket.AF_UNIX)
        if self.rank == 0:
            if not connection.connect_ex(str(hub)):
                taken, self.folder = self.folder, self.folder / "none"  # the other's, which must stay
                remedy = "Wait for it, or start each from a shell of its own"
                raise UserFault(f"another run of this launcher meets in {taken}. {remedy}")
            connection.close()
            connection = socket.socket(socket.AF_UNIX)
            for file in (hub, store):
                file.unlink(missing_ok=True)  # left by a killed process with the same number
            connection.bind(str(hub))
            connection.listen()
            connection.settimeout(BEAT_SECONDS)
            _in_background(self._accept, connection)
        else:
            deadline = time.monotonic() + patience
            while connection.connect_ex(str(hub)):  # rank 0 is not there yet
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank 0 is gone, or did not start within {patience:.0f} s")
                connection.close()
                time.sleep(0.05)
                connection = socket.socket(socket.AF_UNIX)
            self.peers[0] = Peer(connection, rank=0)
            _in_background(self._hear, self.peers[0])
            self._greet(self.peers[0])
        _in_background(self._beat)
        _in_background(self._keep_store)
        return store

    def _meet_hosts(self, hosts: Hosts) -> Path:
        """Do what `meet` does, across hosts. Nobody answers at a meeting that a killed run has left behind."""
        deadline, reason = time.monotonic() + MEET_SECONDS, ""
        if self.rank == 0:
            server, self.folder, self.key = open_meeting(hosts)
            server.settimeout(BEAT_SECONDS)
            _in_background(self._accept, server)
        while self.rank and not self.peers:
            try:
                connection, self.folder, self.key = find_meeting(hosts)
                peer = Peer(connection, rank=0)
                lines = connection.makefile("rb")
                peer.seal = shake(connection, lines, self.key, hub=False)
                if peer.seal is None:
                    raise OSError("another program answers at its address")
                _in_background(self._hear, peer, lines)
                self._greet(peer)
                while not peer.pid and time.monotonic() < peer.heard + SEND_SECONDS:  # only the hub has the key
                    time.sleep(0.01)
                if peer.pid:
                    self.peers[0] = peer
            except OSError as error:
                reason = error.strerror or str(error)
            if time.monotonic() > deadline:
                remedy = "Give a run.dir (a benchmark: write_to) that all hosts share, and the first one's MASTER_ADDR"
                where = f"run.dir={hosts.run_dir} on host {hosts.node}"
                raise UserFault(f"{where}: rank 0 was not found there within {MEET_SECONDS:.0f} s ({reason}). {remedy}")
            time.sleep(0 if self.peers else 0.2)
        _in_background(self._beat)
        _in_background(self._keep_store)
        return self.folder / "store"

    def own_address(self) -> str:
        """Return the address at which the other hosts reach this host."""
        assert self.hosts is not None
        ends = [peer.socket.getsockname()[0] for peer in self.peers.values()]
        if self.rank == 0 and is_own_loopback(self.hosts.address):
            return next((end for end in ends if not end.startswith("127.")), self.hosts.address)
        return self.hosts.address if self.rank == 0 else ends[0]

    def fail(self, code: int, text: str) -> NoReturn:
        """End all processes, since this one can't go on: `text` is printed once, and all exit with `code`."""
        if code == BUG:
            time.sleep(GRACE_SECONDS)  # a thread ends this process if it hears of another cause
        if self.rank and self.peers and not self._done.is_set():
            self._send(self.peers[0], {"end": code, "text": text})
            time.sleep(10)  # rank 0 prints it and tells everyone to end
        self._end(code, text)

    def ask_to_stop(self, number: int) -> None:
        """Tell rank 0 that this process got a signal: rank 0 ends all as if the signal had come to it."""
        self._send(self.peers[0], {"stop": number})

    def leave(self) -> None:
        """Leave, when the run is over for this process.

        Rank 0 leaves last, when all its files are written and the others have read all that they need in the store:
        it goes with the folder, and who asks it for a key then would wait for ever.
        """
        deadline = time.monotonic() + LEAVE_SECONDS
        while (
            self.rank == 0 and not all(peer.left for peer in list(self.peers.values())) and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        for peer in self.peers.values():
            self._send(peer, {"left": True})
        if self.rank:
            self._released.wait()
        self._done.set()
        self._clear(LEAVE_SECONDS)
        if self.hosts is not None and self.rank == 0:
            close_meeting()

    def _accept(self, server: socket.socket) -> None:
        """Accept connections. A greeting tells who connected, and only the connection's own thread waits for it."""
        with server:
            while not self._done.is_set():
                try:
                    peer = Peer(server.accept()[0])
                except OSError:  # nobody connected, or there is no free file descriptor
                    self._done.wait(0.01)
                    continue
                self._unknown.append(peer)
                if len(self._unknown) > self.world_size + MAX_STRANGERS:
                    with contextlib.suppress(OSError, IndexError):
                        self._unknown.pop(0).socket.shutdown(socket.SHUT_RDWR)  # a rank of this run greets at once
                _in_background(self._hear, peer)

    def _hear(self, peer: Peer, opened: BufferedReader | None = None) -> None:
        """Act on the messages of a connection until it ends."""
        with contextlib.suppress(OSError), peer.socket, opened or peer.socket.makefile("rb") as lines:
            if self.key and peer.seal is None:
                peer.seal = shake(peer.socket, lines, self.key, hub=True)
            while line := lines.readline(MAX_MESSAGE_BYTES):
                if self.key and peer.seal is None:
                    break
                content = peer.seal.open(line.rstrip(b"\n")) if peer.seal else line
                if content is None:
                    break
                message = parse_row(content) or {}
                if not peer.pid and not self._identify(peer, message):
                    return
                peer.heard = time.monotonic()
                if "end" in message:
                    code = message["end"]  # 0 can't be the exit code of a run that is still going on
                    self._end(code if isinstance(code, int) and 0 < code < 256 else BUG, str(message.get("text", "")))
                if message.get("stop") in SIGNALS:
                    _in_background(self.on_stop, message["stop"])  # SLURM may take a minute to answer
                if "left" in message:
                    peer.left = True
                    self._released.set()
        with contextlib.suppress(ValueError):
            self._unknown.remove(peer)
        if self.peers.get(peer.rank) is peer and not peer.left and not self._done.is_set():
            self._lost(peer.rank, peer.pid, self._how_it_ended(peer.rank))

    def _identify(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Return whether a connection's first message gives a valid rank and process, and the rank is still free."""
        rank, pid = message.get("rank"), message.get("pid")
        expected = [0] if self.rank else range(1, self.world_size)
        if not (type(rank) is type(pid) is int and rank in expected and pid > 1):
            return False
        peer.rank, peer.pid = rank, pid
        with contextlib.suppress(ValueError):
            self._unknown.remove(peer)  # before the greeting: `_accept` must not close this connection any more
        if self.rank == 0:
            if self.peers.setdefault(rank, peer) is not peer:
                return False
            self._greet(peer)
        peer.socket.settimeout(None)
        return True

    def _greet(self, peer: Peer) -> None:
        self._send(peer, {"rank": self.rank, "pid": os.getpid()})

    def _send(self, peer: Peer, message: dict[str, Any]) -> None:
        """Send a message. A peer that doesn't take it is not given up here, but when it has been silent too long."""
        with self._sending, contextlib.suppress(OSError):
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
            line = json.dumps(message).encode()
            peer.socket.sendall((peer.seal.close(line) if peer.seal else line) + b"\n")

    def _beat(self) -> None:
        """Send signs of life, and look for those that are missing."""
        began = looked = time.monotonic()
        while not self._done.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - looked > SILENCE_SECONDS / 2:  # this process was stopped itself (Ctrl-Z); the others may have been
                began = now
                for peer in list(self.peers.values()):
                    peer.heard = now
            looked = now
            for peer in list(self.peers.values()):
                self._greet(peer)
                self._look_for_silence(peer, now - peer.heard)
            self._look_for_missing(now - began)
            if self._parent not in (None, os.getppid()):
                self._parent = None
                os.kill(os.getpid(), signal.SIGTERM)  # the launcher is gone: stop as if it had asked for it

    def _keep_store(self) -> None:
        """Look after the file of the group's store, in a thread of its own: a file system may block it."""
        kept = False
        while not self._done.wait(SILENCE_SECONDS / 2):
            kept = self._touch_store(kept)

    def _touch_store(self, kept: bool) -> bool:
        """Keep programs that clean temporary folders from that file; end all if it is gone.

        A rank that waits for another one through it would wait for ever.

        Args:
            kept: whether the file was there before.

        Returns:
            Whether the file is there.
        """
        try:
            for path in (self.folder, self.folder / "store"):
                os.utime(path)
        except FileNotFoundError:
            # Rank 0 removes it at the end of a run. If several ranks find it gone, rank 0 is to name the cause.
            waits = GRACE_SECONDS * (1 if self.rank == 0 else 4)
            over = self._done.wait(waits) or self._released.is_set() if kept else True
            if not over and is_gone(self.folder / "store"):  # and not back, as after an automount
                again = "The same command goes on from the last checkpoint, if there is one."
                self._end(BUG, f"Error: {self.folder}, where the processes of the run meet, was removed. {again}")
            return kept and not over
        except OSError:  # the file system is away for a while
            return kept
        return True

    def _look_for_silence(self, peer: Peer, seconds: float) -> None:
        if self.hosts is not None and not self.hosts.holds(peer.rank):
            if seconds > LOST_SECONDS and not peer.left:
                self._names_causes |= self.hosts.local_rank == 0  # nobody else can print it on this host
                how = f"has given no sign of life for {seconds:.0f} s; its host or the line to it is gone"
                self._lost(peer.rank, peer.pid, how)
        elif seconds > SILENCE_SECONDS and not peer.left and (seconds > HUNG_SECONDS or not _at_work(peer.pid)):
            if self._names_causes and peer.pid:
                with contextlib.suppress(OSError):
                    os.kill(peer.pid, signal.SIGKILL)  # else it would go on later, in a run that is over
            how = f"has given no sign of life for {seconds:.0f} s; it was stopped (SIGSTOP?) or hangs"
            self._lost(peer.rank, peer.pid, how)

    def _look_for_missing(self, seconds: float) -> None:
        for rank, process in list(self.children.items()):
            if rank not in self.peers and process.poll() is not None:
                self._lost(rank, process.pid, f"{self._how_it_ended(rank)} while starting")
        missing = set(range(1, self.world_size)) - self.peers.keys()
        patience = START_SECONDS if self.hosts is None else MEET_SECONDS + SILENCE_SECONDS
        if self.rank == 0 and missing and seconds > patience:
            shared = "" if self.hosts is None else f" Do all hosts share run.dir={self.hosts.run_dir}?"
            self._end(BUG, f"Error: rank {sorted(missing)} did not start within {patience:.0f} s.{shared}")

    def _how_it_ended(self, rank: int) -> str:
        code = None
        if rank in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.children[rank].wait(2.0)
        if code in (None, -signal.SIGKILL):
            return "ended without a word (killed, or out of memory)"
        return f"ended with exit code {code}" if code >= 0 else f"was killed ({signal.strsignal(-code)})"

    def _lost(self, rank: int, pid: int, how: str) -> NoReturn:
        """Name the cause, unless another rank does, and end all."""
        if not self._names_causes:
            time.sleep(GRACE_SECONDS)  # the rank that names it must see the cause before it sees this rank's end
            self._end(BUG, "")
        again = "The same command goes on from the last checkpoint, if there is one."
        self._end(BUG, f"Error: rank {rank} (process {pid}) {how}. All processes of the run end. {again}")

    def _end(self, code: int, text: str) -> NoReturn:
        """Print, tell the others, and exit at once, without clean-up that could wait for a process that is gone."""
        if self.hosts is not None and not self._ending.locked():
            end_agent_later()
        self._ending.acquire()  # a second thread waits here until the process ends
        _in_background(_say_last, text).join(2.0)  # a terminal that was paused (Ctrl-S) takes nothing
        for peer in list(self.peers.values()):
            self._send(peer, {"end": code})
        self._clear(3.0)
        os._exit(code)

    def _clear(self, seconds: float) -> None:
        """Wait up to so many seconds for the processes that this one started, and remove the meeting's folder."""
        deadline = time.monotonic() + seconds
        for process in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
        if self.rank == 0 or any(peer.pid for peer in self.peers.values()):  # else it may be another run's
            shutil.rmtree(self.folder, ignore_errors=True)


def _in_background(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name=f"heartbeat {work.__name__}", daemon=True)
    thread.start()
    return thread


def _at_work(pid: int) -> bool:
    """Return whether a process exists and is not stopped; False if the system doesn't tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "TtZX"


def _say_last(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        os.write(2, f"{text.rstrip()}\n".encode() if text else b"")
