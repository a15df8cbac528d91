"""Make prepared tokens: tokenizer, shards, sidecars and summary of one corpus, in one folder.

A killed process leaves plan.json, tokenizer.json and finished shards behind; the next one makes the missing shards.
"""

import contextlib
import itertools
import shutil
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config.schema import WorkConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.measures.overlap import measured_lines, overlap, statistics
from minigpt.data.prepared import FORMAT
from minigpt.data.preparing.encode import UNITS, Plan, encode_unit
from minigpt.data.preparing.engines import Map, workers
from minigpt.data.preparing.in_place import link_tokens
from minigpt.data.preparing.scan import Scan, scan_unit
from minigpt.data.preparing.units import Unit, units_of
from minigpt.data.shards import Shard, fingerprint, open_split, write_sidecar
from minigpt.data.sources.corpus import Corpus
from minigpt.data.sources.find import local_file
from minigpt.data.sources.split import HASHES, describe_split, is_fair, offset, small_split
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer, scheme_of
from minigpt.data.tokenizers.scheme import runs
from minigpt.faults import UserFault
from minigpt.files import read_json, write_json
from minigpt.machine.cores import usable_cores
from minigpt.screen import Progress, Say, size_text

PLAN = "plan.json"
LEARN_BYTES = 1 << 27  # a BPE vocabulary is learned from about so much of the training text at most: a minute or less


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
    rule, notes = "source" if keys["val_source"] else "tokens", list[str]()
    if corpus.rule == "tokens":
        tokenizer, splits, counts = link_tokens(folder, corpus, keys["tokenizer"], given, say)
    else:
        units = units_of(corpus, runs if given is None else given.runs)
        with workers(work.engine, min(work.workers or usable_cores(), len(units))) as each:
            tokenizer, plan = _planned(folder, keys, corpus, units, given, each, say)
            progress = Progress(f"data: encoding with tokenizer={tokenizer.name}", corpus.size, say)
            splits = {"train": list[Shard](), "val": list[Shard]()}
            for unit, record in zip(units, each(partial(encode_unit, folder=folder, plan=plan), units), strict=True):
                for name, shard in record.items():
                    splits[name].append(shard)
                progress(unit.size)
        rule, notes, counts = plan.rule, plan.notes, Counter(plan.counts)
    sidecars = {name: write_sidecar(folder, name, tokenizer, shards) for name, shards in splits.items()}
    now = ((file, local_file(file.path, file.label)) for file in corpus.files if not file.address)
    is_changed = any((file.size, file.stamp) != (other.size, other.stamp) for file, other in now)
    if is_changed or sum(sidecar["bytes"] for sidecar in sidecars.values()) != counts["bytes"]:
        raise UserFault("the source was changed while it was read; wait until it is complete and run this again")
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    summary = {key: keys[key] for key in ("corpus", "source", "python")} | {
        **{key: counts[key] for key in ("documents", "bytes", "characters")},
        "split": describe_split(rule, keys["val_fraction"], keys["val_source"]),
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "notes": [*corpus.notes, *notes],
    }
    opened = {name: open_split(folder, name, tokenizer) for name in sidecars}
    for name, split in opened.items():
        summary[name] = {"tokens": len(split), "bytes": split.bytes} | statistics(split)
    summary["overlap"] = overlap(opened["train"], opened["val"])
    whole = fingerprint([sidecar["fingerprint"] for sidecar in sidecars.values()])
    content = {"format": FORMAT, "keys": keys, "signature": corpus.signature, "fingerprint": whole, "summary": summary}
    write_json(folder / "prepared.json", content)
    (folder / PLAN).unlink(missing_ok=True)
    shutil.rmtree(folder / UNITS, ignore_errors=True)
    for name, line in measured_lines(summary):
        say(f"data: {name}: {line}")


