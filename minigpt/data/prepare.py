"""Find prepared tokens, or make them: corpus -> tokenizer -> shards, kept under data.dir.

What is kept: `DIR/<corpus>-<tokenizer>-<hash>/` with tokenizer.json, the shards of train and val, their sidecars,
and prepared.json, written last: without it the folder is unfinished work, which the next run goes on with,
to the same bytes. The hash covers the keys (corpus, path, encoding, split, tokenizer) and the text's SHA-256, so a
source that changed gets a folder of its own. A source is known again by names, sizes and times of its files; only if
those differ is it read.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.config.sources import address_hash, name_of
from minigpt.data.corpus import Corpus, find_corpus
from minigpt.data.download import SourceGone
from minigpt.data.find import typed_path
from minigpt.data.in_place import read_tokens, tokenizer_of
from minigpt.data.make import FORMAT, UNITS, encode, learn, seal, stored_tokenizer
from minigpt.data.measures.overlap import measured_lines
from minigpt.data.mix import MixedSplit, short_names
from minigpt.data.packing import ConversationSplit
from minigpt.data.progress import CONTROL_PICTURES, Progress, Say, moving_line, size_text, tell
from minigpt.data.readers import NAMES, READERS
from minigpt.data.readers.document import pattern_of
from minigpt.data.remote import RemoteFolder, RemoteSplit, pieces_of
from minigpt.data.roles import with_roles
from minigpt.data.shards import TokenSplit, fingerprint, read_sidecar
from minigpt.data.survey import Survey, signature, survey
from minigpt.data.suspicious import suspicious
from minigpt.data.tasks import VERSION
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer, read_tokenizer_json, scheme_of
from minigpt.data.units import missing_units
from minigpt.faults import StorageFailure, UserFault
from minigpt.process.allocator import give_back_large_blocks
from minigpt.rundir.files import lock, read_json, write_json

REMOTE = "remote"  # below data.dir: what is here of tokens at URLs
CONVERSATIONS = ("chat", "tasks")  # data.name
MARKED_UP = {".json", ".csv", ".tsv", ".html", ".htm", ".xml", ".ipynb"}  # text, but more than that


class DamagedShards(UserFault):
    """Prepared tokens that are not what was written."""

    def __init__(self, folder: Path, what: str):
        self.folder, self.what = folder, what
        super().__init__(f"{what}. minigpt prepare with the same keys makes it again")


class UnfinishedParts(Exception):
    """One part of the units is made (`prepare.part`), others are not."""

    def __init__(self, part: str, missing: int, units: int):
        rest = f"{missing:,} of {units:,} units are still to be made by other parts; the last of them ends the work"
        super().__init__(f"part {part} is done: {rest}")


@dataclass(frozen=True)
class Prepared:
    """Tokens ready for training."""

    folder: Path
    tokenizer: Tokenizer
    train: TokenSplit | MixedSplit | RemoteSplit | ConversationSplit
    val: TokenSplit | MixedSplit | ConversationSplit
    fingerprint: str  # SHA-256 (hex) of the tokenizer and of all tokens
    summary: dict[str, Any]  # what was read and made, as JSON
    rule: str = "tail"  # content, where whole documents were asked for; what a run keeps (minigpt/data/split.py)
    parts: "dict[str, Prepared]" = field(default_factory=dict)  # the sources of a mixture, by their names

    @property
    def facts(self) -> dict[str, Any]:
        """What a run keeps of its tokens, to know them again (see `open_prepared`)."""
        facts: dict[str, Any] = {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer.hash}
        facts |= {"split": self.rule} if self.rule != "tail" else {}  # as runs of versions up to 0.1.0 have it
        if isinstance(self.train, MixedSplit):
            shares = self.train.shares.items()
            facts["mix"] = {
                name: {"fingerprint": self.parts[name].fingerprint, "share": share} for name, share in shares
            }
        return facts


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

    Safe to run in several processes at once: one makes, the others wait and find. Killed at any point and run
    again it goes on where it was, and gives the same bytes.

    Args:
        data: the corpus and data.dir.
        tokenizer: name and vocabulary size.
        given: a tokenizer to use instead of learning one from this text.
        rule: of the tokens that a run began with; without one, that of new tokens.
        work: how it is shared out; all cores of this machine if None.
        say: takes lines for the user.

    Raises:
        UserFault: the text or the keys are at fault; nothing is left that could be mistaken for prepared tokens.
        DamagedShards: they were prepared, but a file was changed or lost since.
        StorageFailure: data.dir can't be written, or is too small.
        UnfinishedParts: with `work.part`, while other parts are still to be made.
    """
    give_back_large_blocks()
    if data.mix:
        return _prepare_mix(data, tokenizer, given=given, work=work, say=say)
    if data.shards is not None:
        return _open_remote(data, tokenizer, say)
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
        return _open(newest, say)
    try:
        corpus = find_corpus(data, raw=scheme.takes_any_bytes, say=say)
    except SourceGone as fault:
        if not newest:
            raise
        say(f"data: {fault}. Using the tokens prepared from it earlier")
        return _open(newest, say)
    formats = sorted({file.suffix for file in corpus.files} & READERS.keys())
    formats = ["tokens"] if corpus.holds_tokens else formats
    keys |= {"formats": formats} if formats else {}  # other than plain text
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
            return _open(folder, say)
    for folder in older:
        say(f"data: {folder} is split by the rule of versions up to 0.1.0; it stays for the runs that began with it")
    for line in _listing(corpus):
        say(f"data: {line}")
    # A vocabulary that can't be had is a fault to name before gigabytes are read.
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
    _find_or_make(folder, keys, found, given=ready, work=work or WorkConfig(), say=say)
    return _open(folder, say)


