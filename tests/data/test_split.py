"""The split is where it is said to be."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minigpt.data.sources.survey import survey

from minigpt.config.schema import DataConfig
from minigpt.data.readers import document
from minigpt.data.sources.corpus import Corpus, find_corpus
from minigpt.data.sources.split import describe_split, split
from minigpt.faults import UserFault


def open_text(folder, files: dict[str, bytes], *, raw=False, rule="tail") -> Corpus:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return replace(find_corpus(DataConfig(name="text", source=str(folder)), raw=raw), rule=rule)


def sides(corpus: Corpus, fraction: float) -> dict[str, bytes]:
    text = defaultdict(bytes)
    for name, chunks in split(survey(corpus, val_fraction=fraction), fraction):
        text[name] += b"".join(chunks)
    return text


def labels(corpus: Corpus, fraction: float) -> dict[str, set[str]]:
    names = [each.label for each in corpus.documents()]
    found = defaultdict(set)
    for label, (name, _) in zip(
        names, split(survey(corpus, val_fraction=fraction), fraction), strict=True
    ):  # whole documents
        found[name].add(label)
    return found


@given(text=st.text(st.sampled_from("aé中🙂\n"), min_size=2, max_size=60), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_split_is_by_characters_as_python_counts_them(text, data, tmp_path_factory):
    cuts = sorted(data.draw(st.lists(st.integers(1, len(text) - 1), max_size=3, unique=True)))
    files = {str(i): text[a:b].encode() for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(text)], strict=True))}
    fraction = data.draw(st.sampled_from([0.1, 0.25, 0.5, 0.9]))
    border = int(len(text) * (1 - fraction))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "CHUNK_BYTES", 3)
        corpus = open_text(tmp_path_factory.mktemp("text"), files)
        if not text.strip():
            return
        if not 0 < border < len(text):
            with pytest.raises(UserFault, match="split has no text"):
                sides(corpus, fraction)
            return
        assert sides(corpus, fraction) == {"train": text[:border].encode(), "val": text[border:].encode()}


def test_bytes_that_are_no_utf8_are_split_by_bytes(tmp_path):
    corpus = open_text(tmp_path, {"a": b"\x80" * 37 + b"abc"}, raw=True)
    assert {name: len(text) for name, text in sides(corpus, 0.1).items()} == {"train": 36, "val": 4}


def test_tiny_shakespeares_numbers():
    assert int(1_115_394 * (1 - 0.1)) == 1_003_854


@pytest.mark.parametrize(
    ("fraction", "sentence"), [(1e-20, r"val split has no text.*larger"), (0.99, r"train split has no text.*smaller")]
)
def test_an_empty_side_is_refused(tmp_path, fraction, sentence):
    with pytest.raises(UserFault, match=sentence):
        sides(open_text(tmp_path, {"a": b"x" * 50}), fraction)


def test_stdlib_is_split_by_whole_files_and_only_by_their_paths():
    corpus = find_corpus(DataConfig())
    text = sides(corpus, 0.1)
    assert 0.05 < len(text["val"]) / (len(text["train"]) + len(text["val"])) < 0.15
    found = labels(corpus, 0.1)
    assert found["train"] | found["val"] == {file.label for file in corpus.files}
    assert not found["train"] & found["val"]
    assert {"http/client.py", "configparser.py"} <= found["val"]
    fewer = replace(corpus, files=corpus.files[::3])
    assert labels(fewer, 0.1)["val"] == found["val"] & {file.label for file in fewer.files}


def test_the_rules_are_described():
    assert describe_split("tail", 0.1) == "the last 0.1 of the characters for validation"
    assert "hash of their path" in describe_split("label", 0.1)
