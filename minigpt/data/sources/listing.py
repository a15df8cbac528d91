"""A list of how the files of a corpus will be read, shown before anything long begins."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator

from minigpt.data.readers import NAMES
from minigpt.data.readers.document import pattern_of
from minigpt.data.sources.corpus import Corpus
from minigpt.screen import size_text

MARKED_UP = {".json", ".csv", ".tsv", ".html", ".htm", ".xml", ".ipynb"}  # text, but more than that


def listing(corpus: Corpus) -> list[str]:
    """Return lines that say what is left out, and in which format the other files will be read."""
    kinds, suffixes = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for file in corpus.files:
        kinds["tokens" if corpus.holds_tokens else NAMES.get(file.suffix, "text")][
            file.suffix + file.packing or "no suffix"
        ] += 1
        suffixes[file.suffix] += 1
    parts = []
    for kind, ends in kinds.items():
        listed = ", ".join(f"{number:,} {end}" for end, number in ends.most_common(6))
        parts.append(f"{ends.total():,} {kind} ({listed}{', ...' if len(ends) > 6 else ''})")
    count, size = len(corpus.files), size_text(corpus.size)
    lines = [*corpus.notes, f"reading {count:,} file{'s'[: count > 1]}, {size}: {', '.join(parts)}"]
    lines += _ready_splits(corpus)
    if kinds.keys() & NAMES.values() and not corpus.options.chat:
        lines.append(f"the text of a record is its {corpus.options.key!r}; another key or column: data.key=KEY")
    if marked := ", ".join(f"{suffixes[end]:,} {end}" for end in sorted(suffixes.keys() & MARKED_UP)):
        lines.append(f"{marked} read as plain text, marks and all (records are read from .jsonl and .parquet)")
    return lines


def _ready_splits(corpus: Corpus) -> Iterator[str]:
    """Yield how to keep a ready-made split, if the names of the files show one."""
    paths = {file.label: str(file.path) for file in corpus.files if corpus.rule == "content"}
    for word in ("valid", "validation", "val", "dev"):
        named = {label: label.replace("train", word) for label in paths if "train" in label}
        found = {label: other for label, other in named.items() if other in paths}
        if 0 < len(found) <= 3:
            val = shlex.quote(",".join(map(paths.__getitem__, found.values())))
            tests = ",".join(pattern_of(test) for label in found if (test := label.replace("train", "test")) in paths)
            more = f" data.exclude={shlex.quote(tests)}" if tests else ""
            yield f"{val} looks like a split that somebody made. To validate on it: data.val_source={val}{more}"