def _prepare_mix(
    data: DataConfig, tokenizer: TokenizerConfig, *, given: Tokenizer | None, work: WorkConfig | None, say: Say
) -> Prepared:
    """Prepare each source of a mixture, with the tokenizer of the first for all."""
    parts: dict[str, Prepared] = {}
    for name, source in short_names(data.mix).items():
        folder = typed_path(source)
        if (folder / "prepared.json").is_file():
            _refuse_conversations(_read_prepared(folder), f"data.mix: {name}")
            try:
                part = _open(folder, say)
            except DamagedShards as fault:  # somebody's own: `mend` is not to make it anew from what is left
                remedy = f"Copy {folder} again from where it was made, or make it again there"
                raise UserFault(f"{fault.what}. {remedy}") from None
        else:
            corpus: Any = source if source in ("stdlib", "shakespeare_char") else "text"
            alone = replace(data, name=corpus, source=source if corpus == "text" else None, mix={})
            fixed = not scheme_of(tokenizer.name).is_learned and tokenizer.name != "file"
            fixed &= given is None or not given.control
            part = prepare(alone, tokenizer, given=None if fixed else given, work=work, say=say)
        given = given or part.tokenizer
        if part.tokenizer.hash != given.hash:
            raise UserFault(
                f"data.mix: {name} holds tokens of a {part.tokenizer.name} tokenizer, SHA-256 "
                f"{part.tokenizer.hash[:12]}, and the first source has another, {given.name}, {given.hash[:12]}. "
                "Name its text instead, or prepare both with one tokenizer"
            )
        parts[name] = part
    if part.tokenizer.name != tokenizer.name:
        theirs = part.tokenizer.name
        raise UserFault(f"data.mix holds tokens of tokenizer={theirs}, got tokenizer={tokenizer.name}. Type the former")
    return _mix(parts, dict(zip(parts, data.mix.values(), strict=True)))


def _mix(parts: dict[str, Prepared], shares: dict[str, float]) -> Prepared:
    """The sources of a mixture as one."""
    train, val = (
        MixedSplit({name: getattr(part, split) for name, part in parts.items()}, shares) for split in ("train", "val")
    )
    first = next(iter(parts.values()))
    whole = fingerprint([train.fingerprint, val.fingerprint, *map(str, train.quotas)])
    return Prepared(first.folder.parent, first.tokenizer, train, val, whole, {"corpus": "mix"}, parts=parts)


