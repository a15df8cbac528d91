"""SLURM: when a job is queued again, and the script that it is submitted with."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from minigpt import cli
from minigpt.config.compose import compose
from minigpt.faults import StorageFailure, UserFault
from minigpt.ranks import slurm

RUNNING, CANCELLED = "JobId=42 JobState=RUNNING", "JobId=42 JobState=CANCELLED"
PREEMPTED = "PreemptTime=2026-11-22T10:00:00"


@pytest.fixture
def scontrol(monkeypatch, tmp_path):
    """A scontrol that shows a job's record, and writes down what else it is asked."""

    def make(record: str, code: int = 0) -> Path:
        log, program = tmp_path / "log", tmp_path / "scontrol"
        show = f'[ "$1" = show ] && echo "{record}" && exit 0'
        program.write_text(f'#!/bin/sh\n{show}\necho "$@" >> {log}\necho "no such job" >&2\nexit {code}\n')
        program.chmod(0o755)
        log.touch()
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "42")
        return log

    return make


@pytest.mark.parametrize(
    ("record", "asked", "again"),
    [
        (f"{RUNNING} PreemptTime=None", True, True),  # USR1 before the time limit
        (f"{RUNNING} PreemptTime=None", False, False),  # TERM from anybody
        (f"{RUNNING} {PREEMPTED}", False, True),
        (f"{CANCELLED} PreemptTime=None", False, False),  # scancel
        (f"{CANCELLED} {PREEMPTED}", False, False),  # scancel of a job that is being preempted
        (f"{CANCELLED} PreemptTime=None", True, False),  # scancel while the checkpoint is saved after USR1
        ("", True, True),  # its record can't be had
        ("", False, False),
    ],
)
def test_a_job_is_queued_again_once_where_its_time_is_up_or_slurm_preempts_it(scontrol, record, asked, again):
    log, said = scontrol(record), []
    slurm.requeue(said.append, asked=asked)
    assert log.read_text() == "requeue 42\n" * again
    assert len(said) == again


def script(tmp_path, *words):
    file = tmp_path / "job.sbatch"
    config = compose("slurm", ["data.name=stdlib", f"job.file={file}", *words])
    slurm.write_train_script(config, ["python", "train.py", "samples.prompt=a b"], "minigpt slurm")
    return file


def test_the_script_is_one_that_a_person_would_have_written(tmp_path):
    words = ["trainer=ddp", "trainer.devices=4", "job.partition=gpu", "job.setup=module load cuda"]
    lines = script(tmp_path, *words, "experiment=gpt2_124m").read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert options >= {
        "job-name=gpt2_124m", "partition=gpu", "nodes=1", "gpus-per-node=4", "cpus-per-task=32", "requeue",
        "open-mode=append", "signal=USR1@120", "time=24:00:00",
    }  # fmt: skip
    assert lines[-2:] == ["module load cuda", "exec srun --cpus-per-task=32 python train.py 'samples.prompt=a b'"]
    assert lines[-3] == f"cd {os.getcwd()} || exit 2"
    words = ["trainer=fsdp", "trainer.nodes=2", "trainer.devices=4", "batch_tokens=524288"]
    several = script(tmp_path, *words).read_text()
    for option in ("nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "cpus-per-task=8"):
        assert f"#SBATCH --{option}\n" in several
    assert "exec srun --distribution=block --kill-on-bad-exit=1 --cpus-per-task=8 " in several
    on_cpu = script(tmp_path, "trainer.device=cpu", "trainer.threads=3").read_text()
    assert "gpus" not in on_cpu
    assert "--cpus-per-task=3\n" in on_cpu


def test_the_command_writes_a_script_that_runs(folder, capsys):
    (folder / "srun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (folder / "srun").chmod(0o755)
    words = ["trainer.device=cpu", "run.dir=my run", "job.file=my job.sbatch"]
    cli.slurm(words)
    assert capsys.readouterr().out == "Wrote my job.sbatch. Look through it, then:\n  sbatch 'my job.sbatch'\n"
    file = folder / "my job.sbatch"
    file.write_text(file.read_text().rstrip() + " --cfg job\n")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    shown = subprocess.run(["bash", str(file)], cwd="/", env=environment, capture_output=True, text=True)
    assert (shown.returncode, "  dir: my run" in shown.stdout) == (0, True)
    with pytest.raises(UserFault, match=r"model\.n_head=5"):
        cli.slurm([*words, "model.n_head=5"])


def test_what_a_script_must_not_hold_is_refused(tmp_path):
    """A password, and a folder that is none."""
    file = tmp_path / "job.sbatch"
    config = compose("slurm", ["data.name=stdlib", f"job.file={file}"])
    with pytest.raises(UserFault, match="holds a password or key"):
        slurm.write_train_script(config, ["train", "data.source=https://me:hunter2secret@host/x"], "minigpt slurm")
    assert not file.exists()
    slurm.write_train_script(config, ["train"], "minigpt slurm samples.prompt='two\nlines'")
    assert "\n# lines'\n" in file.read_text()
    for place in (tmp_path, tmp_path / "missing" / "x.sbatch"):
        with pytest.raises(StorageFailure, match=r"job\.file=.* can't be written"):
            slurm.write_train_script(replace(config, job=replace(config.job, file=str(place))), ["train"], "")
