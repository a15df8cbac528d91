"""Processes on several hosts: they meet in the run directory, know each other by its key, and lose each other in time.

The hosts are processes of this machine: what tells them apart is what a launcher says.
"""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from minigpt.faults import StorageFailure
from minigpt.launcher import Launched
from minigpt.ranks.heartbeat import MAX_STRANGERS, Heartbeat
from minigpt.ranks.hosts import (
    HUB,
    LOCK,
    MEETING,
    WATCHMAN,
    Hosts,
    Seal,
    close_meeting,
    find_meeting,
    interface_of,
    open_meeting,
    several_hosts,
    shake,
)

# A rank without torch on a host of its own; what it is told, it does.
RANK = """
import sys, time
from pathlib import Path
from minigpt.faults import UserFault
from minigpt.ranks import heartbeat
from minigpt.ranks.hosts import Hosts
rank, run_dir, address = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
mine = heartbeat.Heartbeat(rank, 3, run_dir / "none", Hosts(run_dir, rank, 0, 1, address))
try:
    mine.meet()
except UserFault as fault:
    print(fault, flush=True)
    sys.exit(2)
while len(mine.peers) < (2 if rank == 0 else 1):
    time.sleep(0.01)
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "fail":
        mine.fail(5, f"Error: rank {rank} is broken")
    if line.strip() == "hang":
        import os
        os.utime = lambda path: time.sleep(60)
    if line.strip() == "leave":
        mine.leave(); sys.exit(75)
"""


@pytest.fixture
def ranks(tmp_path):
    """Three of them, by default on hosts that share a folder; ready if they are to meet."""
    made = []

    def start(*folders: Path, silence: float = 1.0, meet: bool = True) -> list[subprocess.Popen]:
        environment = os.environ | {"MINIGPT_HEARTBEAT_SECONDS": str(silence)}
        for rank, folder in enumerate(folders or [tmp_path / "run"] * 3):
            command = [sys.executable, "-c", RANK, str(rank), str(folder), "127.0.0.1"]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            made.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        for process in made if meet else ():
            assert process.stdout.readline() == "ready\n"
        return made

    yield start
    for process in made:
        process.kill()
        process.wait()


def tell(process: subprocess.Popen, command: str) -> None:
    process.stdin.write(command + "\n")
    process.stdin.flush()


def test_they_meet_in_the_run_directory_refuse_a_second_command_and_part_in_peace(ranks, tmp_path):
    three = list(ranks())
    (folder,) = (tmp_path / "run").glob(f"{MEETING}*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (second,) = ranks(tmp_path / "run", meet=False)[3:]
    assert second.wait(15) == 2
    assert "is in use by another command on several hosts" in second.stdout.read()
    assert folder.exists()
    for rank in (2, 1, 0):
        tell(three[rank], "leave")
    assert [process.wait(15) for process in three] == [75, 75, 75]
    assert not folder.exists()


def test_a_failure_on_one_host_ends_all_and_is_named_once(ranks):
    three = ranks()
    tell(three[2], "fail")
    assert [process.wait(15) for process in three] == [5, 5, 5]
    said = [process.stderr.read() for process in three]
    assert "".join(said) == "Error: rank 2 is broken\n"


@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_that_falls_silent_is_given_up_and_nothing_there_is_killed(ranks, victim):
    three = ranks()
    three[victim].send_signal(signal.SIGSTOP)
    others = [process for process in three if process is not three[victim]]
    assert [process.wait(15) for process in others] == [1, 1]
    assert three[victim].poll() is None  # it may be an innocent process of another host that has this number here
    said = [process.stderr.read() for process in others]
    assert all(
        f"rank {victim} (process {three[victim].pid}) has given no sign of life" in each for each in said if each
    )
    assert sum(map(bool, said)) == (2 if victim == 0 else 1)  # hosts that only rank 0 connects each name it


def test_hosts_that_share_no_folder_are_refused(ranks, tmp_path):
    three = ranks(tmp_path / "a", tmp_path / "b", tmp_path / "a", silence=0.4, meet=False)
    assert three[1].wait(15) == 2
    said = three[1].stdout.read()
    assert f"run.dir={tmp_path / 'b'} on host 1: rank 0 was not found there" in said
    assert [three[rank].wait(15) for rank in (0, 2)] == [1, 1]
    named = three[0].stderr.read()
    assert "rank [1] did not start" in named
    assert f"Do all hosts share run.dir={tmp_path / 'a'}?" in named


WRONG = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"0" * 32 + b"\n" + b'{"rank": 1, "pid": 4711}\n',
    b"0" * 32 + b"\n" + b"f" * 64 + b' {"end": 1, "text": "x"}\n',
    b"\n\n\n",
]


