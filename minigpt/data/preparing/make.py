"""Make prepared tokens: tokenizer, shards, sidecars and summary of one corpus, in one folder.

A killed process leaves plan.json, tokenizer.json and finished shards behind; the next one makes the missing shards.
"""

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.config.schema import WorkConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.measures.overlap import measure, measured_lines
from minigpt.data.prepared import FORMAT
from minigpt.data.preparing.encode import UNITS, EncodeJob, encode_unit
from minigpt.data.preparing.engines import Map, workers
from minigpt.data.preparing.in_place import link_tokens
from minigpt.data.preparing.scan import Scan, ScanJob, scan_unit
from minigpt.data.preparing.units import Unit, units_of
from minigpt.data.shards import HEADER_BYTES, fingerprint, write_sidecar
from minigpt.data.sources.corpus import Corpus
from minigpt.data.sources.find import local_file
from minigpt.data.sources.split import HASHES, describe_split, fair_border, offset, small_split
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer, scheme_of
from minigpt.data.tokenizers.scheme import runs
from minigpt.faults import UserFault
from minigpt.files import read_json, write_json
from minigpt.ranks.cores import usable_cores
from minigpt.screen import Progress, Say, size_text

PLAN = "plan.json"
LEARN_BYTES = 1 << 27  # a BPE vocabulary is learned from about so much of the training text at most: a minute or less
UNPACKED = 4  # bytes of text that a packed byte may stand for, as an estimate
CHANGED = "was changed while it was read; wait until it is complete and run this again"
MAX_NAMED = 20  # files that can't be read


@dataclass(frozen=True)
class Plan:
    """How a text is split, found by reading all of it.

    Attributes:
        rule: of the split (minigpt/data/sources/split.py).
        border: hash below which documents are for validation; tail: the first character for validation.
        is_text: tail: whether characters are counted; else bytes.
        units: for each unit, where it begins (in characters or bytes), and the splits that it has text for.
        counts: of the whole text.
        notes: what a user may not expect in it.
    """

    rule: str
    border: float
    is_text: bool
    units: list[tuple[int, list[str]]]
    counts: dict[str, int]
    notes: list[str]


def make(
    folder: Path, keys: dict[str, Any], corpus: Corpus, given: Tokenizer | None, *, work: WorkConfig, say: Say
) -> None:
    """Write everything that a folder of prepared tokens holds, prepared.json last.

    Args:
        folder: an existing folder, locked by this process.
        keys: what decides the tokens besides the text, as prepared.json keeps it.
        corpus: the text, or tokens.
        given: the tokenizer; None: it is learned.
        work: who encodes.
        say: takes lines for the user.

    Raises:
        UserFault: files can't be read, a split would be empty, or the source is changed meanwhile.
        OSError: a file can't be written.
    """
    if corpus.holds_tokens:
        tokenizer, sidecars, counts = link_tokens(folder, corpus, keys["tokenizer"], given, say)
        rule, notes = "source" if keys["val_source"] else "tokens", list[str]()
    else:
        tokenizer, plan, sidecars = _encode(folder, keys, corpus, given, work, say)
        rule, counts, notes = plan.rule, Counter(plan.counts), plan.notes
    for file in corpus.files:
        if (
            not file.address
            and (now := local_file(file.path, file.label))
            and (now.size, now.stamp) != (file.size, file.stamp)
        ):
            raise UserFault(f"{file} {CHANGED}")
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    summary = {key: keys[key] for key in ("corpus", "source", "python")} | {
        **{key: counts.get(key, 0) for key in ("documents", "bytes", "characters")},
        "split": describe_split(rule, keys["val_fraction"], keys["val_source"]),
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "notes": [*corpus.notes, *notes, *_notes_on_tokens(tokenizer, keys, sidecars["train"]["tokens"])],
        **{name: {key: sidecar[key] for key in ("tokens", "bytes")} for name, sidecar in sidecars.items()},
    }
    for name, facts in measure(folder, tokenizer).items():
        summary[name] = summary.get(name, {}) | facts
    content = {
        "format": FORMAT,
        "keys": keys,
        "signature": corpus.signature,
        "fingerprint": fingerprint([sidecar["fingerprint"] for sidecar in sidecars.values()]),
        "summary": summary,
    }
    write_json(folder / "prepared.json", content)
    (folder / PLAN).unlink(missing_ok=True)
    shutil.rmtree(folder / UNITS, ignore_errors=True)
    for name, line in measured_lines(summary):
        say(f"data: {name}: {line}")


