"""Two hosts on one machine: network namespaces with a line between them that can be cut. (`make soak-cluster`)

Both share the file system, as a cluster's do. Needs root and iproute2; without them these trials are skipped.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import list_checkpoints, verify
from minigpt.ranks.heartbeat import LOST_SECONDS
from tests.ranks.test_group import SCRIPT, SETTINGS, alive, assert_close, last_bytes, rows, sibling, story

HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
LIMIT = 60  # seconds from a fault to the end of everything that belongs to the run
LONG = ["trainer.max_steps=1000000", "checkpoint.every_steps=20", "validate.every_steps=0", "logger.every_steps=20"]
PORTS = itertools.count(29410)


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def can_make_hosts() -> bool:
    made = shutil.which("ip") is not None and ip("netns", "add", "minigpt_probe")
    return made and ip("netns", "del", "minigpt_probe")


pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not can_make_hosts(), reason="needs the permission to make network namespaces (root, iproute2)"),
]


def connect() -> None:
    """A cable between the two; put in anew after a cut."""
    ip("-n", "minigpt_a", "link", "del", "eth_a")
    assert ip(
        "link", "add", "eth_a", "netns", "minigpt_a", "type", "veth", "peer", "name", "eth_b", "netns", "minigpt_b"
    )
    for name, address in HOSTS.items():
        assert ip("-n", f"minigpt_{name}", "addr", "add", f"{address}/24", "dev", f"eth_{name}")
        assert ip("-n", f"minigpt_{name}", "link", "set", "lo", "up")
        assert ip("-n", f"minigpt_{name}", "link", "set", f"eth_{name}", "up")


@pytest.fixture(scope="module", autouse=True)
def hosts():
    for name in HOSTS:
        ip("netns", "del", f"minigpt_{name}")
        assert ip("netns", "add", f"minigpt_{name}")
    yield
    for name in HOSTS:
        ip("netns", "del", f"minigpt_{name}")


@pytest.fixture(autouse=True)
def cable(hosts):
    connect()


class Pair:
    """torchrun on each of the two hosts."""

    def __init__(self, run, *settings: str, restarts: int = 0, devices: int = 1, **environment: str):
        self.folder = Path(str(run.path) + f"-{next(PORTS)}")
        self.folder.mkdir()
        port = next(PORTS)
        own = {"TRIAL_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"} | environment
        self.agents = {}
        for name, address in HOSTS.items():
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={devices}"]
            launcher += [f"--max-restarts={restarts}", "--rdzv-backend=c10d", f"--rdzv-endpoint={HOSTS['a']}:{port}"]
            launcher += ["--rdzv-id=trial", f"--local-addr={address}", f"--rdzv-conf=is_host={int(name == 'a')}"]
            command = [
                "ip",
                "netns",
                "exec",
                f"minigpt_{name}",
                *launcher,
                SCRIPT,
                *run.arguments(*SETTINGS),
                *settings,
            ]
            with open(self.folder / name, "w") as log:
                self.agents[name] = subprocess.Popen(
                    command, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )

    def said(self, name: str) -> str:
        return (self.folder / name).read_text()

    def ranks(self, name: str) -> list[int]:
        found = subprocess.run(["pgrep", "-P", str(self.agents[name].pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def wait(self, seconds: float) -> dict[str, int]:
        """The exit codes, when all that belongs to the run is gone."""
        deadline = time.monotonic() + seconds
        pids = [pid for name in HOSTS for pid in self.ranks(name)]
        codes = {name: agent.wait(max(0.1, deadline - time.monotonic())) for name, agent in self.agents.items()}
        while any(map(alive, pids)):
            assert time.monotonic() < deadline, pids
            time.sleep(0.1)
        return codes

    def kill(self) -> None:
        for name in HOSTS:
            for pid in [*self.ranks(name), self.agents[name].pid]:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def pair():
    made = []

    def start(run, *settings, **options):
        made.append(Pair(run, *settings, **options))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def await_checkpoint(run, pair: Pair) -> None:
    while not list_checkpoints(run.path / "checkpoints"):
        assert all(agent.poll() is None for agent in pair.agents.values()), pair.said("a") + pair.said("b")
        time.sleep(0.1)
    time.sleep(1)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_two_hosts_of_two_processes_compute_what_one_process_does(run, pair, strategy):
    whole = sibling(run, "whole")
    whole(*SETTINGS, "trainer.micro_batch=8")
    both = pair(run, f"trainer={strategy}", "trainer.micro_batch=2", devices=2)  # nodes and devices: from torchrun
    assert both.wait(300) == {"a": 0, "b": 0}, both.said("a") + both.said("b")
    assert_close(rows(whole), rows(run))


def cut(pair, name):
    assert ip("-n", f"minigpt_{name}", "link", "set", f"eth_{name}", "down")


def die(pair, name):
    for pid in [*pair.ranks(name), pair.agents[name].pid]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("harm", [cut, die])
@pytest.mark.parametrize("name", HOSTS)
def test_a_dead_host_or_a_cut_line_ends_the_run_on_both_sides_within_a_minute(run, pair, harm, name):
    """Host a holds torchrun's store and rank 0. What is left of the run goes on from its last checkpoint."""
    both = pair(run, "trainer=fsdp", *LONG)
    await_checkpoint(run, both)
    harm(both, name)
    began = time.monotonic()
    codes = both.wait(LIMIT)
    print(f"\n{harm.__name__} {name}: over after {time.monotonic() - began:.0f} s, {codes}")
    assert 0 not in codes.values()
    left = [each for each in HOSTS if harm is cut or each != name]
    for each in left:
        assert both.said(each).count("All processes of the run end.") == 1, both.said(each)
    for path in list_checkpoints(run.path / "checkpoints"):
        verify(path)
    assert LOST_SECONDS < LIMIT


