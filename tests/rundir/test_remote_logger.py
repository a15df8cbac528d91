"""wandb may die, hang or be missing: training keeps its bits, its rows and its pace, and one sentence is said."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.config.schema import LoggerConfig
from minigpt.rundir import loggers
from minigpt.rundir.loggers import RemoteLogger, wandb_id

DIES_AT_ONCE = "raise SystemExit(3)"
NEVER_READS = "import time; time.sleep(600)"
SAYS_WHY = """
import sys
print("<html>"), print([1])
sys.stdin.readline()
print("fault: OSError: no account")
sys.exit(1)
"""
DIES_LATER = "import os, sys, time; sys.stdin.readline(); time.sleep(0.1); os.kill(os.getpid(), 9)"
NEVER_ENDS = "import sys, time; sys.stdin.read(); time.sleep(600)"
WRITES_DOWN = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"


def stands_for_wandb(monkeypatch, code: str, *arguments: str) -> None:
    monkeypatch.setattr(loggers, "COMMAND", [sys.executable, "-c", code, *arguments])


def last_checkpoint(run: Path) -> dict[str, bytes]:
    folder = max((run / "checkpoints").glob("step-?????????"))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"}


@pytest.mark.parametrize("code", [DIES_AT_ONCE, SAYS_WHY, DIES_LATER, NEVER_ENDS, None])
def test_a_logger_that_fails_costs_one_sentence_and_no_bit(run, monkeypatch, tmp_path, capsys, code):
    plain = run()
    weights, steps = last_checkpoint(plain), [row["step"] for row in run.rows()]
    plain.rename(tmp_path / "plain")
    capsys.readouterr()
    if code is None:
        monkeypatch.setattr(loggers, "COMMAND", ["/no/such/python"])
    else:
        stands_for_wandb(monkeypatch, code)
    monkeypatch.setattr(loggers, "PATIENCE_SECONDS", 0.2 if code == NEVER_ENDS else 10.0)
    began = time.monotonic()
    logged = run("logger=wandb")
    assert time.monotonic() - began < 20
    assert last_checkpoint(logged) == weights
    assert [row["step"] for row in run.rows()] == steps
    captured = capsys.readouterr()
    assert captured.out.count("wandb is off from now on: ") == 1
    assert ("OSError: no account" in captured.out) == (code is SAYS_WHY)
    assert "Traceback" not in captured.out + captured.err


def test_what_is_handed_over(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_SECRET", "hush-hush-42")
    stands_for_wandb(monkeypatch, WRITES_DOWN, str(tmp_path / "got"))
    path = run("logger=wandb", "samples.prompt=x hush-hush-42 hf_abcdefghijklmnopqrst")
    opening = json.loads((tmp_path / "got").read_text())
    assert opening["id"] == (path / "wandb_id.txt").read_text().strip()
    assert (opening["dir"], opening["name"], opening["resume"], opening["mode"]) == (
        str(path),
        "run",
        "allow",
        "offline",
    )
    assert opening["config"]["samples"]["prompt"] == "x <redacted> <redacted>"
    assert opening["rows_from"] == 0
    size = (path / "metrics.jsonl").stat().st_size
    run("logger=wandb", "trainer.max_steps=8")
    assert json.loads((tmp_path / "got").read_text())["rows_from"] == size


def test_a_logger_that_never_reads_is_not_waited_for(monkeypatch, tmp_path):
    stands_for_wandb(monkeypatch, NEVER_READS)
    monkeypatch.setattr(loggers, "PATIENCE_SECONDS", 0.1)
    said: list[str] = []
    began = time.monotonic()
    logger = RemoteLogger(LoggerConfig(name="wandb"), tmp_path, settings={"prompt": "x" * 300_000}, say=said.append)
    logger.close()
    assert time.monotonic() - began < 5
    assert len(said) == 1
    assert logger.process.wait(5) == -signal.SIGKILL


def test_no_process_group_is_killed_once_its_process_has_ended(monkeypatch, tmp_path):
    """Its number may belong to somebody else by then."""
    stands_for_wandb(monkeypatch, "")
    killed = []
    monkeypatch.setattr(os, "killpg", lambda *arguments: killed.append(arguments))
    logger = RemoteLogger(LoggerConfig(name="wandb"), tmp_path, settings={}, say=pytest.fail)
    logger.thread.join(20)
    logger.close()
    assert killed == []


def test_rows_are_followed_while_they_are_written(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    start = path.stat().st_size
    script = "from pathlib import Path; from minigpt.rundir.wandb_process import follow\n"
    script += f"for row in follow(Path({str(path)!r}), {start}): print(row['step'], flush=True)"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with open(path, "a") as file:
        file.write('{"step": 2}\n{"st')
        file.flush()
        assert process.stdout.readline() == "2\n"
        file.write('ep": 3}\n{"step": 4}\n{"torn')
    assert process.communicate(timeout=20)[0] == "3\n4\n"


def test_an_id_is_chosen_once_and_is_nobody_elses(tmp_path):
    for name in ("a", "b/a", "odd name: ü#?%/é"):
        (tmp_path / name).mkdir(parents=True)
    first = wandb_id(tmp_path / "a")
    assert wandb_id(tmp_path / "a") == first
    assert wandb_id(tmp_path / "b/a") != first
    assert wandb_id(tmp_path / "odd name: ü#?%/é").isascii()
    (tmp_path / "a" / "wandb_id.txt").write_text("../../etc; rm\n")
    assert "/" not in wandb_id(tmp_path / "a")


# --- the real wandb ---

CANARIES = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYCANARYKEY",
    "HF_TOKEN": "hf_canarycanarycanarycanary",
    "OPENAI_API_KEY": "sk-canarycanarycanarycanary",
    "GITHUB_TOKEN": "ghp_canarycanarycanarycanary0000",
    "MY_PASSWORD": "correct-horse-battery",
}


def files_with(folder: Path, *needles: bytes) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


def test_the_real_wandb_offline_writes_the_rows_and_nothing_of_the_machine(run, monkeypatch, tmp_path, capsys):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    path = run("logger=wandb")
    out = capsys.readouterr().out
    assert "wandb sync" in out
    assert "is off" not in out
    (record,) = (path / "wandb").glob("offline-run-*/*.wandb")
    content = record.read_bytes()
    for name in ("train/loss", "val/loss", "tokens_per_second", "n_embd"):
        assert name.encode() in content
    host = os.uname().nodename
    assert files_with(path, *(value.encode() for value in CANARIES.values()), f'"{host}"'.encode()) == []
    kept = {item.suffix for item in (path / "wandb").rglob("*") if item.is_file()}
    assert kept == {".wandb", ".log"}  # no code, no requirements, no metadata, nothing of the screen
    run("logger=wandb", "trainer.max_steps=8")
    records = sorted((path / "wandb").glob("offline-run-*/*.wandb"))
    assert len({record.name for record in records}) == 1  # one id: `wandb sync` makes one run of them


STEPS = 1500  # long enough for wandb to come up


def start(folder: Path, *extra: str, **environment: str) -> subprocess.Popen:
    arguments = ["data=text", f"data.source={folder}/text.txt", f"data.dir={folder}/data", f"run.dir={folder}/run"]
    arguments += ["tokenizer=byte", "model=gpt-nano", f"trainer.max_steps={STEPS}", "batch_tokens=512", "logger=wandb"]
    arguments += ["logger.every_steps=1", "samples.every_steps=0", "trainer.threads=1", "trainer.device=cpu"]
    return subprocess.Popen(
        [sys.executable, "scripts/train.py", *arguments, *extra],
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid: int) -> dict[int, str]:
    """Processes below this one, by name."""
    found: dict[int, str] = {}
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    new = {pid}
    while new:
        level = {int(row[0]): row[2] for row in rows if int(row[1]) in new}
        found |= level
        new = set(level)
    return found


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "text.txt").write_text("".join(f"{n} and {n * n % 97}\n" for n in range(4000)))
    return tmp_path


@pytest.fixture(scope="module")
def plain_weights(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "text.txt").write_text("".join(f"{n} and {n * n % 97}\n" for n in range(4000)))
    assert start(folder, "logger=files").wait(300) == 0
    return last_checkpoint(folder / "run")


def check(folder: Path, weights: dict[str, bytes], output: str, sentences: int = 1) -> None:
    assert last_checkpoint(folder / "run") == weights
    steps = [json.loads(line)["step"] for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))
    assert output.count("wandb is off") == sentences
    assert "Traceback" not in output


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", ["wandb-core", "python"])
def test_a_killed_or_stopped_wandb(place, plain_weights, number, victim):
    training = start(place)
    hit = None
    while training.poll() is None and hit is None:
        below = children(training.pid)
        if "wandb-core" in below.values() and (place / "run/metrics.jsonl").exists():
            hit = next(pid for pid, name in below.items() if name.startswith(victim))
            os.kill(hit, number)
        time.sleep(0.05)
    output, _ = training.communicate(timeout=500)
    late = time.time() - (place / "run/metrics.jsonl").stat().st_mtime
    assert hit, "wandb was never there"
    if number == signal.SIGSTOP and hit in children(1):
        os.kill(hit, signal.SIGKILL)
    assert training.returncode == 0, output
    assert late < 60  # after the last step: report and all
    check(place, plain_weights, output)


@pytest.mark.soak
def test_no_server_online(place, plain_weights):
    key = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    training = start(place, "logger.mode=online", **key)
    output, _ = training.communicate(timeout=300)
    assert training.returncode == 0, output
    check(place, plain_weights, output)


@pytest.mark.soak
def test_a_wandb_folder_that_can_not_be_written(place, plain_weights):
    (place / "run").mkdir()
    (place / "run" / "wandb").write_text("in the way")
    training = start(place)
    output, _ = training.communicate(timeout=300)
    assert training.returncode == 0, output
    check(place, plain_weights, output)


@pytest.mark.soak
def test_a_full_disk_under_wandbs_folder(place, plain_weights):
    folder = place / "run" / "wandb"
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        training = start(place)
        output, _ = training.communicate(timeout=300)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert training.returncode == 0, output
    check(place, plain_weights, output, sentences=output.count("wandb is off"))
    assert output.count("wandb is off") <= 1


@pytest.mark.soak
def test_killed_five_times_the_wandb_run_is_one_and_each_step_has_one_row(place, plain_weights):
    for kill in range(5):
        training = start(place, "checkpoint.every_steps=20")
        goal = 40 * (kill + 1)
        metrics = place / "run/metrics.jsonl"
        while training.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < goal):
            time.sleep(0.02)
        training.kill()
        training.communicate()
    training = start(place, "checkpoint.every_steps=20")
    output, _ = training.communicate(timeout=300)
    assert training.returncode == 0, output
    check(place, plain_weights, output, sentences=0)
    assert len({path.name for path in (place / "run/wandb").glob("offline-run-*/*.wandb")}) == 1
