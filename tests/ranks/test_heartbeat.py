"""Processes that watch each other: whoever dies, stops or fails, all end soon, and the cause is said once."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.faults import UserFault
from minigpt.ranks import heartbeat

# A rank without torch: it beats, and on a line from its parent it fails, leaves, or hangs with Python blocked.
RANK = """
import ctypes, sys, time
from pathlib import Path
from minigpt.ranks.heartbeat import Heartbeat
rank, world_size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
heartbeat = Heartbeat(rank, world_size, Path(place))
heartbeat.meet()
while [peer.pid > 0 for peer in heartbeat.peers.values()] != [True] * (world_size - 1 if rank == 0 else 1):
    time.sleep(0.01)
print("ready", flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "fail":
        heartbeat.fail(5, f"Error: rank {rank} is broken")
    if command == "bug":
        heartbeat.fail(1, f"rank {rank}: Traceback: boom")
    if command == "leave":
        heartbeat.leave(); sys.exit(75)
    if command == "compute":
        ctypes.PyDLL(None).usleep(1_500_000)  # holds the lock that Python needs to run any other thread
        print("computed", flush=True)
"""


class Ranks:
    """Three of them."""

    def __init__(self, folder: Path, silence: float):
        self.log = folder / "stderr"
        self.hub = folder / "meet" / "hub"
        self.hub.parent.mkdir(mode=0o700)
        environment = os.environ | {"MINIGPT_HEARTBEAT_SECONDS": str(silence)}
        with open(self.log, "w") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(rank), "3", str(folder / "meet")],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
                )
                for rank in range(3)
            ]  # fmt: skip
        for process in self.processes:
            assert process.stdout.readline() == "ready\n"

    def tell(self, rank: int, command: str) -> None:
        self.processes[rank].stdin.write(command + "\n")
        self.processes[rank].stdin.flush()

    def codes(self, seconds: float = 15.0) -> list[int]:
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def said(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def ranks(tmp_path):
    made = []

    def start(silence: float = 1.0) -> Ranks:
        made.append(Ranks(tmp_path, silence))
        return made[0]

    yield start
    for process in made[0].processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_when_one_is_killed_all_end_at_once_and_the_cause_is_named_once(ranks, victim):
    three = ranks(silence=60)
    three.processes[victim].kill()
    codes = three.codes(5)
    assert codes.pop(victim) == -signal.SIGKILL
    assert codes == [1, 1]
    (line,) = three.said()
    assert f"rank {victim} (process {three.processes[victim].pid})" in line
    assert "killed" in line
    assert "The same command goes on" in line


@pytest.mark.parametrize("victim", [0, 2])
def test_when_one_is_stopped_all_end_and_none_is_left_behind(ranks, victim):
    three = ranks()
    three.processes[victim].send_signal(signal.SIGSTOP)
    codes = three.codes(10)
    assert codes.pop(victim) == -signal.SIGKILL  # else it would wake up to a run that is over
    assert codes == [1, 1]
    (line,) = three.said()
    assert f"rank {victim} (process {three.processes[victim].pid}) has given no sign of life" in line


@pytest.mark.parametrize("first", [0, 1])
def test_a_fault_is_printed_once_and_all_exit_with_its_code(ranks, first):
    three = ranks()
    three.tell(first, "fail")
    assert three.codes() == [5, 5, 5]
    assert three.said() == [f"Error: rank {first} is broken"]


def test_an_exception_that_follows_from_another_ones_end_is_not_printed(ranks):
    three = ranks()
    three.tell(1, "bug")  # as a collective that lost its partner raises a moment later
    three.processes[2].kill()
    assert three.codes() == [1, 1, -signal.SIGKILL]
    (line,) = three.said()
    assert "rank 2" in line


def test_who_leaves_waits_for_rank_0_and_then_all_part_in_peace(ranks):
    three = ranks()
    three.tell(2, "leave")
    three.tell(1, "leave")
    time.sleep(0.5)
    assert [process.poll() for process in three.processes] == [None, None, None]
    three.tell(0, "leave")
    assert three.codes() == [75, 75, 75]
    assert three.said() == []


def test_the_meeting_place_stays_until_all_have_left_it(ranks):
    """A rank may still read in the store there what rank 0 has already read; it would wait for a key for ever."""
    three = ranks()
    three.tell(0, "leave")
    three.tell(2, "leave")
    time.sleep(0.5)
    assert three.hub.parent.is_dir()
    assert [process.poll() for process in three.processes] == [None, None, None]
    three.tell(1, "leave")
    assert three.codes() == [75, 75, 75]
    assert three.said() == []
    assert not three.hub.parent.exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="without /proc silence alone decides")
def test_one_that_computes_without_a_pause_is_not_taken_for_dead(ranks):
    three = ranks(silence=0.5)
    three.processes[1].stdin.write("compute\n")
    three.processes[1].stdin.flush()
    assert three.processes[1].stdout.readline() == "computed\n"
    for rank in (1, 2, 0):
        three.tell(rank, "leave")
    assert three.codes() == [75, 75, 75]


def test_a_pause_of_all_together_is_forgiven(ranks):
    """Ctrl-Z and fg."""
    three = ranks(silence=0.6)
    for process in three.processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    for process in three.processes:
        process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    for rank in (1, 2, 0):
        three.tell(rank, "leave")
    assert three.codes() == [75, 75, 75]
    assert three.said() == []


def connect(path):
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(5)
    stranger.connect(str(path))
    return stranger


WRONG = [
    b"GET / HTTP/1.1\r\n\r\n",
    b'{"end": 0}\n',
    b'{"rank": 1, "pid": 1}\n',  # there is a rank 1
    b'{"rank": 0, "pid": 4711}\n',
    b'{"rank": 3, "pid": 4711}\n',
    b'{"rank": "1", "pid": [2]}\n{"end": 0}\n',
    b"5\n" * 1000,
    b"[" * 100_000 + b"\n",
    b"x" * (2 << 20),
]


def test_wrong_bytes_of_a_stranger_change_nothing(ranks):
    three = ranks(silence=1.0)
    for bytes_ in WRONG:
        with connect(three.hub) as stranger, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stranger.sendall(bytes_)
            assert stranger.recv(100) == b""
    for rank in (1, 2, 0):
        three.tell(rank, "leave")
    assert three.codes() == [75, 75, 75]
    assert three.said() == []


def test_slow_strangers_keep_nobody_from_beating(ranks):
    """Silent ones, and one that sends a byte now and then, for longer than a rank may be silent."""
    three = ranks(silence=0.5)
    strangers = [connect(three.hub) for _ in range(20)]
    for byte in b'{"rank':
        strangers[0].sendall(bytes([byte]))
        time.sleep(0.25)
    three.tell(1, "fail")
    assert three.codes() == [5, 5, 5]
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("message", [b'{"end": 0}\n', b'{"end": 0, "text": "all is well"}\n', b'{"end": "0"}\n'])
def test_no_message_ends_a_run_as_finished(tmp_path, message):
    """A rank that speaks as ours do, and says that the run is over with exit code 0."""
    place = tmp_path / "meet"
    place.mkdir()
    hub = subprocess.Popen([sys.executable, "-c", RANK, "0", "2", str(place)], stdin=subprocess.PIPE)
    while not (place / "hub").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    sleeper = subprocess.Popen(["sleep", "60"])
    with connect(place / "hub") as rank:
        rank.sendall(b'{"rank": 1, "pid": %d}\n' % sleeper.pid)
        assert b'"rank": 0' in rank.recv(1000)
        rank.sendall(message)
        assert hub.wait(15) == 1
    sleeper.kill()
    sleeper.wait()


def test_the_meeting_place_goes_with_the_run(ranks):
    three = ranks()
    assert stat.S_IMODE(three.hub.parent.stat().st_mode) == 0o700
    for rank in (1, 2, 0):
        three.tell(rank, "leave")
    assert three.codes() == [75, 75, 75]
    assert not three.hub.parent.exists()


@pytest.mark.parametrize("text", ["60s", "", "0", "nan", "-5", "inf"])
def test_a_silence_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv("MINIGPT_HEARTBEAT_SECONDS", text)
    with pytest.raises(UserFault, match=r"MINIGPT_HEARTBEAT_SECONDS=.* is no number of seconds"):
        heartbeat.seconds_of_environment()


def test_a_second_run_of_a_launcher_leaves_the_first_one_alone(ranks):
    """Two runs of one srun step met in one folder, and the end of one was the other's."""
    three = ranks(silence=60)
    for rank, wanted in ((0, "another run of this launcher meets in"), (1, "")):
        second = [sys.executable, "-c", RANK, str(rank), "3", str(three.hub.parent)]
        done = subprocess.run(second, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=30)
        assert done.returncode == 1
        assert wanted in done.stderr
    assert three.hub.exists()
    for rank in (1, 2, 0):
        three.tell(rank, "leave")
    assert three.codes() == [75, 75, 75]


def test_a_folder_that_is_away_for_a_moment_ends_no_run(tmp_path, monkeypatch):
    mine = heartbeat.Heartbeat(0, 2, tmp_path / "here")
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "store").touch()
    monkeypatch.setattr(mine, "_end", lambda *_: pytest.fail("ended"))
    monkeypatch.setattr(mine._done, "wait", lambda _: (tmp_path / "away").rename(tmp_path / "here") and False)
    assert mine._touch_store(kept=True) is True  # so that it is missed where it goes for good
    assert mine._touch_store(kept=False) is True


def test_a_signal_to_another_rank_is_one_to_rank_zero():
    """In a SLURM job rank 0 asks for a new start before all end."""
    got = []
    hub, rank = heartbeat.Heartbeat(0, 2, Path()), heartbeat.Heartbeat(1, 2, Path())
    hub.on_stop = got.append
    ours, theirs = socket.socketpair()
    rank.peers[0] = heartbeat.Peer(theirs, rank=0)
    rank._greet(rank.peers[0])
    rank.ask_to_stop(signal.SIGTERM)
    rank._send(rank.peers[0], {"stop": 9})
    rank._send(rank.peers[0], {"left": True})
    theirs.shutdown(socket.SHUT_WR)
    hub._hear(heartbeat.Peer(ours))
    deadline = time.monotonic() + 5
    while not got and time.monotonic() < deadline:
        time.sleep(0.01)
    assert got == [signal.SIGTERM]
