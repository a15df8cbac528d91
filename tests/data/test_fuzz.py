"""Whatever bytes a file holds: it ends in a fault that names it, or in the documents that another reader finds."""

import gzip
import hashlib
import json
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
from minigpt.data.sources.corpus import find_corpus
from minigpt.data.sources.survey import survey
from minigpt.faults import UserFault

RECORDS = b'{"text": "one, na\xc3\xafve"}\n\n{"text": "two\\nlines", "id": 7}\r\n{"text": ""}\n'
CONTENTS = st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
FLIPS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=2)


def read(path, *, raw=False, **keys) -> list[bytes] | str:
    """The documents that are not empty, or the fault."""
    try:
        corpus = find_corpus(DataConfig(name="text", source=str(path), **keys), raw=raw)
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


CASES = st.sampled_from(["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=CASES, flips=FLIPS, cut=st.integers(0, 60), data=st.data())
def test_a_damaged_file_in_a_folder_ends_in_a_named_fault_or_in_the_right_shards(tmp_path, name, flips, cut, data):
    records = data.draw(st.lists(st.text(min_size=1, max_size=20), min_size=3, max_size=12))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in records)
    content = lines.encode() if "jsonl" in name else "\n".join(records).encode("utf-8", "replace")
    packed = bytearray(gzip.compress(content) if name.endswith(".gz") else content)
    for place, byte in flips:
        packed[place % len(packed)] = byte
    folder = tmp_path / hashlib.sha256(f"{name}{bytes(packed)}".encode()).hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(packed[: len(packed) - cut % len(packed)])
    (folder / "b.txt").write_text("beside it stands a text that is fine")
    config = DataConfig(name="text", source=str(folder), dir=f"{folder}-data", val_fraction=0.3)
    fault, prepared = "", None
    try:
        prepared = prepare(config, TokenizerConfig(name="byte"), say=lambda line: None)
    except UserFault as error:
        fault = str(error)
    if prepared is None:
        assert str(folder / name) in fault
        return
    wanted = read(folder, raw=True)  # tokenizer=byte takes any bytes
    train, val = (
        b"".join(bytes([token]) if token < 256 else b"\0end\0" for token in split.tokens(0, len(split)).tolist())
        for split in (prepared.train, prepared.val)
    )
    if prepared.summary["split"].startswith("whole documents"):
        assert sorted([*train.split(b"\0end\0"), *val.split(b"\0end\0")]) == sorted(wanted)
    else:
        assert train.replace(b"\0end\0", b"") + val.replace(b"\0end\0", b"") == b"".join(wanted)


def test_latin_1_and_replaced_text_are_rewritten(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 \xff")
    assert read(tmp_path / "a.txt", encoding="latin-1") == ["café ÿ".encode()]
    assert read(tmp_path / "a.txt", errors="replace") == ["caf� �".encode()]
