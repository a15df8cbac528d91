"""Processes on several hosts: how they find each other, and how they authenticate each other.

They meet in the run directory, which all hosts share: rank 0 opens a port, and writes its address and a key into a
folder there that only this user may enter. A process that can't read the key can't take part; no message without the
key is obeyed.
"""

import array
import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO

from minigpt.faults import StorageFailure, UserFault
from minigpt.files import lock, read_plain, write_json
from minigpt.launcher import Launched

MEETING = ".meeting-"
LOCK = ".meeting.lock"  # of rank 0
HUB = "hub.json"
MAX_HUB = 1 << 12  # bytes
NONCE_BYTES = 16
SHAKE_SECONDS = 10.0
AGENT_SECONDS = 15.0  # from the end of a host's processes to that of a torchrun that hangs

# Ends a torchrun that outlives its processes without starting new ones: if the line to another host is cut, it may
# have lost the store through which it would learn of the end.
WATCHMAN = """
import os, signal, sys, time
from pathlib import Path
agent, began, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
def facts(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
def program(pid):
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return line.split(b"\\0")[1:3] if line else None  # none: it is about to end
def waits():
    mine = facts(agent)
    names = (path.name for path in Path("/proc").iterdir() if path.name.isdigit())
    others = (facts(name) for name in names if program(name) not in (program("self"), None))  # it may adopt watchmen
    return mine and mine[19] == began and not any(each and each[1] == str(agent) and each[0] != "Z" for each in others)
end = time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(0.5)
    mine = facts(agent)
    if not mine or mine[19] != began:
        sys.exit()
for number in (signal.SIGTERM, signal.SIGKILL):
    if waits():
        os.kill(agent, number)
    time.sleep(5)
"""


_held: list[IO[bytes]] = []  # locked files, which stay locked while they are open


@dataclass(frozen=True)
class Hosts:
    """The place of this process among the hosts of a run."""

    run_dir: Path
    node: int
    local_rank: int
    local_size: int
    address: str  # of rank 0's host, as the others reach it; "" if this host does not know it
    start: str = ""  # a hash that identifies this start of a launcher

    @property
    def prefix(self) -> str:
        """Prefix of the folder of this start's meeting. (A foreign run directory may hold other meetings.)"""
        return f"{MEETING}{self.start}-"

    def holds(self, rank: int) -> bool:
        """Return whether the process of this rank runs on this host."""
        return rank // self.local_size == self.node


def several_hosts(found: Launched, run_dir: Path) -> Hosts:
    """Return this process's place among the hosts on which a launcher has started the run.

    Raises:
        UserFault: hosts have different numbers of processes, or ranks are not in the order of hosts.
    """
    if not found.is_even:
        remedy = "Start as many on each, rank by rank: torchrun --nproc-per-node=G, srun --distribution=block"
        place = f"process {found.local_rank} of {found.local_size} on host {found.node}"
        raise UserFault(f"rank {found.rank} of {found.world_size} is {place}: hosts have uneven numbers. {remedy}")
    own = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    ids: tuple[str, ...] = ("TORCHELASTIC_RUN_ID", "MASTER_PORT")
    if found.name == "srun":
        # A job's number can be guessed in advance; the time of its start and the port of its srun can't.
        ids = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_START_TIME")
        ids += ("SLURM_STEP_LAUNCHER_PORT",)  # not SLURM_SRUN_COMM_PORT, of which many nodes have several
    start = hashlib.sha256(repr([os.environ.get(name) for name in ids]).encode()).hexdigest()[:16]
    address = found.address or ("" if found.rank else own)
    return Hosts(run_dir, found.node, found.local_rank, found.local_size, address, start)


class Seal:
    """Adds to each line of a connection a code that takes the key to make, and depends on the line's place in it.

    Args:
        key: of the run.
        session: drawn by both ends.
        hub: whether this end is rank 0's.
    """

    def __init__(self, key: str, session: bytes, *, hub: bool):
        self.key = key.encode() + session
        self.sends, self.hears = (b"hub", b"rank") if hub else (b"rank", b"hub")
        self.sent = self.heard = 0

    def close(self, line: bytes) -> bytes:
        """Return a line with its code."""
        self.sent += 1
        return self._code(self.sends, self.sent, line) + b" " + line

    def open(self, line: bytes) -> bytes | None:
        """Return a line without its code; None if the code is wrong."""
        code, _, content = line.partition(b" ")
        self.heard += 1
        return content if hmac.compare_digest(code, self._code(self.hears, self.heard, content)) else None

    def _code(self, end: bytes, number: int, line: bytes) -> bytes:
        return hmac.new(self.key, end + number.to_bytes(8, "big") + line, "sha256").hexdigest().encode()


