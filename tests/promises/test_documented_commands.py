"""Every `minigpt` command in README.md and docs/ is one that minigpt takes: its settings exist and fit together."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from minigpt import cli
from minigpt.config.command_line import split_lists
from minigpt.config.compose import compose
from minigpt.config.schema import RETIRED
from minigpt.faults import UserFault

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
OF_THIS_PLACE = re.compile(
    r"does not exist|is not a file|needs your |is missing: |nothing to score|in an existing folder|so clients must"
)


def commands(page: Path) -> list[str]:
    """The commands of a page: lines of its blocks, and what stands in `...` in its sentences."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?: {4}|> )\s*(.*)$", text, re.M) + re.findall(r"`([^`\n]*)`", text)
    lines += [line for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    start = r"^(?:[\w./]*/)?minigpt .*|-m minigpt .*|^python scripts/(?:train|sample|sweep|prepare_data)\.py.*"
    matches = [re.search(start, line.strip()) for line in lines]
    return [match[0].strip() for match in matches if match]


def words_of(command: str) -> list[str]:
    """The words after `minigpt`, without a comment at the end."""
    words = shlex.split(re.split(r" && | & | \| | > ", command)[0], comments=True)
    start = next(place for place, word in enumerate(words) if re.search(r"minigpt$|scripts/\w+\.py$", word))
    if words[start].endswith(".py"):
        name = Path(words[start]).stem.replace("_", "-")
        return [{"prepare-data": "prepare"}.get(name, name), *words[start + 1 :]]
    return words[start + 1 :]


CASES = sorted({command: page.name for page in PAGES for command in commands(page)}.items())  # each once


def test_there_are_commands_in_the_pages_and_the_readme_is_short():
    lines = PAGES[0].read_text().splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 100
    assert len(CASES) > 100
    assert {"DATA.md", "SWEEPS.md", "SERVING.md"} <= {page for _, page in CASES}
    assert {*commands(ROOT / "README.md")} <= dict(CASES).keys()


@pytest.mark.parametrize(("command", "page"), CASES)
def test_a_documented_command_composes(command, page, folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if every extra were installed
    name, *words = words_of(command)
    if name.isupper() or name.startswith("-"):  # COMMAND, --help
        return
    assert name in cli.COMMANDS, f"{page}: {command}"
    partly = "..." in words
    words = [word.partition("|")[0] for word in words if word != "..." and not word.startswith("[")]
    name = "train" if name == "demo" else name
    shared, lists = split_lists(words)
    points = itertools.product(*([f"{key}={text}" for text in texts] for key, texts in lists.items()))
    for job in [[*shared, *point] for point in points] if "-m" in words else [words]:
        if {"--help", "-h", "--cfg"} & {*job}:
            continue
        try:
            compose(name, job)
        except UserFault as fault:
            unknown = [sentence for sentence in fault.faults if not OF_THIS_PLACE.search(sentence)]
            wrong = [sentence for sentence in unknown if not partly or "No setting" in sentence]
            assert wrong == [], f"{page}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_what_is_retired(page):
    text = "\n".join(line for line in page.read_text().splitlines() if "benchmarks/peers.py" not in line)
    named = [key for key in RETIRED if re.search(rf"(?<![\w.]){re.escape(key)}(=|`)", text)]
    assert named == []
