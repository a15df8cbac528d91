"""Find prepared tokens, or make them: corpus -> tokenizer -> shards, kept under data.dir.

What is kept: `DIR/<corpus>-<tokenizer>-<hash>/` with tokenizer.json, the shards of train and val, their sidecars,
and prepared.json, written last: without it the folder is unfinished work, which the next command completes, to the
same bytes. The hash covers the keys (corpus, path, encoding, split, tokenizer) and the names, sizes and times of the
files, so a source that changed gets a folder of its own.
"""

import contextlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.config.sources import address_hash, display_name
from minigpt.data.chat.roles import with_roles
from minigpt.data.chat.tasks import VERSION
from minigpt.data.measures.overlap import measured_lines, overlap
from minigpt.data.prepared import (
    CONVERSATIONS,
    FORMAT,
    DamagedShards,
    Prepared,
    locked,
    mixed,
    open_folder,
    read_prepared,
)
from minigpt.data.preparing.make import make
from minigpt.data.shards import fingerprint
from minigpt.data.sources.corpus import find_corpus, look_inside
from minigpt.data.sources.download import SourceGone
from minigpt.data.sources.find import typed_path
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, read_tokenizer_json, scheme_of
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import read_json, write_json
from minigpt.screen import Say, moving_line, tell


@moving_line()
def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    given: Tokenizer | None = None,
    work: WorkConfig | None = None,
    say: Say = tell,
) -> Prepared:
    """Find the tokens that these keys stand for, or make them.

    Several processes may run this at once: one makes the tokens, the others wait and find them. Killed at any point and
    run again, it continues, and gives the same bytes.

    Args:
        data: the corpus and data.dir.
        tokenizer: name and vocabulary size.
        given: a tokenizer to use instead of learning one from this text.
        work: how the work is shared out; None: over all cores of this machine.
        say: takes lines for the user.

    Raises:
        UserFault: the text or the keys are at fault; nothing is left that could be mistaken for prepared tokens.
        StorageFailure: data.dir can't be written.
    """
    if data.mix:
        return _prepare_mix(data, tokenizer, given, work, say)
    scheme = scheme_of(tokenizer.name, tokenizer.vocab_size)
    if given is None and tokenizer.name == "file":
        if tokenizer.file is None:
            raise UserFault("tokenizer=file needs the tokenizer. Add tokenizer.file=PATH of a tokenizer.json")
        given = read_tokenizer_json(typed_path(tokenizer.file), tokenizer.eot)
    is_chat, is_fixed = data.name in CONVERSATIONS, not scheme.is_learned and tokenizer.name != "file"
    if given is not None and is_fixed and (is_chat or not given.control):
        given = None  # its tokens are those without it, in the same folder
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
                return open_folder(folder, say)
            say(f"data: {folder} has lost a file, or one was changed; preparing it anew")
            (folder / "prepared.json").unlink(missing_ok=True)
        elif newest:
            say(f"data: the source changed since {newest} was prepared; preparing it anew")
        corpus = look_inside(corpus, say)
        for line in corpus.description():
            say(f"data: {line}")
        if given is None and not scheme.is_learned:  # fetched, perhaps, before gigabytes are read
            given = build_tokenizer(tokenizer.name)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, say):
            if not read_prepared(folder):
                make(folder, keys, corpus, given, work=work or WorkConfig(), say=say)
        return open_folder(folder, say)
    except SourceGone as fault:
        if newest is None:
            raise
        say(f"data: {fault}. Using the tokens prepared from it earlier")
        return open_folder(newest, say)
    except OSError as error:
        wrong = f"{error.filename or root} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Make room or choose another folder: data.dir=DIR") from error


def _prepare_mix(
    data: DataConfig, tokenizer: TokenizerConfig, given: Tokenizer | None, work: WorkConfig | None, say: Say
) -> Prepared:
    """Prepare each source of a mixture, with the tokenizer of the first for all."""
    parts: dict[str, Prepared] = {}
    for name, source in short_names(data.mix).items():
        folder = typed_path(source)
        if (folder / "prepared.json").is_file():
            if read_prepared(folder).get("keys", {}).get("corpus") in CONVERSATIONS:
                raise UserFault(f"data.mix: {name} holds conversations. Name their rows: data=chat data.source=FILE")
            part = open_folder(folder, say)
        else:
            corpus: Any = source if source in ("stdlib", "shakespeare_char") else "text"
            alone = replace(data, name=corpus, source=source if corpus == "text" else None, mix={})
            part = prepare(alone, tokenizer, given=given, work=work, say=say)
        given = given or part.tokenizer
        if part.tokenizer.hash != given.hash or given.name != tokenizer.name:
            got, wanted = (f"{tokens.name}, SHA-256 {tokens.hash[:12]}" for tokens in (part.tokenizer, given))
            raise UserFault(
                f"data.mix: {name} holds tokens of the tokenizer {got}; the first source has {wanted}, and "
                f"tokenizer={tokenizer.name} is set. Name its text instead, or prepare all with one tokenizer"
            )
        parts[name] = part
    mixture = mixed(parts, dict(zip(parts, data.mix.values(), strict=True)))
    tokens = fingerprint([mixture.train.fingerprint, mixture.val.fingerprint])
    path = typed_path(data.dir) / f"mix-{tokens[:10]}.json"
    if not path.is_file():
        write_json(path, overlap(mixture.train, mixture.val))
    mixture.summary["overlap"] = read_json(path)
    for name, line in measured_lines(mixture.summary):
        say(f"data: {name}: {line}")
    return mixture


def short_names(sources: Mapping[str, float]) -> dict[str, str]:
    """Return the sources of a mixture by short names, which rows and the screen use."""
    names = [re.sub(r"[^\w.+-]+", "-", Path(source.rstrip("/")).stem).strip("-.") or "source" for source in sources]
    if len({*names}) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    return dict(zip(names, sources, strict=True))


def _keys(data: DataConfig, tokenizer: TokenizerConfig, given: Tokenizer | None) -> dict[str, Any]:
    """Return all that decides the tokens besides the text itself."""
    scheme, has_source = scheme_of(tokenizer.name, tokenizer.vocab_size), data.name in ("text", "chat")
    val_source = display_name(data.val_source) if has_source and data.val_source is not None else None
    own = {key: getattr(data, key) for key in ("key", "include", "exclude", "separator", "encoding", "errors")}
    return {
        "format": FORMAT,
        "corpus": data.name,
        "source": display_name(data.source) if has_source and data.source else None,
        "val_source": f"tasks {VERSION}" if data.name == "tasks" else val_source,
        "address": address_hash(f"{data.source} {data.val_source}") if has_source else "",
        "python": platform.python_version() if data.name == "stdlib" else None,
        "reading": own if has_source else None,
        "val_fraction": 0.0 if val_source is not None or data.name == "tasks" else data.val_fraction,
        "tokenizer": tokenizer.name,
        "vocab_size": given.vocab_size if given else tokenizer.vocab_size if scheme.min_vocab_size else None,
        "given": given.hash if given else None,
    }


def _folder_name(keys: dict[str, Any], signature: str) -> str:
    corpus = keys["corpus"]
    if keys["source"]:
        corpus = "text-" + re.sub(r"[^A-Za-z0-9._-]+", "_", Path(keys["source"]).name)[:40]
    size = keys["vocab_size"] or ""
    return f"{corpus}-{keys['tokenizer']}{size}-{fingerprint([json.dumps(keys, sort_keys=True), signature])[:10]}"