def _planned(
    folder: Path, keys: dict[str, Any], corpus: Corpus, units: list[Unit], given: Tokenizer | None, each: Map, say: Say
) -> tuple[Tokenizer, Plan]:
    """Read the text for the first time. Return the tokenizer, learned if none is given, and the plan, and keep both."""
    with contextlib.suppress(UserFault, LookupError, TypeError):  # of a process that was killed
        known = Plan(**read_json(folder / PLAN))
        if len(known.shards) == len(units):
            return load_tokenizer(read_json(folder / "tokenizer.json")), known
    scheme, vocab_size = scheme_of(keys["tokenizer"]), keys["vocab_size"] or 0
    learns = given is None and scheme.min_vocab_size > 0
    sampled = min(1.0, LEARN_BYTES / max(1, corpus.size)) if learns else 0.0
    how = {"rule": corpus.rule, "val_fraction": keys["val_fraction"], "sampled": sampled}
    scan = partial(scan_unit, **how, alphabet=given is None and scheme.needs_alphabet)
    progress = Progress("data: reading", corpus.size, say)
    scans, total = list[Scan](), Scan()
    for unit, part in zip(units, each(scan, units), strict=True):
        scans.append(part)
        total.add(part)
        progress(unit.size)
    if total.bad:
        raise UserFault(*total.bad[:20])
    plan = _plan_of(corpus, keys["val_fraction"], total, scans)
    for line in plan.notes:
        say(f"data: {line}")
    if learns:
        size = sum(len(block) for part in scans for _, _, block in part.sample)
        say(f"data: learning {vocab_size:,} tokens from {size_text(size)} of {size_text(total.counts['bytes'])}")
    train = ([block] for block in _training_text(plan, scans))
    tokenizer = given or build_tokenizer(keys["tokenizer"], vocab_size=vocab_size, alphabet=total.alphabet, train=train)
    tokenizer = with_roles(tokenizer) if corpus.options.chat else tokenizer
    (folder / UNITS).mkdir(exist_ok=True)
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    write_json(folder / PLAN, asdict(plan))
    return tokenizer, plan


def _plan_of(corpus: Corpus, fraction: float, total: Scan, scans: list[Scan]) -> Plan:
    """Decide how a text is split."""
    rule, counts, notes = corpus.rule, total.counts, list[str]()
    if counts["not_utf8"]:
        notes.append(
            f"{counts['not_utf8']:,} documents are not UTF-8 and taken as bytes, {total.first['not_utf8']} first"
        )
    if counts["empty"]:
        what = "conversations without an answer" if corpus.options.chat else "records without text"
        notes.append(f"{counts['empty']:,} {what} are passed over, {total.first['empty']} first")
    border = 1.0 if rule in ("source", "names") else fraction * HASHES
    if rule == "content" and not corpus.options.chat and not is_fair(counts["val_bytes"], counts["bytes"], fraction):
        rule = "tail"
        notes.append(
            f"split by whole documents, validation has {counts['val_bytes']:,} of {counts['bytes']:,} bytes: the text "
            "is cut near its end instead; data.val_source=FILE chooses what to validate on"
        )
    if rule == "tail":
        border = int(counts["characters"] * (1 - fraction))
        if not 0 < border < counts["characters"]:
            raise small_split("val" if border else "train", "no text")
    starts = [0, *itertools.accumulate(scan.counts["characters"] for scan in scans)]
    shards, following = list[dict[str, int]](), {"train": 0, "val": 0}
    for scan, start, end in zip(scans, starts, starts[1:], strict=False):
        lowest, highest = scan.hashes
        if rule == "tail":
            holds = {"train": start < border, "val": end > border}
        else:
            holds = {"train": highest >= border, "val": lowest < border}
        shards.append({name: following[name] for name in holds if holds[name] and scan.counts["bytes"]})
        following |= {name: number + 1 for name, number in shards[-1].items()}
    return Plan(rule, border, starts, shards, {**counts}, notes)


def _training_text(plan: Plan, scans: list[Scan]) -> list[bytes]:
    """Return what the first reading kept of the training text."""
    blocks = [(start, *kept) for start, scan in zip(plan.starts, scans, strict=False) for kept in scan.sample]
    if plan.rule == "tail":
        return [block[: offset(block, int(plan.border) - start - before)] for start, _, before, block in blocks]
    return [block for _, hash, _, block in blocks if hash >= plan.border]