def _encode(
    folder: Path, keys: dict[str, Any], corpus: Corpus, given: Tokenizer | None, work: WorkConfig, say: Say
) -> tuple[Tokenizer, Plan, dict[str, dict[str, Any]]]:
    """Read the text twice: to plan (and learn) and to encode. Return the tokenizer, the plan and the sidecars."""
    units = units_of(corpus, runs if given is None else given.runs)
    count = min(work.workers or usable_cores(), len(units))
    with workers(work.engine, count) as each:
        known = _known_plan(folder, len(units))
        if known is None:
            known = _plan(folder, keys, corpus, units, given, each, say)
            (folder / UNITS).mkdir(exist_ok=True)
            write_json(folder / "tokenizer.json", known[0].to_json())
            write_json(folder / PLAN, asdict(known[1]))
        tokenizer, plan = known
        jobs, shards = list[EncodeJob](), {"train": 0, "val": 0}
        for unit, (start, names) in zip(units, plan.units, strict=True):
            border = max(0, plan.border - start) if plan.rule == "tail" else plan.border
            begun = tuple(name for name, number in shards.items() if number)
            mine = {name: shards[name] for name in names}
            jobs.append(EncodeJob(unit, folder, plan.rule, border, plan.is_text, mine, begun))
            shards |= {name: number + 1 for name, number in mine.items()}
        progress = Progress(f"data: encoding with tokenizer={tokenizer.name}", corpus.size, say)
        records: list[dict[str, dict[str, Any]]] = [{} for _ in units]
        for number, record in each(encode_unit, jobs):
            records[number] = record
            progress(units[number].size)
    sidecars = {}
    for name in ("train", "val"):
        entries = [record[name] for record in records if name in record]
        facts = {key: sum(entry[key] for entry in entries) for key in ("tokens", "bytes")}
        if facts["tokens"] < 2:
            got = f"{facts['tokens']} token" if facts["tokens"] else "no text"
            raise small_split(name, got, keys["val_fraction"])
        facts |= {
            "dtype": np.dtype(tokenizer.dtype).name,
            "max_token": max(entry["max_token"] for entry in entries),
            "shard_tokens": max(entry["tokens"] for entry in entries),
            "header_bytes": HEADER_BYTES,
            "shards": [{key: entry[key] for key in ("file", "tokens", "sha256")} for entry in entries],
        }
        sidecars[name] = write_sidecar(folder, name, tokenizer, facts)
    if sum(sidecar["bytes"] for sidecar in sidecars.values()) != plan.counts["bytes"]:
        raise UserFault(f"the source {CHANGED}")
    return tokenizer, plan, sidecars


def _known_plan(folder: Path, n_units: int) -> tuple[Tokenizer, Plan] | None:
    """Return the tokenizer and the plan of a process that was killed, if it had them."""
    with contextlib.suppress(UserFault, LookupError, TypeError):
        plan = Plan(**read_json(folder / PLAN))
        return (load_tokenizer(read_json(folder / "tokenizer.json")), plan) if len(plan.units) == n_units else None
    return None


def _plan(
    folder: Path, keys: dict[str, Any], corpus: Corpus, units: list[Unit], given: Tokenizer | None, each: Map, say: Say
) -> tuple[Tokenizer, Plan]:
    """Read the text for the first time. Return the tokenizer, learned if none is given, and the plan."""
    scheme, fraction = scheme_of(keys["tokenizer"]), keys["val_fraction"]
    learns = given is None and scheme.min_vocab_size > 0
    text_bytes = sum(
        file.size * (UNPACKED if file.packing or file.suffix == ".parquet" else 1) for file in corpus.files
    )
    sampled = min(1.0, LEARN_BYTES / max(1, text_bytes)) if learns else 0.0
    jobs = [ScanJob(unit, corpus.rule, fraction, given is None and scheme.needs_alphabet, sampled) for unit in units]
    progress = Progress("data: reading", corpus.size, say)
    scans = [Scan() for _ in units]
    for number, scan in each(scan_unit, jobs):
        scans[number] = scan
        progress(units[number].size)
    total = Scan()
    for scan in scans:
        total.add(scan)
    _refuse_bad_text(corpus, total)
    plan = _plan_of(corpus, fraction, total, scans)
    for line in plan.notes:
        say(f"data: {line}")
    tokenizer = given
    if tokenizer is None:
        if learns:
            size = sum(len(block.text) for scan in scans for block in scan.sample)
            part = "up to" if sampled >= 1 else "a random part,"
            say(f"data: learning {keys['vocab_size']:,} tokens from {part} {size_text(size)} of the training text")
        train = ([text] for text in _training_text(plan, scans))
        vocab_size = keys["vocab_size"] or 0
        tokenizer = build_tokenizer(keys["tokenizer"], vocab_size=vocab_size, alphabet=total.alphabet, train=train)
        if sampled and sampled < 1:
            plan.notes.append(f"the vocabulary is learned from a random {size_text(LEARN_BYTES)} of the training text")
    return (with_roles(tokenizer) if corpus.options.chat else tokenizer), plan


