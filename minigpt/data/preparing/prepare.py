"""Find prepared tokens, or make them: corpus -> tokenizer -> shards, kept under data.dir.

What is kept: `DIR/<corpus>-<tokenizer>-<hash>/` with tokenizer.json, the shards of train and val, their sidecars,
and prepared.json, written last: without it the folder is unfinished work, which the next command completes, to the
same bytes. The hash covers the keys (corpus, path, encoding, split, tokenizer) and the names, sizes and times of the
files, so a source that changed gets a folder of its own.
"""

import contextlib
import itertools
import json
import platform
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config.convert import shown
from minigpt.config.run_names import NO_NAME
from minigpt.config.schema import CONVERSATIONS, DataConfig, TokenizerConfig, WorkConfig
from minigpt.config.sources import display_name
from minigpt.data.chat.roles import with_roles
from minigpt.data.chat.tasks import VERSION
from minigpt.data.measures.overlap import overlap, overlap_lines
from minigpt.data.prepared import FORMAT, DamagedShards, Prepared, locked, mixed, open_folder, read_prepared
from minigpt.data.preparing.engines import Map, workers
from minigpt.data.preparing.in_place import link_tokens
from minigpt.data.preparing.units import UNITS, Scan, SplitPlan, Unit, encode_unit, scan_unit, units_of, val_begin
from minigpt.data.readers import NAMES, holds_records, reader_of
from minigpt.data.shards import Shard, fingerprint, open_split, write_sidecar
from minigpt.data.sources.corpus import Corpus, find_corpus, look_inside
from minigpt.data.sources.download import SourceGone
from minigpt.data.sources.find import local_file, typed_path
from minigpt.data.sources.split import FEW_DOCUMENTS, HASHES, describe_split, offset
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer, read_tokenizer_json, scheme_of
from minigpt.data.tokenizers.scheme import END_OF_TEXT, runs
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import read_json, write_json
from minigpt.machine.cores import usable_cores
from minigpt.screen import Progress, clear_moving_line, number_of, size_text, tell

PLAN = "plan.json"
LEARN_BYTES = 1 << 11  # of training text, about, for each token of a BPE vocabulary that is learned from it


def prepare(data: DataConfig, tokenizer: TokenizerConfig, **options: Any) -> Prepared:
    """Call `find_or_make`, and print a line about each prepared folder and what the splits have in common."""
    prepared = find_or_make(data, tokenizer, **options)
    for part in prepared.parts.values() or [prepared]:
        sizes = f"{len(part.train):,} tokens to train on, {len(part.val):,} to validate on"
        tell(f"data: {part.folder}: {sizes} ({part.summary['split']})")
    for line in overlap_lines(prepared.summary):
        tell(f"data: overlap: {line}")
    return prepared


def find_or_make(
    data: DataConfig, tokenizer: TokenizerConfig, *, given: Tokenizer | None = None, work: WorkConfig | None = None
) -> Prepared:
    """Find the tokens that these settings describe, or make them.

    Several processes may run this at once: one makes the tokens, the others wait and find them. Killed at any point and
    run again, it continues, and gives the same bytes.

    Args:
        data: the corpus and data.dir.
        tokenizer: name and vocabulary size.
        given: a tokenizer to use instead of learning one from this text.
        work: how the work is shared out; None: over all cores of this machine.

    Raises:
        UserFault: the text or the keys are at fault; nothing is left that could be mistaken for prepared tokens.
        StorageFailure: data.dir can't be written.
    """
    if data.mix:
        return _prepare_mix(data, tokenizer, given, work or WorkConfig())
    scheme = scheme_of(tokenizer.name, tokenizer.vocab_size)
    if given is None and tokenizer.name == "file":
        if tokenizer.file is None:
            raise UserFault("tokenizer=file needs the tokenizer. Add tokenizer.file=PATH of a tokenizer.json")
        given = read_tokenizer_json(typed_path(tokenizer.file), tokenizer.eot)
    is_chat, is_fixed = data.name in CONVERSATIONS, not scheme.is_learned and tokenizer.name != "file"
    if given is not None and is_fixed and (is_chat or not given.control):
        given = None  # the tokens and their folder are the same without it
    if given is not None and is_chat:
        given = with_roles(given)
    keys, root = _keys(data, tokenizer, given), typed_path(data.dir)
    known = [path for path in root.glob("*/prepared.json") if read_prepared(path.parent).get("keys") == keys]
    newest = max(known, key=lambda path: path.stat().st_mtime_ns).parent if known else None
    try:
        corpus = find_corpus(data, raw=scheme.takes_any_bytes)
        folder = root / _folder_name(keys, corpus.signature)
        if read_prepared(folder):
            with contextlib.suppress(DamagedShards):
                return open_folder(folder)
            tell(f"data: {folder} has lost a file, or one was changed; preparing it anew")
            (folder / "prepared.json").unlink(missing_ok=True)
        elif newest:
            tell(f"data: the source changed since {newest} was prepared; preparing it anew")
        corpus = look_inside(corpus)
        for line in corpus.description():
            tell(f"data: {line}")
        if given is None and not scheme.is_learned:  # it may be downloaded: better before gigabytes are read
            given = build_tokenizer(tokenizer.name)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not read_prepared(folder):
                make(folder, keys, corpus, given, work or WorkConfig())
        return open_folder(folder)
    except SourceGone as fault:
        if newest is None:
            raise
        tell(f"data: {fault}. Using the tokens prepared from it earlier")
        return open_folder(newest)
    except OSError as error:
        wrong = f"{error.filename or root} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Make room or choose another folder: data.dir=DIR") from error
    finally:
        clear_moving_line()


