"""A real SLURM on one machine, a controller and two nodes: what `minigpt slurm` writes is run, preempted and cancelled.

Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge; without them these trials are skipped.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.verify import compare_runs
from tests.conftest import TinyRun

ROOT = Path(__file__).parents[2]
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING) or os.getuid() != 0, reason=f"needs root, and SLURM ({' '.join(MISSING)})"),
]
LONG = ["trainer.max_steps=3000", "validate.every_steps=1000", "logger.every_steps=50", "checkpoint.every_steps=1000"]
CONFIG = """\
ClusterName=minigpt
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=16817
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=2
PartitionName=low Nodes=n[1-2] Default=YES PriorityTier=1 GraceTime=120 State=UP
PartitionName=high Nodes=n[1-2] PriorityTier=10 PreemptMode=OFF State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The cluster, for as long as the trials last; what was started is ended by its process id."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(CONFIG.format(host=socket.gethostname().partition(".")[0], folder=folder))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    if subprocess.run(["munge", "-n"], capture_output=True).returncode:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        subprocess.run(["munged"], user="munge", check=True)
    try:
        subprocess.run(["slurmctld", "-c"], check=True)
        for name in ("n1", "n2"):
            subprocess.run(["slurmd", "-N", name], check=True)
        wait_for(
            lambda: set(said("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()) == {"n1 idle", "n2 idle"}
        )
        yield folder
        said("scancel", "--user=root")
    finally:
        for file in folder.glob("*.pid"):
            os.kill(int(file.read_text()), signal.SIGTERM)
        patch.undo()


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wait_for(met, seconds=240):
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.5)


class Job:
    """A run of its own, submitted with the script that `minigpt slurm` writes."""

    def __init__(self, folder: Path, *words: str, options: tuple[str, ...] = ()):
        self.run = TinyRun(folder)
        file = folder / "job.sbatch"
        job = ["job.partition=low", "job.cpus=1", f"job.file={file}", "job.time=00:30:00"]
        command = [sys.executable, str(ROOT / "minigpt"), "slurm", *self.run.arguments(*LONG, *words), *job]
        subprocess.run(command, cwd=folder, check=True)
        self.number = said("sbatch", "--parsable", f"--chdir={folder}", *options, str(file)).strip()

    @property
    def facts(self) -> dict[str, str]:
        words = said("scontrol", "show", "job", "--oneliner", self.number).split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def is_training(self) -> bool:
        file = self.run.path / "metrics.jsonl"
        return file.exists() and len(file.read_text().splitlines()) > 2

    def go_on(self) -> None:
        """Begin now, and not two minutes after it was queued again."""
        wait_for(lambda: self.facts["JobState"] == "PENDING")
        subprocess.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now"], check=True)


def preempt() -> str:
    """Submit a job that needs both nodes, and goes first."""
    words = ["--parsable", "--partition=high", "--nodes=2", "--exclusive", "--time=5", "--output=/dev/null"]
    return said("sbatch", *words, "--wrap=sleep 3").strip()


def test_a_preempted_job_and_one_out_of_time_go_on_to_the_same_bytes(slurm, tmp_path):
    straight = TinyRun(tmp_path)
    straight.path = tmp_path / "straight"
    subprocess.run([sys.executable, str(ROOT / "minigpt"), "train", *straight.arguments(*LONG)], check=True)

    job = Job(tmp_path)
    wait_for(job.is_training)
    preempt()
    wait_for(lambda: job.facts["Restarts"] == "1")
    job.go_on()
    wait_for(lambda: job.facts["JobState"] == "RUNNING")
    wait_for(lambda: [each["event"] for each in job.run.events()].count("continued") == 1)
    # What SLURM sends before the time limit, to the job's steps and not to its script.
    said("scancel", "--signal=USR1", job.number)
    wait_for(lambda: job.facts["Restarts"] == "2")
    job.go_on()
    wait_for(lambda: job.facts["JobState"] == "COMPLETED")
    events = [row["event"] for row in job.run.events() if row["event"] in ("began", "continued", "stopped", "finished")]
    assert events == ["began", "stopped", "continued", "stopped", "continued", "finished"]
    assert job.facts["Restarts"] == "2"
    assert compare_runs(straight.path, job.run.path)[1] == []
    output = next(tmp_path.glob("*-[0-9]*.txt")).read_text()
    assert len(re.findall("is queued again: it was preempted", output)) == 1


def test_a_time_limit_queues_the_job_again(slurm, tmp_path):
    words = ("trainer.max_steps=10000000", "trainer.compile=off")  # it trains before the signal, after half a minute
    job = Job(tmp_path, *words, options=("--time=2", "--signal=USR1@90"))
    wait_for(job.is_training)
    wait_for(lambda: job.facts["Restarts"] == "1")
    wait_for(lambda: job.facts["JobState"] == "PENDING")
    said("scancel", job.number)
    assert [each["event"] for each in job.run.events()].count("stopped") == 1


def test_a_cancelled_job_is_never_brought_back(slurm, tmp_path):
    job = Job(tmp_path, "trainer.max_steps=10000000")
    wait_for(job.is_training)
    said("scancel", job.number)
    wait_for(lambda: job.run.events()[-1]["event"] == "stopped")
    wait_for(lambda: job.facts["JobState"] == "CANCELLED")
    time.sleep(5)
    assert (job.facts["JobState"], job.facts["Restarts"]) == ("CANCELLED", "0")


def test_two_nodes_train_one_model(slurm, tmp_path):
    words = ["trainer=ddp", "trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=40"]
    words.append("job.setup=export MASTER_ADDR=127.0.0.1")  # the nodes' names are known to SLURM alone
    job = Job(tmp_path, *words, "checkpoint.every_steps=20", "schedule.warmup_steps=1")
    wait_for(lambda: job.facts["JobState"] == "COMPLETED")
    assert (job.facts["NumNodes"], job.facts["NumTasks"]) == ("2", "2")
    assert job.run.events()[-1]["event"] == "finished"