def _refuse_bad_text(corpus: Corpus, total: Scan) -> None:
    if total.bad:
        more = [f"{len(total.bad) - MAX_NAMED:,} more files can't be read"] if len(total.bad) > MAX_NAMED else []
        raise UserFault(*total.bad[:MAX_NAMED], *more)
    if not total.counts["visible"]:
        if corpus.options.chat:
            raise UserFault(f"no conversation of {corpus.files[0]} has an answer to learn. Use others")
        where = ", ".join(str(file) for file in corpus.files[:3])
        size = total.counts["bytes"]
        raise UserFault(f"the text is nothing but white space ({size:,} bytes in {where}); wanted some text")


def _plan_of(corpus: Corpus, fraction: float, total: Scan, scans: list[Scan]) -> Plan:
    """Decide how a text is split."""
    rule, counts, chat = corpus.rule, total.counts, corpus.options.chat
    notes = _notes_on_text(corpus, total)
    border: float | None = 1.0 if rule in ("source", "names") else fraction * HASHES
    if rule == "content":
        border = fair_border(total.buckets, counts["val_bytes"], fraction, is_always_whole=chat)
        if border is None:
            if chat:
                raise small_split("val", "no text", fraction)
            rule = "tail"
            notes.append(
                f"split by whole documents, validation has {counts['val_bytes']:,} of {counts['bytes']:,} bytes: the "
                "text is cut near its end instead; data.val_source=FILE chooses what to validate on"
            )
    # UTF-8 has at least one character per four bytes; a text with fewer is no UTF-8, and its bytes are counted.
    is_text = 4 * counts["characters"] >= counts["bytes"]
    unit = "characters" if is_text else "bytes"
    if rule == "tail":
        border = int(counts[unit] * (1 - fraction))
        if not 0 < border < counts[unit]:
            raise small_split("val" if border else "train", "no text", fraction)
    units, start = list[tuple[int, list[str]]](), 0
    assert border is not None
    for scan in scans:
        end = start + scan.counts[unit]
        if rule == "tail":
            has = {"train": start < border, "val": end > border}
        else:
            has = {"train": scan.highest >= border, "val": scan.lowest < border}
        units.append((start, [name for name, holds in has.items() if holds and scan.counts["bytes"]]))
        start = end
    return Plan(rule, border, is_text, units, {**counts}, notes)


def _training_text(plan: Plan, scans: list[Scan]) -> Iterator[bytes]:
    """Yield what the readings kept of the training text."""
    for (start, _), scan in zip(plan.units, scans, strict=True):
        for block in scan.sample:
            if plan.rule != "tail":
                if block.hash >= plan.border:
                    yield block.text
                continue
            left = int(plan.border) - start - (block.characters if plan.is_text else block.bytes)
            if left > 0:
                yield block.text[: offset(block.text, left, is_text=plan.is_text)]


def _notes_on_text(corpus: Corpus, total: Scan) -> list[str]:
    """Return sentences about what a user may not expect in the text."""
    options, counts, chat = corpus.options, total.counts, corpus.options.chat
    notes = {
        f"the text is rewritten from {options.encoding} to UTF-8": options.encoding != "utf-8",
        f"{counts['not_utf8']:,} documents are not UTF-8 and taken as bytes, {total.first.get('not_utf8')} first": (
            counts["not_utf8"] and not chat
        ),
        f"{counts['replaced']:,} characters U+FFFD; bytes that are no text became such": counts["replaced"],
        f"{counts['crlf']:,} lines end in CR LF; they are kept as they are": counts["crlf"],
        f"documents with a byte-order mark in front: {counts['marks']:,}; data.encoding=utf-8-sig drops it": (
            counts["marks"]
        ),
        f"{counts['nul']:,} NUL bytes; they are kept as they are": counts["nul"],
        f"{counts['empty']:,} records without any text are passed over": counts["empty"] and not chat,
        f"{counts['empty']:,} conversations without an answer are passed over, {total.first.get('empty')} first": (
            counts["empty"] and chat
        ),
    }
    return [sentence for sentence, holds in notes.items() if holds]


def _notes_on_tokens(tokenizer: Tokenizer, keys: dict[str, Any], train_tokens: int) -> Iterator[str]:
    wanted = keys["vocab_size"] or 0
    if tokenizer.vocab_size < wanted:
        yield f"the text yields {tokenizer.vocab_size:,} BPE tokens, fewer than tokenizer.vocab_size={wanted:,}"
    if tokenizer.rules and tokenizer.rules.nfc:
        yield "the tokenizer brings text into Unicode's form NFC: other forms are not kept byte by byte"
    if train_tokens <= 1024:
        yield f"so few tokens allow model.block_size={train_tokens - 1} at most"
