"""Two processes on CPU: the same numbers as one, one end for all, and the same bytes after whatever happened."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import list_checkpoints, step_of, verify
from minigpt.faults import UserFault
from minigpt.ranks import group
from minigpt.ranks.group import Processes
from minigpt.rundir.rows import TIMINGS

PAIR = ["trainer=ddp", "trainer.devices=2", "trainer.device=cpu"]
SETTINGS = ["trainer.precision=fp64", "trainer.max_steps=10", "checkpoint.every_steps=3", "logger.every_steps=1"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
PLAIN = [sys.executable]
SCRIPT = str(Path(__file__).with_name("ranks.py"))
LAUNCHERS = pytest.mark.parametrize("launcher", [PLAIN, TORCHRUN], ids=["plain", "torchrun"])


class Trial:
    """A command in the background, and the processes that belong to it."""

    def __init__(self, run, launcher: list[str], *settings: str, fault: str = "", **environment: str):
        self.folder = run.path.parent / f"trial-{run.path.name}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        settings = [*run.arguments(*SETTINGS, *PAIR), *settings]
        own = {"TRIAL_FOLDER": str(self.folder), "FAULT": fault, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*launcher, SCRIPT, *settings],
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | own | environment, start_new_session=True,
            )  # fmt: skip

    def pid(self, rank: int) -> int:
        file = self.folder / f"pid-{rank}"
        while not (file.exists() and file.read_text()):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        return int(file.read_text())

    def wait(self, seconds: float = 90) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            for file in self.folder.glob("pid-*"):
                deadline = time.monotonic() + 10
                while alive(int(file.read_text())):
                    if time.monotonic() > deadline:
                        os.kill(int(file.read_text()), signal.SIGKILL)
                        raise AssertionError(f"{file.name} was left behind:\n{self.log.read_text()}")
                    time.sleep(0.05)

    def said(self) -> str:
        return self.log.read_text()


def alive(pid: int) -> bool:
    """Whether a process is there, and not just its name until its parent asks."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def rows(run) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in run.rows()]


