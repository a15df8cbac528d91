"""An installed wheel carries every module and every YAML file, and composes from them."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def folders(top: Path, name: str, pattern: str) -> set[str]:
    """Dotted names of all folders with such files, top itself being `name`."""
    return {".".join((name, *file.parent.relative_to(top).parts)) for file in top.rglob(pattern)}


def test_pyproject_lists_every_folder():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    wanted = folders(ROOT / "minigpt", "minigpt", "*.py") | folders(ROOT / "configs", "minigpt.configs", "*.yaml")
    assert set(listed) == wanted, "pyproject.toml, [tool.setuptools] packages: add or remove what differs"


def test_a_wheel_composes_without_the_checkout(tmp_path):
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
    places = (("*.py", "minigpt", "."), ("*.cpp", "minigpt", "."), ("*.yaml", "configs", "configs"))
    for kind, top, there in ((kind, ROOT / top, there) for kind, top, there in places):
        wanted = {file.relative_to(top) for file in top.rglob(kind)}
        assert {
            file.relative_to(installed / "minigpt" / there) for file in (installed / "minigpt" / there).rglob(kind)
        } == wanted

    check = (
        "import minigpt; from minigpt.config.compose import compose; print(minigpt.__file__);"
        "print(compose('train', ['experiment=shakespeare_char']).model.n_embd)"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(installed / "minigpt" / "__init__.py"), "384"], done.stderr