def _prepare_mix(data: DataConfig, tokenizer: TokenizerConfig, given: Tokenizer | None, work: WorkConfig) -> Prepared:
    """Prepare each source of a mixture, with the tokenizer of the first for all."""
    parts: dict[str, Prepared] = {}
    for name, source in short_names(data.mix).items():
        folder = typed_path(source)
        if (folder / "prepared.json").is_file():
            if read_prepared(folder).get("keys", {}).get("corpus") in CONVERSATIONS:
                raise UserFault(f"data.mix: {name} holds conversations. Name their rows: data=chat data.source=FILE")
            part = open_folder(folder)
        else:
            part = find_or_make(_of_source(data, source), tokenizer, given=given, work=work)
        given = given or part.tokenizer
        if part.tokenizer.hash != given.hash:
            got, wanted = (f"{tokens.name}, SHA-256 {tokens.hash[:12]}" for tokens in (part.tokenizer, given))
            wrong = f"data.mix: {name} holds tokens of the tokenizer {got}; the first source has {wanted}"
            raise UserFault(f"{wrong}. Name its text instead, or prepare all with one tokenizer")
        if given.name != tokenizer.name:
            wrong = f"data.mix: {name} was prepared with tokenizer={given.name}, got tokenizer={tokenizer.name}"
            raise UserFault(f"{wrong}. Type tokenizer={given.name}")
        parts[name] = part
    return mixed(parts, dict(zip(parts, data.mix.values(), strict=True)), data.dir)


def short_names(sources: Mapping[str, float]) -> dict[str, str]:
    """Return the sources of a mixture by short names, which rows and the screen use."""
    names = [re.sub(NO_NAME, "-", Path(source.rstrip("/")).stem).strip("-.") or "source" for source in sources]
    if len({*names}) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    return dict(zip(names, sources, strict=True))


def _of_source(data: DataConfig, source: str) -> DataConfig:
    """Return the settings for one source of a mixture."""
    corpus: Any = source if source in ("stdlib", "shakespeare_char") else "text"
    return replace(data, name=corpus, source=source if corpus == "text" else None, mix={})


def changed_sources(data: DataConfig, prepared: Prepared) -> list[str]:
    """Return the local sources that were changed or removed after these tokens were prepared."""
    names = short_names(data.mix)
    parts = [(_of_source(data, source), prepared.parts[name]) for name, source in names.items()] or [(data, prepared)]
    changed = []
    folders = [path.parent for path in typed_path(data.dir).glob("*/prepared.json")]
    for settings, part in parts:
        if not settings.source or "://" in settings.source or (typed_path(settings.source) / "prepared.json").is_file():
            continue
        made = map(read_prepared, [part.folder, *folders])  # several, if equal texts have several names
        signatures = [facts.get("signature") for facts in made if facts.get("fingerprint") == part.fingerprint]
        with contextlib.suppress(UserFault):  # it is gone, or empty
            if find_corpus(settings).signature in signatures:
                continue
        changed.append(" or ".join(display_name(name) for name in (settings.source, settings.val_source) if name))
    return changed


def _keys(data: DataConfig, tokenizer: TokenizerConfig, given: Tokenizer | None) -> dict[str, Any]:
    """Return all settings that determine the tokens."""
    scheme, has_source = scheme_of(tokenizer.name, tokenizer.vocab_size), data.name in ("text", "chat")
    val_source = display_name(data.val_source) if has_source and data.val_source is not None else None
    reading = {key: getattr(data, key) for key in ("key", "include", "exclude", "separator", "encoding", "errors")}
    return {
        "format": FORMAT,
        "corpus": data.name,
        "source": display_name(data.source) if has_source and data.source else None,
        "val_source": f"tasks {VERSION}" if data.name == "tasks" else val_source,
        "python": platform.python_version() if data.name == "stdlib" else None,
        "reading": reading if has_source else None,
        "val_fraction": 0.0 if val_source is not None or data.name == "tasks" else data.val_fraction,
        "tokenizer": tokenizer.name,
        "vocab_size": given.vocab_size if given else tokenizer.vocab_size if scheme.min_vocab_size else None,
        "given": given.hash if given else None,
    }


