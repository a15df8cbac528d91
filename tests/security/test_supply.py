"""Nothing is fetched, nothing listens, nothing poisoned is installed; and each promise of SECURITY.md has its test."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.security.stranger import ROOT


def test_training_and_sampling_open_no_connection_and_never_import_wandb(watched):
    """data=stdlib, from the first import to the report, in a process that has no wandb."""
    assert watched.partition("NETWORK\n")[2].partition("SEEN\n")[0].splitlines() == []


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