def test_a_killed_rank_is_what_restarts_are_for(run, pair):
    both = pair(run, "trainer=fsdp", *LONG, restarts=2)
    await_checkpoint(run, both)
    for pid in both.ranks("b"):
        os.kill(pid, signal.SIGKILL)
    while story(run).count("continued") < 1:
        assert all(agent.poll() is None for agent in both.agents.values()), both.said("a") + both.said("b")
        time.sleep(0.2)
    time.sleep(2)
    (run.path / "STOP").touch()
    both.wait(120)
    assert story(run)[-1] == "stopped"


@pytest.mark.parametrize("whom", ["agent", "rank"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_signal_on_either_host_stops_both_with_a_checkpoint_and_the_same_bytes_after(run, pair, name, whom):
    settings = ["trainer=fsdp", "trainer.max_steps=60"]
    straight = sibling(run, "straight")
    assert pair(straight, *settings).wait(300) == {"a": 0, "b": 0}
    slow = "import time\nif step > 2: time.sleep(0.3)"
    both = pair(run, *settings, FAULT=slow)
    await_checkpoint(run, both)
    os.kill(both.agents[name].pid if whom == "agent" else both.ranks(name)[0], signal.SIGTERM)
    both.wait(LIMIT)
    assert story(run)[-1] == "stopped"
    assert both.said("a").count("Stopped after step") == 1
    assert pair(run, *settings).wait(300) == {"a": 0, "b": 0}
    assert rows(run) == rows(straight)
    assert last_bytes(run) == last_bytes(straight)


def test_a_slow_line_that_loses_packets_changes_no_number(run, pair):
    slow = ["root", "tbf", "rate", "100mbit", "burst", "64kb", "latency", "400ms"]
    limited = [
        subprocess.run(["tc", "-n", f"minigpt_{name}", "qdisc", "add", "dev", f"eth_{name}", *slow]).returncode
        for name in HOSTS
    ]
    loss = "table inet lossy { chain in { type filter hook input priority 0; numgen random mod 100 < 2 drop; }; }"
    drops = [
        shutil.which("nft") is not None
        and not subprocess.run(["ip", "netns", "exec", f"minigpt_{name}", "nft", loss], capture_output=True).returncode
        for name in HOSTS
    ]
    if any(limited) or not all(drops):
        pytest.skip("needs tc with tbf, and nft")
    whole = sibling(run, "whole")
    whole(*SETTINGS, "trainer.micro_batch=8")
    both = pair(run, "trainer=fsdp", "trainer.micro_batch=2")
    assert both.wait(300) == {"a": 0, "b": 0}, both.said("a") + both.said("b")
    assert_close(rows(whole), rows(run))


OTHER = "import os, torch\nif os.environ['RANK'] == '1': torch.__version__ = '2.0.0'"


def test_other_versions_on_one_host_are_refused_before_the_first_step(run, pair):
    both = pair(run, "trainer=ddp", START=OTHER)
    assert both.wait(120) == {"a": 1, "b": 1}
    assert "rank 1 has versions other than rank 0: torch: '2.0.0' where rank 0 has torch:" in both.said("a")
    assert not (run.path / "metrics.jsonl").exists()


def test_a_run_directory_that_the_hosts_do_not_share_is_refused(run, pair):
    other = {"CHANGE": f"run.dir={run.folder / 'other'}", "MINIGPT_HEARTBEAT_SECONDS": "5"}
    both = pair(run, "trainer=ddp", **other)
    assert both.wait(180) == {"a": 1, "b": 1}
    assert "rank 0 was not found there" in both.said("b")
    assert "Do all hosts share run.dir=" in both.said("a")
    assert not (run.path / "metrics.jsonl").exists()


def test_scaling_is_measured_on_two_hosts(run, pair, monkeypatch):
    """A tiny step, on one process, on a host and on both; the folder that they share has the results."""
    monkeypatch.setitem(globals(), "SCRIPT", str(Path(__file__).parents[2] / "scripts" / "benchmark.py"))
    words = [
        "what=scaling",
        "preset=c0",
        "model.n_layer=1",
        "trainer=hsdp",
        "trainer.device=cpu",
        "rounds=1",
        "steps=2",
    ]
    monkeypatch.setattr(type(run), "arguments", lambda *_: [*words, f"write_to={run.path}"])
    both = pair(run, devices=2)
    assert both.wait(300) == {"a": 0, "b": 0}, both.said("a") + both.said("b")
    rows = json.loads((run.path / "scaling.json").read_text())["rows"]
    found = [(row["devices"], row["batch"]) for row in rows if row["measured"]]
    assert found == [(1, "weak"), (1, "strong"), (2, "weak"), (2, "strong"), (4, "both")]
    assert rows[4]["sent"] > rows[3]["sent"] > 0
    assert both.said("b").count("ms/step") == 0
