"""Whatever bytes a file holds: it ends in a fault that names it, or in the documents that another reader finds."""

import gzip
import json
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minigpt.config.schema import DataConfig
from minigpt.data.corpus import find_corpus
from minigpt.data.survey import survey
from minigpt.faults import UserFault

RECORDS = b'{"text": "one, na\xc3\xafve"}\n\n{"text": "two\\nlines", "id": 7}\r\n{"text": ""}\n'
CONTENTS = st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
FLIPS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=2)


def read(path, **keys) -> list[bytes] | str:
    """The documents that are not empty, or the fault."""
    try:
        corpus = find_corpus(DataConfig(name="text", source=str(path), **keys), raw=False)
        survey(corpus)
        return [text for text in (b"".join(each.chunks) for each in corpus.documents()) if text]
    except UserFault as fault:
        return str(fault)


def wanted_of(content: bytes, *, is_json: bool) -> list[bytes] | None:
    """What the standard library finds in it; None where that is no text."""
    try:
        if not is_json:
            return [content.decode().encode()]
        lines = [line.strip() for line in content.split(b"\n")]
        records = [json.loads(line.decode().lstrip("\ufeff") or "null") for line in lines]
        texts = [record["text"] for record in records if record is not None]
        return [text.encode() for text in texts if text.encode()]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=CONTENTS, flips=FLIPS, packed=st.booleans(), is_json=st.booleans(), records=st.booleans())
def test_any_bytes_end_in_a_named_fault_or_in_documents(tmp_path, content, flips, packed, is_json, records):
    content = RECORDS + content if records else content
    path = tmp_path / ("a.jsonl" if is_json else "a.txt")
    if packed:
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content)
    whole = bytearray(content)
    for place, byte in flips:
        if whole:
            whole[place % len(whole)] = byte
    path.write_bytes(whole)
    got = read(path)
    try:
        wanted = wanted_of(gzip.decompress(whole) if packed else bytes(whole), is_json=is_json)
    except (OSError, EOFError, ValueError, zlib.error):
        wanted = None
    if isinstance(got, str):
        assert str(path) in got
        assert wanted is None or not b"".join(wanted).strip() or "wanted text" in got
    else:
        assert got == wanted


def test_latin_1_and_replaced_text_are_rewritten(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 \xff")
    assert read(tmp_path / "a.txt", encoding="latin-1") == ["café ÿ".encode()]
    assert read(tmp_path / "a.txt", errors="replace") == ["caf� �".encode()]
