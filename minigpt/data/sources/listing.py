"""A list of how the files of a corpus will be read, shown before anything long begins."""

from collections import Counter, defaultdict

from minigpt.data.readers import NAMES
from minigpt.data.sources.corpus import Corpus
from minigpt.screen import size_text

MARKED_UP = {".json", ".csv", ".tsv", ".html", ".htm", ".xml", ".ipynb"}  # text, but more than that


def listing(corpus: Corpus) -> list[str]:
    """Return lines that say what is left out, and in which format the other files will be read."""
    kinds, suffixes = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for file in corpus.files:
        kind = "tokens" if corpus.holds_tokens else NAMES.get(file.suffix, "text")
        kinds[kind][file.suffix + file.packing or "no suffix"] += 1
        suffixes[file.suffix] += 1
    parts = []
    for kind, ends in kinds.items():
        listed = ", ".join(f"{number:,} {end}" for end, number in ends.most_common(6))
        parts.append(f"{ends.total():,} {kind} ({listed}{', ...' if len(ends) > 6 else ''})")
    count = len(corpus.files)
    lines = [*corpus.notes, f"reading {count:,} file{'s'[: count > 1]}, {size_text(corpus.size)}: {', '.join(parts)}"]
    if corpus.rule == "names":
        val = sum(file.is_val for file in corpus.files)
        lines.append(
            f"by their names, {val:,} of the files are the validation text; data.val_source=FILE names another"
        )
    if kinds.keys() & NAMES.values() and not corpus.options.chat:
        lines.append(f"the text of a record is its {corpus.options.key!r}; another key or column: data.key=KEY")
    if marked := ", ".join(f"{suffixes[end]:,} {end}" for end in sorted(suffixes.keys() & MARKED_UP)):
        lines.append(f"{marked} read as plain text, marks and all (records are read from .jsonl and .parquet)")
    return lines
