"""Find prepared tokens, or make them: corpus -> tokenizer -> shards, kept under data.dir.

What is kept: `DIR/<corpus>-<tokenizer>-<hash>/` with tokenizer.json, the shards of train and val, their sidecars,
and prepared.json, written last: without it the folder is unfinished work, which the next run completes, to the same
bytes. The hash covers the keys (corpus, path, encoding, split, tokenizer) and the text's SHA-256, so a source that
changed gets a folder of its own. A source is recognised by names, sizes and times of its files; it is read only if
those differ.
"""

import contextlib
import fcntl
import json
import platform
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.config.sources import address_hash, name_of
from minigpt.data.chat.roles import with_roles
from minigpt.data.chat.tasks import VERSION
from minigpt.data.prepared import CONVERSATIONS, DamagedShards, Prepared, locked, open_folder, read_prepared, sweep
from minigpt.data.preparing.in_place import read_tokens, tokenizer_of
from minigpt.data.preparing.make import UNITS, encode, learn, processes_for, seal, share_of, stored_tokenizer
from minigpt.data.preparing.prepare_mix import prepare_mix
from minigpt.data.preparing.prepare_remote import open_remote
from minigpt.data.preparing.units import missing_units
from minigpt.data.preparing.workers import started_early
from minigpt.data.readers import READERS
from minigpt.data.shards import fingerprint
from minigpt.data.sources.corpus import Corpus, find_corpus
from minigpt.data.sources.download import SourceGone
from minigpt.data.sources.find import typed_path
from minigpt.data.sources.listing import listing
from minigpt.data.sources.survey import Survey, signature, survey
from minigpt.data.sources.suspicious import suspicious
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, read_tokenizer_json, scheme_of
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import lock, write_json
from minigpt.ranks.allocator import give_back_large_blocks
from minigpt.screen import Progress, Say, moving_line, tell


class UnfinishedParts(Exception):
    """Raised when the units of this part are made (`prepare.part`), and those of other parts are not."""

    def __init__(self, part: str, missing: int, units: int):
        rest = f"{missing:,} of {units:,} units are still to be made by other parts; the last of them ends the work"
        super().__init__(f"part {part} is done: {rest}")