def assert_close(one: list[dict], other: list[dict]) -> None:
    assert [row["step"] for row in one] == [row["step"] for row in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert value == pytest.approx(theirs[key], abs=1e-10, rel=0), (mine["step"], key)


def last_bytes(run) -> dict[str, bytes]:
    last = list_checkpoints(run.path / "checkpoints")[-1]
    return {
        file.name: file.read_bytes() for file in last.iterdir() if file.name not in ("config.json", "MANIFEST.json")
    }


def story(run) -> list[str]:
    return [event["event"] for event in run.events() if event["event"] != "saved"]


@pytest.fixture(scope="module")
def straight(new_run, tmp_path_factory):
    """An uninterrupted run of two processes."""
    run = new_run(tmp_path_factory.mktemp("straight"))
    assert Trial(run, PLAIN).wait() == 0
    return run


@pytest.fixture
def twin(straight, tmp_path):
    """A run of the same text, not begun."""
    run = type(straight)(straight.folder)
    run.path = tmp_path / "run"
    return run


def sibling(run, name: str):
    """A run of the same text in another folder."""
    other = type(run)(run.folder)
    other.path = run.folder / name
    return other


def test_one_process_is_a_group_of_its_own():
    alone = Processes()
    assert alone.gather("text") == ["text"]
    alone.require_equal_on_all_ranks("a config", {"lr": 1})
    with alone.rank_zero_first():
        alone.wait()


COUNT_COLLECTIVES = """
import json, os
import torch.distributed as dist
names = "all_reduce reduce barrier monitored_barrier broadcast all_gather all_gather_into_tensor gather scatter "
names += "broadcast_object_list all_gather_object gather_object"
if step == 1:
    calls = module.collectives = []
    def counted(name, real):
        return lambda *arguments, **options: calls.append([module.state.step + 1, name]) or real(*arguments, **options)
    for name in names.split():
        setattr(dist, name, counted(name, getattr(dist, name)))
if step == 5:
    with open(os.path.join(os.environ["TRIAL_FOLDER"], f"calls-{rank}"), "w") as file:
        json.dump(module.collectives, file)
"""


def listening(pid: int) -> list[str]:
    """Addresses of a process's listening TCP sockets, as /proc writes them."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    text = Path(f"/proc/{pid}/net/tcp").read_text() + Path(f"/proc/{pid}/net/tcp6").read_text()
    lines = [line.split() for line in text.splitlines()]
    return [fields[1].rpartition(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in inodes]


# Both wait at step 4, a minute at most, until somebody has looked at them, and one is asked to stop at step 5.
LOOKED_AT_AND_STOPPED = """
import os, signal, time
place, wait_until = os.path.join(os.environ["TRIAL_FOLDER"], "looked-at"), time.time() + 60
while step == 4 and not os.path.exists(place) and time.time() < wait_until: time.sleep(0.01)
if rank == 1 and step == 5: os.kill(os.getpid(), signal.SIGTERM)
"""
UNTIL_IT_STOPS = ["validate.every_steps=5", "trainer.max_steps=10", "checkpoint.every_steps=2"]


@pytest.fixture(scope="module")
def stopped(new_run, tmp_path_factory):
    """A run whose two processes were looked at and stopped together: run, trial, where each listened."""
    run = new_run(tmp_path_factory.mktemp("stopped"))
    fault = COUNT_COLLECTIVES + LOOKED_AT_AND_STOPPED
    trial = Trial(run, PLAIN, *UNTIL_IT_STOPS, "trainer.micro_batch=2", fault=fault)  # 2 processes x 2 x 2 sequences
    pids = [trial.pid(0), trial.pid(1)]
    while not (run.path / "metrics.jsonl").exists():  # from then on they are connected
        assert trial.process.poll() is None, trial.said()
        time.sleep(0.02)
    addresses = [listening(pid) for pid in pids] if Path("/proc/net/tcp6").exists() else []
    (trial.folder / "looked-at").touch()
    assert trial.wait() == 75, trial.said()
    return run, trial, addresses


def test_two_processes_compute_what_one_does_and_stop_together_and_one_goes_on(stopped, capfd):
    """R1, R3, R5."""
    run, trial, _ = stopped
    whole = sibling(run, "whole")
    whole(*SETTINGS, *UNTIL_IT_STOPS, "trainer.micro_batch=8")
    assert rows(run)[-1]["step"] == 5
    assert trial.said().count("Stopped after step 5") == 1
    assert "Traceback" not in trial.said()
    run(*SETTINGS, *UNTIL_IT_STOPS)
    assert "1 instead of 2: each step trains on the same tokens" in capfd.readouterr().out
    assert_close(rows(whole), rows(run))


def test_a_step_of_several_processes_has_one_collective_beside_its_gradients(stopped):
    """Finding 15: the loss, the norm, the time and the requests to stop travel in one all-reduce, with no barrier."""
    for rank in (0, 1):
        calls = json.loads((stopped[1].folder / f"calls-{rank}").read_text())
        assert calls == [[step, "all_reduce"] for step in (1, 2, 3, 4)]


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="asks /proc")
def test_no_process_of_a_run_listens_beyond_this_machine(stopped):
    for addresses in stopped[2]:
        assert addresses, "gloo listens for its own connections"
        assert set(addresses) <= LOOPBACK, addresses


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="asks /proc")
@pytest.mark.soak
def test_nor_does_one_under_torchrun(run):
    trial = Trial(run, TORCHRUN, fault="import time\nif step > 3: time.sleep(0.2)")
    pids = [trial.pid(0), trial.pid(1)]
    while not (run.path / "metrics.jsonl").exists():
        assert trial.process.poll() is None, trial.said()
        time.sleep(0.02)
    addresses = [address for pid in pids for address in listening(pid)]
    assert set(addresses) <= LOOPBACK, addresses
    assert addresses, "gloo listens for its own connections"
    os.kill(pids[1], signal.SIGTERM)
    assert trial.wait() == 1, trial.said()


def test_two_go_on_with_what_one_process_began_and_torchrun_carries_them_through_a_killed_one(run):
    """R5, the other way round, and R4, once; the soak kills two and compares bytes."""
    whole = sibling(run, "whole")
    whole(*SETTINGS, "checkpoint.keep_every_steps=3")
    shutil.copytree(whole.path, run.path)
    at_3, *later = list_checkpoints(run.path / "checkpoints")
    assert step_of(at_3) == 3
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    kill = "import os\nif rank == 1 and step == 8 and once('kill'): os.kill(os.getpid(), 9)"
    trial = Trial(run, [*TORCHRUN, "--max-restarts", "1"], fault=kill)
    assert trial.wait() == 0, trial.said()
    assert trial.said().count("2 instead of 1: each step trains on the same tokens") == 1
    assert trial.said().count("ended without a word") == 1
    changed = next(event for event in run.events() if event["event"] == "devices_changed")
    assert (changed["was"], changed["now"]) == (1, 2)
    continued = [event for event in run.events() if event["event"] == "continued"]
    assert (continued[0]["step"], continued[0]["rows_written_again"]) == (3, 7)
    assert 3 < continued[1]["step"] < 8  # with a checkpoint that two have made
    assert len(continued) == 2
    assert story(run)[-1] == "finished"
    assert_close(rows(whole), rows(run))


def test_a_meeting_place_that_somebody_else_made_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = group._meeting_folder(launched=True)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert group._meeting_folder(launched=True) == made
    made.chmod(0o755)
    with pytest.raises(UserFault, match="not a folder of yours alone"):
        group._meeting_folder(launched=True)
    made.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    made.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserFault, match="not a folder of yours alone"):
        group._meeting_folder(launched=True)
    assert stat.S_IMODE(group._meeting_folder(launched=False).stat().st_mode) == 0o700


CAUSES = {
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "killed"),
    "is stopped": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "no sign of life"),
}


@pytest.mark.soak
@LAUNCHERS
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_process_fails_all_end_and_the_cause_is_named_once(run, launcher, cause, victim):
    """R2."""
    code, words = CAUSES[cause]
    trial = Trial(
        run,
        launcher,
        fault=f"if rank == {victim} and step == 4:\n    open({str(run.folder / 'when')!r}, 'w').close()\n    {code}",
    )
    ended = trial.wait(120)
    assert time.time() - (run.folder / "when").stat().st_mtime < 30 + 5  # and the time to look for left-overs
    gone = launcher is PLAIN and victim == 0 and cause != "raises"  # the process that the shell waits for
    assert ended == (-signal.SIGKILL if gone else 1), trial.said()
    ours = [line for line in trial.said().splitlines() if words in line and "elastic" not in line]
    assert len(ours) == 1, trial.said()
    checkpoints = list_checkpoints(run.path / "checkpoints")
    assert checkpoints
    for checkpoint in checkpoints:
        verify(checkpoint)


def test_a_process_ends_whose_rank_zero_was_killed_before_they_met(run):
    trial = Trial(run, PLAIN)
    trial.pid(1)
    trial.process.kill()
    trial.wait()  # fails if rank 1 is left behind


PLAIN_TARGETS = [(PLAIN, target, signal.SIGTERM) for target in ("rank 0", "rank 1", "both")]
PLAIN_TARGETS += [(PLAIN, "both", signal.SIGINT), (PLAIN, "both", signal.SIGHUP)]  # as a terminal does
TORCHRUN_TARGETS = [(TORCHRUN, target, signal.SIGTERM) for target in ("rank 0", "rank 1", "both", "launcher")]
TORCHRUN_TARGETS += [(TORCHRUN, "launcher", signal.SIGINT), (TORCHRUN, "launcher", signal.SIGHUP)]


@pytest.mark.soak
@pytest.mark.parametrize(("launcher", "target", "number"), PLAIN_TARGETS + TORCHRUN_TARGETS)
def test_a_signal_to_any_process_stops_all_at_the_same_step(twin, straight, launcher, target, number):
    """R3."""
    trial = Trial(twin, launcher, fault="import time\nif step > 2: time.sleep(0.5)")
    pids = [trial.pid(0), trial.pid(1)]
    while not (twin.path / "metrics.jsonl").exists():
        time.sleep(0.02)
    for pid in {"rank 0": pids[:1], "rank 1": pids[1:], "both": pids, "launcher": [trial.process.pid]}[target]:
        os.kill(pid, number)
    ended = trial.wait()
    if target == "launcher":
        assert ended != 0, trial.said()  # 1 after its traceback, or it aborts on its way out
    else:
        assert ended == (75 if launcher is PLAIN else 1), trial.said()
    if launcher is TORCHRUN and target != "launcher":
        assert trial.said().count("exitcode  : 75") == 2
    assert trial.said().count("Stopped after step") == 1
    trial.folder.rename(trial.folder.with_name("stopped"))
    assert Trial(twin, launcher).wait() == 0
    assert rows(twin) == rows(straight)
    assert last_bytes(twin) == last_bytes(straight)


@pytest.mark.soak
def test_torchrun_carries_a_run_through_two_killed_processes_to_the_same_bytes(twin, straight):
    """R4."""
    kill = """
import os
for victim, at in ((0, 5), (1, 8)):
    if rank == victim and step == at and once(at): os.kill(os.getpid(), 9)
"""
    trial = Trial(twin, [*TORCHRUN, "--max-restarts", "3"], fault=kill)
    assert trial.wait(180) == 0, trial.said()
    assert story(twin) == ["began", "continued", "continued", "finished"]
    assert rows(twin) == rows(straight)
    assert last_bytes(twin) == last_bytes(straight)


@pytest.mark.soak
def test_torchrun_does_not_go_on_with_a_run_that_was_asked_to_stop(run):
    stop = "import os, signal\nif rank == 1 and step == 5 and once('stop'): os.kill(os.getpid(), signal.SIGTERM)"
    trial = Trial(run, [*TORCHRUN, "--max-restarts", "2"], fault=stop)
    assert trial.wait(180) == 1, trial.said()
    assert trial.said().count("This run was asked to stop") == 2
    assert story(run) == ["began", "stopped"]


@pytest.mark.soak
@LAUNCHERS
def test_processes_that_were_started_otherwise_are_named_at_the_start(run, launcher):
    """R6."""
    trial = Trial(run, launcher, CHANGE="optimizer.lr=0.5")
    assert trial.wait() == (2 if launcher is PLAIN else 1), trial.said()
    assert trial.said().count("rank 1 has a config other than rank 0: optimizer.lr: 0.5 where rank 0 has") == 1
    assert not run.path.exists()


@pytest.mark.soak
@LAUNCHERS
def test_a_bad_step_of_one_process_is_skipped_by_all(run, launcher):
    """W6 on two ranks: skip, go back, pass over, end well."""
    bad = """
if rank == 1 and step in (5, 6) and once(f'{step}'):
    loss = loss * float('nan'); module.micro_losses[-1] = loss.detach()
"""
    trial = Trial(run, launcher, "guard.max_skips=1", fault=bad)
    assert trial.wait() == 0, trial.said()
    kinds = story(run)
    assert kinds == ["began", "skipped", "skipped", "rolled_back", "continued", "finished"]
    assert json.loads((run.path / "skipped_batches.json").read_text()) == [[4, 5]]
    assert "Traceback" not in trial.said()


# test_sharded.py has a callback that stops behind a step.
STOP_INSIDE_A_STEP = "if rank == 1 and step == 4: module.trainer.should_stop = True"


@pytest.mark.soak
def test_all_ranks_stop_where_a_callback_of_one_asks_for_it(run):
    """The others would wait for ever in their next collective."""
    trial = Trial(run, PLAIN, fault=STOP_INSIDE_A_STEP)
    assert trial.wait() == 0, trial.said()
    assert story(run) == ["began", "finished"]
    assert [row["step"] for row in run.rows()][-1] == 4


@pytest.mark.soak
def test_three_devices_that_two_processes_were_started_for_are_refused(run):
    trial = Trial(run, TORCHRUN, "trainer.devices=4")
    assert trial.wait() == 1
    assert trial.said().count("2 processes were started, but trainer.devices=4") == 1


def test_processes_of_a_step_of_srun_meet_whatever_script_started_them(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("MINIGPT_GROUP_FOLDER", raising=False)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    parents = iter([100, 200, 300, 400])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    first = group._meeting_folder(launched=True)
    assert group._meeting_folder(launched=True) == first
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    assert group._meeting_folder(launched=True) != first
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert group._meeting_folder(launched=True) != group._meeting_folder(launched=True)
