"""Cuts: they don't depend on how the text is delivered, and they don't change its tokens."""

from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.tokenizers.bpe import MARKED, PATTERN
from minigpt.data.tokenizers.scheme import BLANK_BORDER, GPT2_BORDER, runs
from tests.conftest import LETTERS

TEXT = st.text(st.sampled_from("ab'st  \n\n\r\t.!12éж\u0947中\u00a0\u2003\u3000\u0085\x1f🙂"), max_size=120)


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(data=st.one_of(st.binary(max_size=200), TEXT.map(str.encode)), places=st.lists(st.integers(0, 200), max_size=8))
def test_runs_do_not_depend_on_the_chunks(data, places):
    whole = list(runs([data], limit=16))
    assert list(runs(cut_at(data, places), limit=16)) == whole
    assert b"".join(whole) == data
    assert all(0 < len(run) <= 16 for run in whole)


@pytest.mark.parametrize(
    ("pattern", "border", "blanks"), [(PATTERN, GPT2_BORDER, " \n\r\t"), (MARKED, BLANK_BORDER, " \t")]
)
@given(text=TEXT)
@settings(max_examples=100)
def test_pieces_of_the_runs_are_the_pieces_of_the_text(pattern, border, blanks, text):
    """The pattern finds the same pieces; only a run without any border (here: over 24 bytes) may differ."""
    parts = [run.decode() for run in runs([text.encode()], 24, border)]
    if all(not before or _is_border(before, after, blanks) for before, after in zip(["", *parts], parts, strict=False)):
        pieces = [piece for part in parts for piece in regex.findall(pattern, part)]
        assert pieces == regex.findall(pattern, text)


@given(text=st.text(LETTERS, max_size=60))
def test_forced_cuts_do_not_split_a_character(text):
    for run in runs([text.encode()], limit=5):
        run.decode()


def _is_border(before: str, after: str, blanks: str) -> bool:
    return after[0] in blanks and not regex.match(r"\s", before[-1])