@moving_line()
def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    given: Tokenizer | None = None,
    rule: str | None = None,
    work: WorkConfig | None = None,
    say: Say = tell,
) -> Prepared:
    """Find the tokens that these keys stand for, or make them.

    Several processes may run this at once: one makes the tokens, the others wait and find them. Killed at any point and
    run again, it goes on where it was, and gives the same bytes.

    Args:
        data: the corpus and data.dir.
        tokenizer: name and vocabulary size.
        given: a tokenizer to use instead of learning one from this text.
        rule: the rule by which a run's tokens were split when it began; None: the rule for new tokens.
        work: how the work is shared out; None: over all cores of this machine.
        say: takes lines for the user.

    Raises:
        UserFault: the text or the keys are at fault; nothing is left that could be mistaken for prepared tokens.
        DamagedShards: the tokens were prepared, but a file was changed or lost since.
        StorageFailure: data.dir can't be written, or its disk is too small.
        UnfinishedParts: with `work.part`, while other parts are still to be made.
    """
    give_back_large_blocks()
    if data.mix:
        return prepare_mix(data, tokenizer, partial(prepare, work=work, say=say), given=given, say=say)
    if data.shards is not None:
        return open_remote(data, tokenizer, say)
    keys, scheme = _keys(data, tokenizer), scheme_of(tokenizer.name)
    if given is None and tokenizer.name == "file":
        given = _tokenizer_of_file(tokenizer)
    if given is not None and data.name in CONVERSATIONS:
        given = with_roles(given)
    if given is not None:
        keys |= {"vocab_size": given.vocab_size, "given": given.hash}
    root = typed_path(data.dir)
    known = _known(root, keys, rule)
    newest = next(iter(known), None)
    if newest and data.name == "shakespeare_char" and not data.source:  # its one content is known by its checksum
        return open_folder(newest, say)
    try:
        corpus = find_corpus(data, raw=scheme.takes_any_bytes, say=say)
    except SourceGone as fault:
        if not newest:
            raise
        say(f"data: {fault}. Using the tokens prepared from it earlier")
        return open_folder(newest, say)
    formats = sorted({file.suffix for file in corpus.files} & READERS.keys())
    formats = ["tokens"] if corpus.holds_tokens else formats
    keys |= {"formats": formats} if formats else {}  # only those other than plain text
    if corpus.rule == "content" and rule in (None, "content"):
        keys["split"] = "content"
    elif corpus.rule == "content":
        corpus = replace(corpus, rule="tail")
    if data.check and not corpus.holds_tokens:
        for line in suspicious(corpus, Progress("data: checking", corpus.size, say)):
            say(f"data: check: {line}")
    older = [folder for folder, content in known.items() if "split" in keys and "split" not in content["keys"]]
    known = {folder: content for folder, content in known.items() if content["keys"] == keys}
    for folder, content in known.items():
        if content.get("signature") == signature(corpus):
            return open_folder(folder, say)
    for folder in older:
        say(f"data: {folder} is split by the rule of versions up to 0.1.0; it stays for the runs that began with it")
    for line in listing(corpus):
        say(f"data: {line}")
    work = work or WorkConfig()
    with started_early(_workers_to_start(work, corpus, needs_text=given is None and scheme.is_learned)):
        # A vocabulary that can't be fetched must fail before gigabytes are read.
        ready = given if given is not None or scheme.is_learned else build_tokenizer(tokenizer.name)
        progress = Progress("data: reading", corpus.size, say)
        if corpus.holds_tokens:
            ready = tokenizer_of(corpus, tokenizer.name, ready)
            say(f"data: the tokens are used where they are, as those of tokenizer={ready.name}")
            found = read_tokens(corpus, ready, progress)
        else:
            fraction = keys["val_fraction"]
            found = survey(corpus, alphabet=scheme.needs_alphabet, val_fraction=fraction, progress=progress)
        for line in found.notes():
            say(f"data: {line}")
        folder = root / _folder_name(keys, found.sha256)
        if known and folder not in known:
            say(f"data: the source changed since {next(iter(known))} was prepared; preparing it anew")
        _find_or_make(folder, keys, found, given=ready, work=work, say=say)
    return open_folder(folder, say)


