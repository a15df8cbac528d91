"""prepare.engine=ray on two nodes of one machine, one of which dies: the same bytes."""

import os
import threading
import time
from pathlib import Path

import pytest

from minigpt import cli
from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import ray_engine, units
from minigpt.data.preparing.prepare import prepare
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault

pytest.importorskip("ray", reason="the Python package 'ray' is not here: make test-extras")
pytestmark = pytest.mark.timeout(300)

TEXT = "".join(f"Line {n}: the naïve fox can't jump {n * n}.\n" for n in range(40_000))


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    monkeypatch.setenv("RAY_ADDRESS", found.address)
    yield found
    found.shutdown()


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run(source: Path, place: str, **work) -> Path:
    data = DataConfig(name="text", source=str(source), dir=str(source.parent / place))
    return prepare(data, TokenizerConfig("bpe", vocab_size=300), work=WorkConfig(**work), say=lambda line: None).folder


def test_a_node_killed_in_the_middle_has_its_units_made_elsewhere(source, cluster, monkeypatch):
    wanted = tree(run(source, "here", workers=1))
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    monkeypatch.setattr(units, "UNIT_BYTES", 100_000)
    monkeypatch.setattr(ray_engine, "_encode", _slow)
    folder = source.parent / "ray"
    killed = threading.Event()

    def kill():
        while len(list(folder.rglob("*.unit"))) < 4:
            time.sleep(0.02)
        cluster.remove_node(second, allow_graceful=False)
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    assert tree(run(source, "ray", engine="ray")) == wanted
    thread.join()
    assert killed.is_set()


def _slow(vocabulary, frame):
    time.sleep(0.3)
    return ray_engine.answer(frame, ray_engine._tokenizer(vocabulary))


def test_a_fault_of_the_text_comes_back_from_a_node(source, cluster):
    theirs = build_tokenizer("char", alphabet=TEXT.replace("f", ""))
    data = DataConfig(name="text", source=str(source), dir=str(source.parent / "fault"))
    with pytest.raises(UserFault, match=r"'f' .*is not in the alphabet"):
        prepare(data, TokenizerConfig("char"), given=theirs, work=WorkConfig(engine="ray"), say=lambda line: None)


def test_the_command_finds_the_cluster_by_its_address(source, cluster, monkeypatch, capsys):
    address = os.environ["RAY_ADDRESS"]
    monkeypatch.delenv("RAY_ADDRESS")
    arguments = ["data=text", f"data.source={source}", "tokenizer=byte", f"data.dir={source.parent / 'out'}"]
    cli.prepare([*arguments, "prepare.engine=ray", f"ray.address={address}"])
    shown = capsys.readouterr().out
    assert "Train on it:" in shown
    assert "ray." not in shown.rpartition("Train on it:")[2]
