"""A record is read once, wherever its file is cut into parts."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minigpt.data.readers import document, read
from minigpt.data.readers.document import File, ReadOptions


@pytest.mark.parametrize("separator", ["\n\n", "aba", "<|endoftext|>"])
@given(
    pieces=st.lists(st.sampled_from(["\n", "a", "b", "é", "<|", "<|endoftext|>"])), places=st.sets(st.integers(1, 60))
)
@example(pieces=["a", "\n", "\n", "\n", "b", "\n", "\n", "a"], places={4})
def test_parts_hold_the_records_of_the_whole(tmp_path_factory, separator, pieces, places):
    path, text = tmp_path_factory.getbasetemp() / "text.txt", "".join(pieces)
    path.write_bytes(text.encode())
    file, options = File(path, path.name, path.stat().st_size), ReadOptions(separator=separator)
    borders = [0, *sorted(place for place in places if place < file.size), None]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(document, "CHUNK_BYTES", 3)
        parts = [read(file, options, *part) for part in itertools.pairwise(borders)]
        records = [b"".join(record.chunks).decode() for part in parts for record in part]
    assert records == [record.strip("\r\n") for record in text.split(separator)]