def _folder_name(keys: dict[str, Any], signature: str) -> str:
    corpus = keys["corpus"]
    if keys["source"]:
        corpus = "text-" + re.sub(NO_NAME, "_", Path(keys["source"]).name)[:40]
    size = keys["vocab_size"] or ""
    return f"{corpus}-{keys['tokenizer']}{size}-{fingerprint([json.dumps(keys, sort_keys=True), signature])[:10]}"


# --- the making of one folder ---


def make(folder: Path, keys: dict[str, Any], corpus: Corpus, given: Tokenizer | None, work: WorkConfig) -> None:
    """Write everything that a locked folder of prepared tokens holds, prepared.json last.

    A killed process leaves plan.json, tokenizer.json and finished shards behind; the next one makes the missing shards.
    """
    rule, notes = "source" if keys["val_source"] else "tokens", list[str]()
    if corpus.rule == "tokens":
        tokenizer, splits, counts = link_tokens(folder, corpus, keys["tokenizer"], given)
    else:
        units = units_of(corpus, runs if given is None else given.runs)
        with workers(work.engine, min(work.workers or usable_cores(), len(units))) as run:
            tokenizer, plan = _planned(folder, keys, corpus, units, given, run)
            progress = Progress(f"data: encoding with tokenizer={tokenizer.name}", corpus.size)
            splits = {"train": list[Shard](), "val": list[Shard]()}
            for unit, record in zip(units, run(partial(encode_unit, folder=folder, plan=plan), units), strict=True):
                for name, shard in record.items():
                    splits[name].append(shard)
                progress(unit.size)
        rule, notes, counts = plan.rule, plan.notes, Counter(plan.counts)
    for name, shards in splits.items():
        write_sidecar(folder, name, tokenizer, shards)
    train, val = (open_split(folder, name, tokenizer) for name in splits)
    pairs = ((file, local_file(file.path, file.label)) for file in corpus.files if not file.address)
    is_changed = any((file.size, file.stamp) != (now.size, now.stamp) for file, now in pairs)
    if is_changed or train.bytes + val.bytes != counts["bytes"]:
        raise UserFault("the source was changed while it was read; wait until it is complete and run this again")
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    summary = {key: keys[key] for key in ("corpus", "source", "python")} | {
        **{key: counts[key] for key in ("documents", "bytes", "characters")},
        "split": describe_split(
            rule, keys["val_fraction"], keys["val_source"] if corpus.name != "tasks" else "val.jsonl"
        ),
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "notes": [*corpus.notes, *notes],
        **{split.name: {"tokens": len(split), "bytes": split.bytes} for split in (train, val)},
        "overlap": overlap(train, val),
    }
    whole = fingerprint([train.fingerprint, val.fingerprint])
    content = {"format": FORMAT, "keys": keys, "signature": corpus.signature, "fingerprint": whole, "summary": summary}
    write_json(folder / "prepared.json", content)
    (folder / PLAN).unlink(missing_ok=True)
    shutil.rmtree(folder / UNITS, ignore_errors=True)


def _planned(
    folder: Path, keys: dict[str, Any], corpus: Corpus, units: list[Unit], given: Tokenizer | None, run: Map
) -> tuple[Tokenizer, SplitPlan]:
    """Read the text for the first time; return and store the tokenizer (learned if none is given) and the plan."""
    with contextlib.suppress(UserFault, LookupError, TypeError):  # the plan of a process that was killed
        known = SplitPlan(**read_json(folder / PLAN))
        if len(known.shards) == len(units):
            return load_tokenizer(read_json(folder / "tokenizer.json")), known
    scheme, vocab_size = scheme_of(keys["tokenizer"]), keys["vocab_size"] or 0
    learns = given is None and scheme.min_vocab_size > 0
    sampled = min(1.0, LEARN_BYTES * vocab_size / max(1, corpus.size)) if learns else 0.0
    how = {"rule": corpus.rule, "val_fraction": keys["val_fraction"], "sampled": sampled}
    scan = partial(scan_unit, **how, alphabet=given is None and scheme.needs_alphabet)
    progress = Progress("data: reading", corpus.size)
    scans = list[Scan]()
    for unit, result in zip(units, run(scan, units), strict=True):
        scans.append(result)
        progress(unit.size)
    if bad := [*dict.fromkeys(sentence for result in scans for sentence in result.bad)]:
        raise UserFault(*bad[:20])
    plan = _plan_of(corpus, keys["val_fraction"], scans)
    for line in plan.notes:
        tell(f"data: {line}")
    text = _training_text(plan, scans)
    if learns:
        tell(f"data: learning {vocab_size:,} tokens from {size_text(sum(map(len, text)))} of training text")
    alphabet = set[str]().union(*(result.alphabet for result in scans))
    train = ([block] for block in text)
    tokenizer = given or build_tokenizer(keys["tokenizer"], vocab_size=vocab_size, alphabet=alphabet, train=train)
    tokenizer = with_roles(tokenizer) if corpus.options.chat else tokenizer
    (folder / UNITS).mkdir(exist_ok=True)
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    write_json(folder / PLAN, asdict(plan))
    return tokenizer, plan