def _open_remote(data: DataConfig, tokenizer: TokenizerConfig, say: Say) -> Prepared:
    """Copy what a prepared folder at a URL holds but for its training tokens, and open it."""
    remote, root = RemoteFolder(str(data.shards)), typed_path(data.dir) / REMOTE
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as new:
            remote.copy("prepared.json", Path(new))
            content = _read_prepared(Path(new))
            if not re.fullmatch("[0-9a-f]{64}", str(content.get("fingerprint"))):
                raise UserFault(
                    f"data.shards={remote.shown} is no folder that `minigpt prepare` has made: copy one there"
                )
            _refuse_conversations(content, f"data.shards={remote.shown}")
            folder = root / content["fingerprint"][:16]  # found again from another address
            folder.mkdir(exist_ok=True)
            pieces_of(folder).mkdir(exist_ok=True)
            with _locked(folder, say):
                if not _read_prepared(folder):
                    say(f"data: fetching tokenizer and validation text from {remote.shown} to {folder}")
                    _copy_beginning(remote, folder)
                    os.replace(Path(new) / "prepared.json", folder / "prepared.json")
    except OSError as error:
        wrong = f"{error.filename or root} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Make room or choose another folder: data.dir=DIR") from error
    found = _open(folder, say, remote=remote, limit_bytes=1e9 * data.cache_gb)
    if found.tokenizer.name != tokenizer.name:
        theirs = found.tokenizer.name
        raise UserFault(
            f"data.shards holds tokens of tokenizer={theirs}, got tokenizer={tokenizer.name}. Type the former"
        )
    return found


def _refuse_conversations(content: Mapping[str, Any], place: str) -> None:
    """Refuse prepared conversations where all tokens would be learned, not the answers alone."""
    if content.get("keys", {}).get("corpus") in CONVERSATIONS:
        raise UserFault(
            f"{place} holds conversations, and what of them is learned is known to data=chat alone. Give it the rows "
            "that they were made from: data=chat data.source=FILE"
        )


def _copy_beginning(remote: RemoteFolder, folder: Path) -> None:
    for name in ("tokenizer.json", "train.json", "val.json"):
        remote.copy(name, folder)
    tokenizer = load_tokenizer(read_json(folder / "tokenizer.json"), folder / "tokenizer.json")
    for entry in read_sidecar(folder, "val", tokenizer)["shards"]:
        remote.copy(entry["file"], folder)


def _listing(corpus: Corpus) -> list[str]:
    """What is left out, and what will be read as what."""
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
    """How to keep a split that somebody made, where the names of the files show one."""
    paths = {file.label: str(file.path) for file in corpus.files if corpus.rule == "content"}
    for word in ("valid", "validation", "val", "dev"):
        named = {label: label.replace("train", word) for label in paths if "train" in label}
        found = {label: other for label, other in named.items() if other in paths}
        if 0 < len(found) <= 3:
            val = shlex.quote(",".join(map(paths.__getitem__, found.values())))
            tests = ",".join(pattern_of(test) for label in found if (test := label.replace("train", "test")) in paths)
            more = f" data.exclude={shlex.quote(tests)}" if tests else ""
            yield f"{val} looks like a split that somebody made. To validate on it: data.val_source={val}{more}"