def shake(connection: socket.socket, lines: BufferedReader, key: str, *, hub: bool) -> Seal | None:
    """Agree on a random session with the other end; return None if it sends something else.

    The connection keeps a time limit until the other end is known.
    """
    mine = secrets.token_hex(NONCE_BYTES).encode()
    connection.settimeout(SHAKE_SECONDS)
    connection.sendall(mine + b"\n")
    theirs = lines.readline(2 * NONCE_BYTES + 1).strip()
    both = (mine, theirs) if hub else (theirs, mine)
    return Seal(key, b"".join(both), hub=hub) if len(theirs) == 2 * NONCE_BYTES else None


def open_meeting(hosts: Hosts) -> tuple[socket.socket, Path, str]:
    """Open rank 0's port, and write its address into the run directory.

    Returns:
        The listening socket, the folder of the meeting, the key.

    Raises:
        UserFault: rank 0 of another command is running, and its meeting must stay.
        StorageFailure: the run directory can't be written.
    """
    try:
        hosts.run_dir.mkdir(parents=True, exist_ok=True)
        _hold(hosts.run_dir / LOCK)
    except BlockingIOError:
        remedy = "Wait for it, stop it, or choose another run.dir"
        raise UserFault(f"run.dir={hosts.run_dir} is in use by another command on several hosts. {remedy}") from None
    except OSError as error:
        wrong = f"run.dir={hosts.run_dir} can't be written: {error.filename}: {error.strerror}"
        raise StorageFailure(f"{wrong}. Mend it, or choose another run.dir") from error
    for old in hosts.run_dir.glob(f"{MEETING}*"):  # of a run that was killed
        shutil.rmtree(old, ignore_errors=True)
    folder, key = Path(tempfile.mkdtemp(prefix=hosts.prefix, dir=hosts.run_dir)), secrets.token_hex(32)
    server = socket.socket()
    try:
        server.bind(("" if is_own_loopback(hosts.address) else hosts.address, 0))
    except OSError:  # other hosts know this one by that address, but none of its interfaces has it
        server.bind(("", 0))
    server.listen()
    write_json(folder / HUB, {"address": hosts.address, "port": server.getsockname()[1], "key": key})
    return server, folder, key


def _hold(path: Path) -> None:
    """Lock a file until this process ends or `close_meeting` is called. A link or pipe in its place is refused."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    held: IO[bytes] = os.fdopen(descriptor, "rb+", buffering=0)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ELOOP, "no plain file", str(path))
        lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise
    _held.append(held)


def close_meeting() -> None:
    """Release the lock of `open_meeting`: the run is over."""
    while _held:
        _held.pop().close()


def find_meeting(hosts: Hosts) -> tuple[socket.socket, Path, str]:
    """Connect to rank 0.

    Returns:
        The connection, the folder of the meeting, the key.

    Raises:
        OSError: there is nothing (FileNotFoundError), or nobody answers.
    """
    reason: Exception = FileNotFoundError(f"rank 0 has left no address in {hosts.run_dir}")
    for folder in hosts.run_dir.glob(f"{hosts.prefix}*"):
        try:
            hub = json.loads(read_plain(folder / HUB, MAX_HUB, links=False))
            address = hosts.address or hub["address"]  # the launcher's word counts more than that of a file
            return socket.create_connection((address, hub["port"]), SHAKE_SECONDS), folder, str(hub["key"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            reason = error
    raise reason if isinstance(reason, OSError) else OSError(f"{HUB} of {hosts.run_dir} holds no address")


def is_own_loopback(name: str) -> bool:
    """Return whether this host resolves its own name to a loopback address (127.0.1.1 in Debian's /etc/hosts)."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(name)
        return address.startswith("127.") and address != name
    return False


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an address, or None. Source: netdevice(7), SIOCGIFADDR."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        wanted = socket.inet_aton(socket.gethostbyname(address))
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            with contextlib.suppress(OSError):
                if fcntl.ioctl(probe.fileno(), 0x8915, request.tobytes())[20:24] == wanted:
                    return name
    return None


def end_agent_later() -> None:
    """Start a program that ends torchrun if it hangs after its processes have ended."""
    stat = Path(f"/proc/{os.getppid()}/stat")
    if "TORCHELASTIC_RUN_ID" in os.environ and stat.exists():
        began = stat.read_text().rpartition(")")[2].split()[19]
        command = [sys.executable, "-c", WATCHMAN, str(os.getppid()), began, str(AGENT_SECONDS)]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
