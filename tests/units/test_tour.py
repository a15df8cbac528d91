"""docs/ATTENTION.md says what the code says: numbers, excerpts, pictures, links."""

import re
from pathlib import Path

from docs import tour

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "ATTENTION.md").read_text()


def test_every_number_of_the_tour_is_what_the_code_gives_and_a_wrong_one_would_be_found():
    assert PAGE.count(">>> ") > 80
    wrong = PAGE.replace("tensor([0.1794, 1.8951])", "tensor([0.1794, 1.8961])")
    assert tour.write_numbers(wrong) == PAGE  # which replaces the numbers that differ, and no others


def test_every_excerpt_still_stands_in_the_source():
    assert len(tour.excerpts(PAGE)) == len(re.findall(r"^```python$", PAGE, flags=re.MULTILINE)) > 10
    assert tour.stale_excerpts(PAGE) == []
    assert tour.stale_excerpts(PAGE.replace(".tril(S - T)", ".tril(T - S)"))


def test_the_lines_can_be_typed_as_they_stand():
    assert re.search(r"^\.\.\.\s*$", PAGE, flags=re.MULTILINE) is None  # an empty line ends what is being typed


def test_every_picture_is_there_small_and_shown():
    shown = set(re.findall(r"!\[.*?\]\((pictures/\S+\.png)\)", PAGE))
    kept = {f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()}
    assert shown == kept
    assert len(shown) >= 9
    assert all((DOCS / picture).stat().st_size < 150_000 for picture in shown)


def test_every_link_inside_the_page_has_its_section():
    titles = re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(r"\]\(#(\S+)\)", PAGE)
    assert len(links) > 15
    assert set(links) <= anchors


def test_what_the_machine_fills_in_is_filled_in():
    for name in ("heads", "reversed"):
        assert re.search(rf"<!-- {name} -->\n.+<!-- end -->", PAGE, flags=re.DOTALL)
    assert float(re.search(r"\*\*([\d.]+) %\*\* of 5,000", PAGE)[1]) >= 99