def _find_or_make(
    folder: Path, keys: dict[str, Any], found: Survey, *, given: Tokenizer | None, work: WorkConfig, say: Say
) -> None:
    """See that `folder` holds the tokens of a source that has been read.

    Raises:
        UnfinishedParts: this part is done, others are not.
    """
    content = _read_prepared(folder)
    if content:  # touched or copied, but the same text
        with contextlib.suppress(OSError):  # a folder for reading only: the source is read again next time, no more
            write_json(folder / "prepared.json", content | {"signature": found.signature})
        return
    try:
        (folder / UNITS).mkdir(parents=True, exist_ok=True)
        with _locked(folder, say, shared=bool(work.part)) as file:
            if _read_prepared(folder):
                return
            tokenizer = stored_tokenizer(folder)
            if tokenizer is None:
                with open(folder / UNITS / ".learn", "ab") as learning:
                    lock(learning)  # of several parts one learns; the others wait for that, not for its units
                    tokenizer = stored_tokenizer(folder) or learn(folder, keys, found, given=given, say=say)
            making = encode(folder, found, keys["val_fraction"], tokenizer, work=work, say=say)
            with contextlib.closing(making):
                identities: Iterable[str] = making  # of units that are put together while later ones are encoded
                if work.part:
                    identities = list(making)
                    if missing := missing_units(folder / UNITS, identities):
                        raise UnfinishedParts(work.part, len(missing), len(identities))
                    lock(file, fcntl.LOCK_UN)  # two that keep a shared lock would wait for each other on NFS
                    lock(file)
                if not _read_prepared(folder):  # which of the last parts is first, puts the units together
                    seal(folder, keys, found, tokenizer=tokenizer, identities=identities, say=say)
    except OSError as error:
        if _read_prepared(folder):  # where there are no locks, another process was faster
            return
        wrong = f"{error.filename or folder} can't be written: {error.strerror or error}"
        remedy = f"Make room (up to {2 * found.bytes / 1e6:,.1f} MB are needed) or choose another folder: data.dir=DIR"
        raise StorageFailure(f"{wrong}. {remedy}") from error


@contextlib.contextmanager
def _locked(folder: Path, say: Say, *, shared: bool = False) -> Iterator[IO]:
    """Let one process (or the parts of one work) at a time into `folder`; the system frees the lock of one that dies.

    Yields:
        The locked file.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with open(folder / ".lock", "a+b") as file:
        try:
            alone = lock(file, kind | fcntl.LOCK_NB)  # without locks all write the same bytes, then rename
        except BlockingIOError:
            say(f"data: another process is preparing {folder}; waiting for it")
            alone = lock(file, kind)
        for left_over in folder.rglob("*.tmp") if alone and not shared else ():  # of a process that was killed
            left_over.unlink(missing_ok=True)
        yield file


def _tokenizer_of_file(config: TokenizerConfig) -> Tokenizer:
    if config.file is None:
        raise UserFault("tokenizer=file needs the tokenizer. Add tokenizer.file=PATH of a tokenizer.json")
    return read_tokenizer_json(typed_path(config.file), config.eot)


def require_vocabulary(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Name a vocabulary that is not learned and can't be had (GPT-2's) before anything slow is loaded: torch, text.

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


def open_prepared(data_dir: str, facts: Mapping[str, Any], named: Iterable[str] = ()) -> Prepared | None:
    """Return tokens that were prepared before, by what a run keeps of them. Nothing is made, and no text is read.

    Args:
        data_dir: where they are.
        facts: what the run keeps (see `Prepared.facts`).
        named: the sources of its mixture, among them folders that were prepared elsewhere.

    Raises:
        DamagedShards: they are there, but a file was changed or lost since.
    """
    if mix := facts.get("mix"):
        found = {name: open_prepared(data_dir, part, named) for name, part in mix.items()}
        parts = {name: part for name, part in found.items() if part is not None}
        return _mix(parts, {name: part["share"] for name, part in mix.items()}) if len(parts) == len(mix) else None
    root = typed_path(data_dir)
    here = [*sorted(root.glob("*/prepared.json")), *sorted(root.glob(f"{REMOTE}/*/prepared.json"))]
    for folder in [*map(typed_path, named), *(path.parent for path in here)]:
        if _read_prepared(folder).get("fingerprint") == str(facts.get("fingerprint")):
            return _open(folder)
    return None


def describe(prepared: Prepared) -> list[str]:
    """The summary as lines for the terminal."""
    if isinstance(prepared.train, MixedSplit):
        lines = []
        for name, part in prepared.parts.items():
            share = f"mix        {prepared.train.shares[name]:.2%} of the training windows are of {name}"
            lines += [share, *describe(part), ""]
        return lines[:-1]
    lines = [*_lines(prepared.summary, prepared.tokenizer.hash), f"kept in    {prepared.folder}"]
    return [line.translate(CONTROL_PICTURES) for line in lines]  # a summary from a URL is somebody's text


def _lines(summary: dict[str, Any], tokenizer_hash: str) -> list[str]:
    python = f", Python {summary['python']}" if summary.get("python") else ""
    train, val = summary["train"], summary["val"]
    return [
        f"corpus     {summary['corpus']}{python}: {summary['documents']:,} documents, {summary['bytes']:,} bytes, "
        f"{summary['characters']:,} characters",
        f"SHA-256    {summary['sha256']}",
        f"tokenizer  {summary['tokenizer']}, {summary['vocab_size']:,} tokens, SHA-256 {tokenizer_hash[:12]}",
        f"train      {train['tokens']:,} tokens of {train['bytes']:,} bytes "
        f"({train['bytes'] / train['tokens']:.2f} bytes per token)",
        f"validation {val['tokens']:,} tokens of {val['bytes']:,} bytes: {summary['split']}",
        *(f"{name:<10} {line}" for name, line in measured_lines(summary)),
        *(f"note       {note}" for note in summary["notes"]),
    ]


def _keys(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """What decides the tokens besides the text itself."""
    scheme = scheme_of(tokenizer.name, tokenizer.vocab_size)
    text = data.name in ("text", "chat")
    new = {"key": "text", "include": None, "exclude": None}  # named where they differ: older tokens don't have them
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
    """Folders prepared with these keys, whatever the formats of the files, and their prepared.json; newest first.

    With a rule, only those that were split by it.
    """
    found = {}
    for path in sorted(root.glob("*/prepared.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        content = _read_prepared(path.parent)
        theirs = content.get("keys", {})
        own = {key: value for key, value in theirs.items() if key not in ("formats", "split")}
        if own == keys and rule in (None, theirs.get("split", "tail")):
            found[path.parent] = content
    return found


def _read_prepared(folder: Path) -> dict[str, Any]:
    """What a folder's prepared.json holds; nothing if it is unfinished work or damaged."""
    try:
        content: dict[str, Any] = read_json(folder / "prepared.json")
        _lines(content["summary"], "")  # can be shown
        return content if content["format"] == FORMAT and isinstance(content["keys"], dict) else {}
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return {}


