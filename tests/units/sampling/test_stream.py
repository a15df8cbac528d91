"""Streaming: whatever the division into tokens, the pieces joined are the text of all bytes up to the stop string."""

from hypothesis import example, given
from hypothesis import strategies as st

from minigpt.sampling.stream import TextStream


def stream(pieces, stop=()):
    """The text pieces that come out."""
    writer = TextStream(stop)
    return [writer.feed(piece) for piece in pieces if not writer.stopped] + [writer.finish()]


def slow_cut(data, stops):
    """Byte by byte: stop as soon as what was read ends with a stop string."""
    for end in range(len(data) + 1):
        endings = [len(stop) for stop in stops if data[:end].endswith(stop)]
        if endings:
            return data[: end - max(endings)]
    return data


alphabet = st.sampled_from(["a", "b", "ab", "é", "€", "😀", "\n"])
any_bytes = st.one_of(
    st.binary(max_size=12),
    st.lists(alphabet, max_size=12).map(lambda letters: "".join(letters).encode()),
    st.lists(st.sampled_from([b"a", b"b", b"\xf0\x9f", b"\x98", b"\x80", b"\xc3"]), max_size=12).map(b"".join),
)
stops = st.lists(st.lists(alphabet, min_size=1, max_size=4).map("".join), max_size=3)


@given(st.lists(any_bytes, max_size=8), stops)
@example([b"abc", b"d"], ["abcd", "bc"])
@example([b"a", b"ab"], ["aab", "ab"])
def test_pieces_joined_are_the_whole_text_up_to_the_stop(pieces, stop):
    data = b"".join(pieces)
    expected = slow_cut(data, [text.encode() for text in stop]).decode(errors="replace")
    assert "".join(stream(pieces, stop)) == expected
    assert "".join(stream([bytes([byte]) for byte in data], stop)) == expected


def test_half_a_character_waits():
    assert stream([b"a\xe2", b"\x82", b"\xac", b"b"]) == ["a", "", "€", "b", ""]


def test_a_stop_string_over_several_tokens_is_never_shown():
    writer = TextStream(["\nUser:"])
    assert [writer.feed(piece) for piece in (b"Hi\n", b"Us", b"e", b"r: ho")] == ["Hi", "", "", ""]
    assert writer.stopped
    assert writer.finish() == ""
    assert writer.text == "Hi"


def test_text_is_shown_as_soon_as_it_is_certain():
    assert stream([b"a", b"b", b"a", b"c"], ["abab"]) == ["", "", "", "abac", ""]
    assert stream([b"a", b"b", b"a", b"a"], ["abab"]) == ["", "", "", "aba", "a"]
