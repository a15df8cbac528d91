"""Nothing is fetched, nothing listens, nothing poisoned is installed; and each promise of SECURITY.md has its test."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.security.stranger import ROOT, TINY

NETWORK = r"""
import os, sys
seen = []


def hook(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")) and event != "socket.gethostname":
        seen.append(f"{event} {arguments!r}"[:200])


class NoWandb:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "wandb":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.addaudithook(hook)
sys.meta_path.insert(0, NoWandb())
from minigpt.loading import loading
with loading():
    import minigpt.data.sources.corpus
    from minigpt.config.compose import compose
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.command import sample
    from minigpt.training.run import train

minigpt.data.sources.corpus._STDLIB = ["json", "wave", "email"]
assert train(compose("train", [each for each in sys.argv[1:] if each != "data=text"])) == 0
assert sample(SampleConfig(checkpoint="run", prompt=["import"], max_new_tokens=9, device="cpu")) == 0
assert not [name for name in sys.modules if name.partition(".")[0] == "wandb"]
print("\n".join(["SEEN", *seen]))
"""


def test_training_and_sampling_open_no_connection_and_never_import_wandb(tmp_path):
    """data=stdlib, from the first import to the report, in a process that has no wandb."""
    done = subprocess.run(
        [sys.executable, "-c", NETWORK, *TINY, "run.dir=run", "validate.every_steps=0"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("SEEN\n")[2].splitlines() == []


@pytest.mark.parametrize("bad", ["2.6.2", "2.6.3", "2.6.5"])
def test_poisoned_and_unsafe_versions_of_lightning_are_ruled_out(bad):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lightning,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "lightning"]
    assert bad not in lightning.specifier
    assert f"lightning=={bad}" not in (ROOT / "constraints.txt").read_text()
    assert importlib.metadata.version("lightning") in lightning.specifier


def test_every_promise_has_its_test():
    """The names that SECURITY.md gives exist."""
    text = (ROOT / "SECURITY.md").read_text()
    names = set(re.findall(r"`(test_\w+)`", text))
    assert len(names) > 15
    defined = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert names - defined - {file.stem for file in (ROOT / "tests").rglob("test_*.py")} == set()