def _plan_of(corpus: Corpus, fraction: float, scans: list[Scan]) -> SplitPlan:
    """Decide how a text is split."""
    rule, counts, notes = corpus.rule, sum((scan.counts for scan in scans), Counter[str]()), list[str]()
    empty = ("without an answer", "conversation") if corpus.options.chat else ("without text", "record")
    surprises = {"not_utf8": ("not UTF-8, taken as bytes", "document"), "empty": (f"{empty[0]}, passed over", empty[1])}
    if corpus.options.separator and not any(reader_of(file, corpus.options) in NAMES for file in corpus.files):
        del surprises["empty"]  # nothing is between two separators, or after the last one
    for key, (what, noun) in surprises.items():
        if first := [scan.first[key] for scan in scans if key in scan.first]:
            notes.append(f"{what}: {number_of(counts[key], noun)}, {first[0]} first")
    if counts["separators"] >= 10 and not any(holds_records(file, corpus.options) for file in corpus.files):
        reading = f"{END_OF_TEXT} stands {counts['separators']:,} times in the text, and is read as text"
        notes.append(f"{reading}. If it separates documents: 'data.separator={END_OF_TEXT}'")
    if corpus.options.separator and counts["documents"] <= len(corpus.files):
        windows = r"with Windows line ends, '\n' is '\r\n' in it"
        separator = shown(corpus.options.separator).replace(r"\\", "\\")  # as one types it
        notes.append(f"data.separator={separator} divides none of the files; {windows}")
    held_out = counts["val_bytes"] / max(1, counts["bytes"])  # by whole documents: about as much as it should be?
    is_fair = fraction / 10 <= held_out <= 2 * fraction and held_out < 1
    border = 1.0 if rule in ("source", "names") else fraction * HASHES
    may_cut = rule == "content" and not corpus.options.chat
    if may_cut and counts["documents"] < FEW_DOCUMENTS:
        rule = "tails"
    elif may_cut and not is_fair:
        rule = "tail"
        share = f"{counts['val_bytes']:,} of {counts['bytes']:,} bytes of {number_of(counts['documents'], 'document')}"
        instead = "the text is cut near its end instead; data.val_source=FILE chooses what to validate on"
        notes.append(f"split by whole documents, validation would have {share}: {instead}")
    starts = [0, *itertools.accumulate(scan.counts["characters"] for scan in scans)]
    begins = [0] * (rule == "tail")
    if rule == "tails":
        begins = [start + begin for start, scan in zip(starts, scans, strict=False) for begin in scan.begins]
    texts = itertools.pairwise([*begins, starts[-1]])
    tails = [(begin + int((end - begin) * (1 - fraction)), end) for begin, end in texts]
    shards, following = list[dict[str, int]](), {"train": 0, "val": 0}
    for scan, start, end in zip(scans, starts, starts[1:], strict=False):
        lowest, highest = scan.hashes
        holds = {"train": highest >= border, "val": lowest < border}
        if tails:
            held = sum(max(0, min(end, last) - max(start, first)) for first, last in tails)
            holds = {"train": held < end - start, "val": held > 0}
        shards.append({name: following[name] for name in holds if holds[name] and scan.counts["bytes"]})
        following |= {name: number + 1 for name, number in shards[-1].items()}
    return SplitPlan(rule, border, tails, starts, shards, {**counts}, notes)


def _training_text(plan: SplitPlan, scans: list[Scan]) -> list[bytes]:
    """Return the blocks of training text that the first reading sampled."""
    blocks = [(start, *kept) for start, scan in zip(plan.starts, scans, strict=False) for kept in scan.sample]
    places = [(hash, start + before, block) for start, hash, before, block in blocks]
    return [block[: offset(block, val_begin(plan, hash, place) - place)] for hash, place, block in places]