def test_who_has_not_the_key_is_not_obeyed(ranks, tmp_path):
    three = ranks(silence=2.0)
    (folder,) = (tmp_path / "run").glob(f"{MEETING}*")
    hub = json.loads((folder / HUB).read_text())
    for content in WRONG:
        with socket.create_connection((hub["address"], hub["port"]), 5) as stranger:
            stranger.sendall(content)
            while stranger.recv(1000):
                pass
    for rank in (1, 2, 0):
        tell(three[rank], "leave")
    assert [process.wait(15) for process in three] == [75, 75, 75]


def test_a_crowd_of_strangers_takes_neither_files_nor_threads_from_a_run(ranks, tmp_path):
    """They draw a session, and then say nothing: each had a file and a thread of rank 0 for ever."""
    three = ranks(silence=60.0)
    (folder,) = (tmp_path / "run").glob(f"{MEETING}*")
    port = json.loads((folder / HUB).read_text())["port"]
    with contextlib.ExitStack() as crowd:
        for _ in range(MAX_STRANGERS + 40):
            stranger = crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(b"0" * 32 + b"\n")
        deadline = time.monotonic() + 10
        while (files := len(os.listdir(f"/proc/{three[0].pid}/fd"))) > MAX_STRANGERS + 20:
            assert time.monotonic() < deadline, files
        for rank in (1, 2, 0):
            tell(three[rank], "leave")
        assert [process.wait(15) for process in three] == [75, 75, 75]


def test_a_strangers_meeting_in_the_run_directory_leads_nobody_to_him(tmp_path):
    """A run directory may be a stranger's, or the copy of one that is at work."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        hub = {"address": "127.0.0.1", "port": stranger.getsockname()[1], "key": "his"}
        for name in (f"{MEETING}abc", f"{MEETING}0123456789abcdef-abc"):
            (tmp_path / name).mkdir()
            (tmp_path / name / HUB).write_text(json.dumps(hub))
        with pytest.raises(FileNotFoundError):
            find_meeting(Hosts(tmp_path, 1, 0, 1, "127.0.0.1", "fedcba9876543210"))
        with pytest.raises(OSError, match=r"refused|unreachable|timed out"):  # its own name, and an address of his
            find_meeting(Hosts(tmp_path, 1, 0, 1, "127.0.0.2", "0123456789abcdef"))


def test_one_meeting_that_leads_nowhere_hides_no_other(tmp_path):
    hosts = Hosts(tmp_path, 1, 0, 1, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / f"{hosts.prefix}a").mkdir()
        (tmp_path / f"{hosts.prefix}a" / HUB).symlink_to("nowhere")
        (tmp_path / f"{hosts.prefix}b").mkdir()
        (tmp_path / f"{hosts.prefix}b" / HUB).write_text(
            json.dumps({"address": "", "port": server.getsockname()[1], "key": "k"})
        )
        (tmp_path / f"{hosts.prefix}c").mkdir()
        connection, folder, key = find_meeting(hosts)
        connection.close()
        assert (folder.name[-1], key) == ("b", "k")


def test_each_start_of_a_launcher_meets_under_a_name_of_its_own(tmp_path, monkeypatch):
    found = Launched("srun", 1, 2, 0, 1, 1, "")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    one, again = several_hosts(found, tmp_path), several_hosts(found, tmp_path)
    assert one.start == again.start
    for name in ("SLURM_RESTART_COUNT", "SLURM_STEP_LAUNCHER_PORT"):  # the number of a job can be foreseen
        before = several_hosts(found, tmp_path).start
        monkeypatch.setenv(name, "1")
        assert several_hosts(found, tmp_path).start != before
    before = several_hosts(found, tmp_path).start
    monkeypatch.setenv("SLURM_SRUN_COMM_PORT", "1")  # nodes of a large job have several
    assert several_hosts(found, tmp_path).start == before
    assert one.address == ""  # this host's own name is not rank 0's


def test_a_line_is_obeyed_once_in_its_place_and_direction():
    hub, rank, other = (Seal("key", b"session", hub=each) for each in (True, False, False))
    first, second = hub.close(b"first"), hub.close(b"second")
    assert rank.open(first) == b"first"
    assert other.open(second) is None  # not in its place
    assert rank.open(first) is None  # again
    assert Seal("key", b"session", hub=True).open(first) is None  # sent back
    assert Seal("key", b"another", hub=False).open(first) is None
    assert Seal("yek", b"session", hub=False).open(first) is None
    assert Seal("key", b"session", hub=False).open(first[:-1] + b"T") is None
    assert Seal("key", b"session", hub=False).open(b"") is None


def test_a_meeting_of_a_killed_run_is_replaced(tmp_path):
    hosts = Hosts(tmp_path / "run", 0, 0, 1, "127.0.0.1")
    server, old, _ = open_meeting(hosts)
    server.close()
    close_meeting()  # as the system does
    with pytest.raises(ConnectionRefusedError):
        find_meeting(hosts)
    server, folder, key = open_meeting(hosts)
    assert not old.exists()
    connection, found, theirs = find_meeting(hosts)
    assert (found, theirs) == (folder, key)
    with server, connection, server.accept()[0] as end, end.makefile("rb") as lines:
        connection.sendall(b"short\n")
        assert shake(end, lines, key, hub=True) is None
    assert list((tmp_path / "run").glob(f"{MEETING}*")) == [folder]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_an_interface_is_known_by_its_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert interface_of("no.such.host.invalid") is None


def test_a_meeting_that_somebody_removes_ends_all_with_the_cause(ranks, tmp_path):
    """A cleaner of temporary folders: who waits for another there would wait for ever."""
    three = ranks(silence=2.0)
    (folder,) = (tmp_path / "run").glob(f"{MEETING}*")
    (folder / "store").touch()
    old = 10**9
    os.utime(folder / "store", (old, old))
    while (folder / "store").stat().st_mtime == old:  # young again: no cleaner takes it
        assert all(process.poll() is None for process in three)
        time.sleep(0.02)
    (folder / "store").unlink()
    assert [process.wait(20) for process in three] == [1, 1, 1]
    said = [process.stderr.read() for process in three]
    assert sum("was removed" in text for text in said) == 1


def test_a_file_system_that_holds_up_one_host_ends_no_run(ranks):
    three = ranks(silence=0.5)
    tell(three[1], "hang")
    time.sleep(2)  # a host is given up after 0.75 s, and its thread touches the store every 0.25 s
    for rank in (2, 1, 0):
        tell(three[rank], "leave")
    assert [process.wait(15) for process in three] == [75, 75, 75]


def test_no_link_or_pipe_in_the_place_of_the_lock_is_followed_or_waited_for(tmp_path):
    hosts = Hosts(tmp_path / "run", 0, 0, 1, "127.0.0.1")
    (tmp_path / "run").mkdir()
    place = tmp_path / "run" / LOCK
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(StorageFailure, match=r"\.meeting\.lock"):
        open_meeting(hosts)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(StorageFailure, match=r"\.meeting\.lock"):
        open_meeting(hosts)
    assert not (tmp_path / "outside").exists()
    with pytest.raises(StorageFailure, match=r"run\.dir=.* can't be written"):
        open_meeting(Hosts(place / "run", 0, 0, 1, "127.0.0.1"))


def test_the_next_training_of_a_process_may_meet_there_again(tmp_path):
    hosts = Hosts(tmp_path / "run", 0, 0, 1, "127.0.0.1")
    open_meeting(hosts)[0].close()
    close_meeting()
    open_meeting(hosts)[0].close()
    close_meeting()


def test_a_torchrun_that_adopts_its_watchman_is_ended(tmp_path):
    """As a container's first process does: then the watchman is its child, too."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    script = WATCHMAN.replace("os.kill(agent, number)", "print(number); sys.exit()")
    command = [sys.executable, "-c", script, str(os.getpid()), began, "0.6"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]  # each rank leaves one
    assert [process.communicate(timeout=20)[0] for process in both] == ["15\n", "15\n"]