def _open(
    folder: Path, say: Say = lambda line: None, *, remote: RemoteFolder | None = None, limit_bytes: float = 0.0
) -> Prepared:
    path, content = folder / "tokenizer.json", _read_prepared(folder)
    try:
        tokenizer = load_tokenizer(read_json(path), path)
        train: TokenSplit | RemoteSplit | ConversationSplit
        val: TokenSplit | ConversationSplit
        if pieces_of(folder).is_dir():
            train = RemoteSplit(remote, folder, "train", tokenizer=tokenizer, limit_bytes=limit_bytes)
        else:
            train = TokenSplit(folder, "train", tokenizer=tokenizer)
        val = TokenSplit(folder, "val", tokenizer=tokenizer)
        if content["keys"].get("corpus") in CONVERSATIONS and isinstance(train, TokenSplit):
            train, val = ConversationSplit(train, tokenizer), ConversationSplit(val, tokenizer)
        whole = fingerprint([train.fingerprint, val.fingerprint])
        if content.get("fingerprint") != whole:
            raise UserFault(f"{folder / 'prepared.json'} belongs to other tokens than those beside it")
    except UserFault as fault:
        raise DamagedShards(folder, str(fault)) from None
    if (folder / UNITS).is_dir():
        shutil.rmtree(folder / UNITS, ignore_errors=True)  # of a process that was killed at the very end, too
    rule = content["summary"]["split"]
    say(f"data: {folder}: {len(train):,} tokens to train on, {len(val):,} to validate on ({rule})")
    return Prepared(folder, tokenizer, train, val, whole, content["summary"], content["keys"].get("split", "tail"))


def _folder_name(keys: dict[str, Any], sha256: str) -> str:
    corpus = keys["corpus"]
    if keys["source"]:
        corpus = "text-" + re.sub(r"[^A-Za-z0-9._-]+", "_", Path(keys["source"]).name)[:40]
    size = keys["vocab_size"] or ""
    return f"{corpus}-{keys['tokenizer']}{size}-{fingerprint([json.dumps(keys, sort_keys=True), sha256])[:10]}"