def _workers_to_start(work: WorkConfig, corpus: Corpus, *, needs_text: bool) -> int:
    """Return how many processes to start before the text is read: none if the tokenizer must be learned from it."""
    if needs_text or corpus.holds_tokens or work.engine == "ray":
        return 0
    count = processes_for(work, corpus.size // share_of(work.part)[1])
    return count if count > 1 else 0


def _find_or_make(
    folder: Path, keys: dict[str, Any], found: Survey, *, given: Tokenizer | None, work: WorkConfig, say: Say
) -> None:
    """Make `folder` hold the tokens of a source that has been read, unless it does.

    Raises:
        UnfinishedParts: this part is done, others are not.
    """
    content = read_prepared(folder)
    if content:  # touched or copied, but the same text
        with contextlib.suppress(OSError):  # if the folder is read-only, the source is only read again next time
            write_json(folder / "prepared.json", content | {"signature": found.signature})
        return
    try:
        (folder / UNITS).mkdir(parents=True, exist_ok=True)
        with locked(folder, say, shared=bool(work.part)) as file:
            if read_prepared(folder):
                return
            tokenizer = stored_tokenizer(folder)
            if tokenizer is None:
                with open(folder / UNITS / ".learn", "ab") as learning:
                    lock(learning)  # one of several parts learns; the others wait for that, but not for its units
                    tokenizer = stored_tokenizer(folder) or learn(folder, keys, found, given=given, say=say)
            making = encode(folder, found, keys["val_fraction"], tokenizer, work=work, say=say)
            with contextlib.closing(making):
                identities: Iterable[str] = making  # units are put together while later ones are encoded
                if work.part:
                    identities = list(making)
                    if missing := missing_units(folder / UNITS, identities):
                        raise UnfinishedParts(work.part, len(missing), len(identities))
                    lock(file, fcntl.LOCK_UN)  # on NFS, two processes that keep a shared lock would wait for each other
                    if lock(file):
                        sweep(folder)
                if not read_prepared(folder):  # the first of the last parts puts the units together
                    seal(folder, keys, found, tokenizer=tokenizer, identities=identities, say=say)
    except OSError as error:
        if read_prepared(folder):  # on a file system without locks another process was faster
            return
        wrong = f"{error.filename or folder} can't be written: {error.strerror or error}"
        remedy = f"Make room (up to {2 * found.bytes / 1e6:,.1f} MB are needed) or choose another folder: data.dir=DIR"
        raise StorageFailure(f"{wrong}. {remedy}") from error


def _tokenizer_of_file(config: TokenizerConfig) -> Tokenizer:
    if config.file is None:
        raise UserFault("tokenizer=file needs the tokenizer. Add tokenizer.file=PATH of a tokenizer.json")
    return read_tokenizer_json(typed_path(config.file), config.eot)


def require_vocabulary(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Refuse a missing vocabulary that is not learned (GPT-2's) before anything slow is loaded: torch, text.

    Raises:
        UserFault: it is needed, and neither cached nor reachable.
    """
    if tokenizer.name == "file" or data.mix or data.shards is not None:
        return  # it is on this machine, or comes with the tokens
    if not scheme_of(tokenizer.name).is_learned and not _known(typed_path(data.dir), _keys(data, tokenizer)):
        build_tokenizer(tokenizer.name)


def mend(data: DataConfig, tokenizer: TokenizerConfig, *, work: WorkConfig | None = None, say: Say = tell) -> Prepared:
    """Do what `prepare` does, and make damaged tokens again.

    Raises:
        UserFault, StorageFailure, UnfinishedParts: as `prepare`.
    """
    try:
        return prepare(data, tokenizer, work=work, say=say)
    except DamagedShards as fault:
        say(f"data: {fault}")
        (fault.folder / "prepared.json").unlink()
    return prepare(data, tokenizer, work=work, say=say)


def _keys(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """Return all that decides the tokens besides the text itself."""
    scheme = scheme_of(tokenizer.name, tokenizer.vocab_size)
    text = data.name in ("text", "chat")
    new = {"key": "text", "include": None, "exclude": None}  # only if they differ: older tokens don't have these keys
    own = {key: getattr(data, key) for key in new if text and getattr(data, key) != new[key]}
    if text and data.val_source is not None:
        own["val_source"] = name_of(data.val_source)
    if data.name == "tasks":
        own["val_source"] = f"tasks {VERSION}"
    if text and (address := address_hash(f"{data.source} {data.val_source}")):
        own["address"] = address
    return own | {
        "version": 1,
        "corpus": data.name,
        "source": name_of(data.source) if text and data.source else None,
        "python": platform.python_version() if data.name == "stdlib" else None,
        "encoding": data.encoding if text else "utf-8",
        "errors": data.errors if text else "strict",
        "val_fraction": 0.0 if "val_source" in own else data.val_fraction,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size if scheme.min_vocab_size else None,
    }


def _known(root: Path, keys: dict[str, Any], rule: str | None = None) -> dict[Path, dict[str, Any]]:
    """Return the folders prepared with these keys, whatever the files' formats, with their prepared.json; newest first.

    With a rule, only those that were split by it.
    """
    found = {}
    for path in sorted(root.glob("*/prepared.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        content = read_prepared(path.parent)
        theirs = content.get("keys", {})
        own = {key: value for key, value in theirs.items() if key not in ("formats", "split")}
        if own == keys and rule in (None, theirs.get("split", "tail")):
            found[path.parent] = content
    return found


def _folder_name(keys: dict[str, Any], sha256: str) -> str:
    corpus = keys["corpus"]
    if keys["source"]:
        corpus = "text-" + re.sub(r"[^A-Za-z0-9._-]+", "_", Path(keys["source"]).name)[:40]
    size = keys["vocab_size"] or ""
    return f"{corpus}-{keys['tokenizer']}{size}-{fingerprint([json.dumps(keys, sort_keys=True), sha256])[:10]}"
