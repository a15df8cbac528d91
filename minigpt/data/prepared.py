"""Prepared tokens: finding them again, opening them, and the lock on their folder."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.config.schema import CONVERSATIONS
from minigpt.data.chat.packing import ConversationSplit, Split
from minigpt.data.measures.overlap import overlap, overlap_lines
from minigpt.data.shards import fingerprint, mix_splits, open_split
from minigpt.data.sources.find import typed_path
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import UserFault
from minigpt.files import lock_or_wait, read_json, write_json
from minigpt.screen import number_of, tell

FORMAT = "minigpt-prepared-2"


class DamagedShards(UserFault):
    """Prepared tokens have changed, or lost a file, since they were written."""


@dataclass(frozen=True)
class Prepared:
    """Tokens ready for training."""

    folder: Path
    tokenizer: Tokenizer
    train: Split
    val: Split
    fingerprint: str  # SHA-256 (hex) of the tokenizer and of all tokens
    summary: dict[str, Any]  # what was read and made, as JSON
    parts: "dict[str, Prepared]" = field(default_factory=dict)  # the sources of a mixture, by their names

    @property
    def facts(self) -> dict[str, Any]:
        """The entries of a run's data.json, by which `open_prepared` finds its tokens."""
        facts: dict[str, Any] = {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer.hash}
        if self.parts:
            prints = {name: part.fingerprint for name, part in self.parts.items()}
            facts["mix"] = {name: {"fingerprint": prints[name], "share": self.train.shares[name]} for name in prints}
        return facts


def open_prepared(data_dir: str, facts: Mapping[str, Any], named: Iterable[str] = ()) -> Prepared | None:
    """Return the tokens that these facts of a run describe, if they were prepared before. No text is read.

    Args:
        data_dir: where they are looked for.
        facts: of the run (see `Prepared.facts`).
        named: the sources of the run's mixture; some may be prepared folders outside data_dir.

    Raises:
        DamagedShards: a file was changed or lost since they were prepared.
    """
    if mix := facts.get("mix"):
        opened = {name: open_prepared(data_dir, part, named) for name, part in mix.items()}
        parts = {name: part for name, part in opened.items() if part is not None}
        shares = {name: part["share"] for name, part in mix.items()}
        return mixed(parts, shares, data_dir) if len(parts) == len(mix) else None
    folders = (path.parent for path in sorted(typed_path(data_dir).glob("*/prepared.json")))
    for folder in [*map(typed_path, named), *folders]:
        if read_prepared(folder).get("fingerprint") == str(facts.get("fingerprint")):
            return open_folder(folder)
    return None


def open_folder(folder: Path) -> Prepared:
    """Open a folder that holds a prepared.json.

    Raises:
        DamagedShards: a file was changed or lost since it was prepared.
    """
    path, content = folder / "tokenizer.json", read_prepared(folder)
    try:
        tokenizer = load_tokenizer(read_json(path), path)
        splits = [open_split(folder, name, tokenizer) for name in ("train", "val")]
    except UserFault as fault:
        raise DamagedShards(f"{fault}. Make {folder} again: minigpt prepare with the same settings") from None
    is_chat, summary = content["keys"]["corpus"] in CONVERSATIONS, content["summary"]
    train, val = (ConversationSplit(split) if is_chat else split for split in splits)
    return Prepared(folder, tokenizer, train, val, fingerprint([split.fingerprint for split in splits]), summary)


def read_prepared(folder: Path) -> dict[str, Any]:
    """Return what a folder's prepared.json holds; {} if the folder is unfinished, or of another version."""
    with contextlib.suppress(UserFault):
        content: dict[str, Any] = read_json(folder / "prepared.json")
        return content if content.get("format") == FORMAT else {}
    return {}


def mixed(parts: dict[str, Prepared], shares: dict[str, float], data_dir: str) -> Prepared:
    """Return the sources of a mixture as one; their overlap is kept in data_dir."""
    train, val = (
        mix_splits({name: getattr(part, split) for name, part in parts.items()}, shares) for split in ("train", "val")
    )
    whole = fingerprint([train.fingerprint, val.fingerprint, *map(str, train.quotas)])
    path = typed_path(data_dir) / f"mix-{fingerprint([train.fingerprint, val.fingerprint])[:10]}.json"
    summary = {"overlap": read_json(path) if path.is_file() else overlap(train, val)}
    if not path.is_file():
        with contextlib.suppress(OSError):  # it is measured again
            write_json(path, summary["overlap"])
    return Prepared(next(iter(parts.values())).folder.parent, train.tokenizer, train, val, whole, summary, parts)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, and remove the temporary files of killed ones; a lock ends with its process."""
    with open(folder / ".lock", "a+b") as file:
        waiting = f"data: another process is preparing {folder}; waiting for it"
        held = lock_or_wait(file, lambda: tell(waiting))  # on file systems without locks, all write the same bytes
        for left_over in folder.rglob("*.tmp") if held else ():
            left_over.unlink(missing_ok=True)
        yield


def describe(prepared: Prepared) -> list[str]:
    """Return the summary as the lines that `minigpt prepare` prints."""
    if prepared.parts:
        lines = []
        for name, part in prepared.parts.items():
            share = f"mix        {prepared.train.shares[name]:.2%} of the training windows are of {name}"
            lines += [share, *describe(part), ""]
        return lines + [f"overlap    {line}" for line in overlap_lines(prepared.summary)]
    summary = prepared.summary
    python = f", Python {summary['python']}" if summary.get("python") else ""
    train, val = summary["train"], summary["val"]
    return [
        f"corpus     {summary['corpus']}{python}: {number_of(summary['documents'], 'document')}, "
        f"{summary['bytes']:,} bytes, {summary['characters']:,} characters",
        f"tokenizer  {summary['tokenizer']}, {summary['vocab_size']:,} tokens, SHA-256 {prepared.tokenizer.hash[:12]}",
        f"train      {train['tokens']:,} tokens of {train['bytes']:,} bytes "
        f"({train['bytes'] / train['tokens']:.2f} bytes per token)",
        f"validation {val['tokens']:,} tokens of {val['bytes']:,} bytes: {summary['split']}",
        *(f"overlap    {line}" for line in overlap_lines(summary)),
        *(f"note       {note}" for note in summary["notes"]),
        f"tokens     SHA-256 {prepared.fingerprint}",
        f"kept in    {prepared.folder}",
    ]