def test_a_process_that_is_about_to_end_keeps_no_torchrun_alive(tmp_path):
    """Between the end of its memory and its state Z: no command line, but still at work."""
    for pid, parent, line in (("self", 1, b"python\0-c\0mine\0"), ("7", 1, b"torchrun\0"), ("8", 7, b"")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(f"{pid} (python) R {parent}" + " 0" * 17 + " 100 0")
        (tmp_path / pid / "cmdline").write_bytes(line)
    script = WATCHMAN.replace("os.kill(agent, number)", "print(number); sys.exit()").replace("/proc", str(tmp_path))
    command = [sys.executable, "-c", script, "7", "100", "0.1"]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=20, check=True).stdout == "15\n"


def test_a_host_whose_own_name_is_its_loopback_is_reached_by_others(monkeypatch, tmp_path):
    """As Debian's /etc/hosts has it; the address that others see is that of a connection."""
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1" if name == "vm" else name)
    hosts = Hosts(tmp_path / "run", 0, 0, 1, "vm")
    server, _, _ = open_meeting(hosts)
    assert server.getsockname()[0] == "0.0.0.0"
    server.close()
    close_meeting()
    mine = Heartbeat(0, 3, tmp_path, hosts)
    for rank, end in ((1, "127.0.0.1"), (2, "10.0.0.5")):
        mine.peers[rank] = SimpleNamespace(socket=SimpleNamespace(getsockname=lambda end=end: (end, 1)))
    assert mine.own_address() == "10.0.0.5"
