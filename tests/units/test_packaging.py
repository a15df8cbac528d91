"""An installed wheel carries every module and every file of the checkout, and finds its settings in any folder."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def test_poisoned_and_unsafe_versions_of_lightning_are_ruled_out():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lightning,) = [word for word in map(Requirement, project["dependencies"]) if word.name == "lightning"]
    assert not any(bad in lightning.specifier for bad in ("2.6.2", "2.6.3", "2.6.5"))
    assert importlib.metadata.version("lightning") in lightning.specifier


def test_no_document_installs_a_strangers_package():
    """`minigpt` on the package index is somebody else's; ours is installed from a checkout or a wheel."""
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    assert name == "minigpt-framework"
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("minigpt/**/*.py"), *ROOT.glob("scripts/*.*")]:
        for line in file.read_text().splitlines():
            assert not re.search(r"pip install[^`]*[\s\"'](minigpt)([\[\s\"'`=<>]|$)", line), f"{file}: {line}"


def test_a_wheel_holds_what_the_checkout_holds_and_finds_it(tmp_path):
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("minigpt", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    for name in ("README.md", "LICENSE"):
        (source / name).write_text((ROOT / name).read_text() if (ROOT / name).exists() else "")
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "absent from the `packages`" not in done.stdout + done.stderr

    (wheel,) = (source / "dist").glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    shutil.rmtree(source)
    places = (
        *((kind, "minigpt", ".") for kind in ("*.py", "*.cpp", "*.js", "*.css", "*.html", "*.md", "*.jinja", "*.tmpl")),
        ("*.json", "minigpt", "."),
        ("*.csv", "minigpt", "."),
        ("*.yaml", "configs", "configs"),
    )
    for kind, top, folder in ((kind, ROOT / top, folder) for kind, top, folder in places):
        wanted = {file.relative_to(top) for file in top.rglob(kind)}
        assert {
            file.relative_to(installed / "minigpt" / folder) for file in (installed / "minigpt" / folder).rglob(kind)
        } == wanted

    facts = next(installed.glob("*.dist-info"))
    assert (facts / "entry_points.txt").read_text().split() == ["[console_scripts]", "minigpt", "=", "minigpt.cli:main"]

    code = "import minigpt; print(minigpt.__file__, minigpt.compose(['experiment=demo']).experiment)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{installed / 'minigpt' / '__init__.py'} demo\n", done.stderr
