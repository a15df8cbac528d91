"""Each promise of docs/RELIABILITY.md has a file in tests/promises/, and each file there is a promise of that table."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = re.findall(r"^\| (.+?) \| `?(tests/promises/\w+\.py)`? \|$", (ROOT / "docs/RELIABILITY.md").read_text(), re.M)
FILES = sorted((ROOT / "tests" / "promises").glob("test_*.py"))


def test_the_table_and_the_files_name_each_other():
    assert sorted(file for _, file in TABLE) == [str(file.relative_to(ROOT)) for file in FILES]


def test_a_promise_is_stated_first_and_stays_short():
    for file in FILES:
        text = file.read_text()
        assert ast.get_docstring(ast.parse(text)), f"{file.name}: its first line states the promise"
        assert len(text.splitlines()) <= 250, f"{file.name} is too long: the full matrix is for make soak"


def test_every_promise_of_security_md_has_its_test():
    names = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/SECURITY.md").read_text()))
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert len(names) > 10
    assert names - set(re.findall(r"def (test_\w+)", tests)) == set()


def test_the_makefile_runs_tests_that_exist():
    names = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert [name for name in names if not (ROOT / name).exists()] == []
