"""Rules of the text, its tokenizer, and preparing it."""

import glob
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping

from minigpt.config.convert import shown
from minigpt.config.rules.rule import NOTES, from_here, rule
from minigpt.config.sources import at, is_url, missing, name_of
from minigpt.files import read_plain

MIN_SHARE = 1e-4  # of a source in a mixture


@rule("data.shards", "data.mix", "data.source", "data.val_source")
def shards_are_all(
    shards: str | None, mix: Mapping[str, float], source: str | None, val_source: str | None
) -> Iterator[str]:
    for key, value in {"mix": mix, "source": source, "val_source": val_source}.items():
        if shards is not None and value:
            yield f"data.shards holds text and validation text, and would ignore data.{key}. Leave one out."
    if shards is not None and not is_url(shards):
        yield f"data.shards={shown(shards)} is no URL. Of a folder on this machine: data.mix={shown(shards)[1:-1]}:1."


@rule("data.name", "data.source", "data.dir", "data.mix", "data.shards")
def source_is_there(
    name: str, source: str | None, folder: str, mix: Mapping[str, float], shards: str | None
) -> Iterator[str]:
    if shards is not None:
        return
    if mix:
        if source is not None:
            yield f"data.mix names its sources itself and would ignore data.source={shown(source)}. Leave one out."
    elif not source:
        if name == "text":
            yield "data=text needs your text. Add data.source=FILE_OR_DIR."
        elif name == "chat":
            yield "data=chat needs your conversations. Add data.source=FILE_OR_DIR of JSON lines."
        elif source == "":
            yield "data.source is empty. Give a file or folder, or leave it out."
    elif name in ("stdlib", "tasks"):
        yield f"data={name} would ignore data.source={shown(name_of(source))}. To train on your text, add data=text."
    elif missing(source) and not _was_prepared(source, folder):
        for place in missing(source):
            yield f"data.source={shown(place)} does not exist{from_here(place)}. Give an existing file or folder."
    elif name == "shakespeare_char" and os.path.isdir(at(source)):
        yield f"data=shakespeare_char reads one file, got the folder data.source={shown(source)}."


@rule("tokenizer.name", "tokenizer.file", "tokenizer.eot")
def tokenizer_file_is_used(name: str, file: str | None, eot: str | None) -> Iterator[str]:
    if name != "file":
        for key, value in (("file", file), ("eot", eot)):
            if value is not None:
                yield f"tokenizer={name} would ignore tokenizer.{key}={shown(value)}. To use it, add tokenizer=file."
    elif file is not None and not os.path.isfile(at(file)):
        yield f"tokenizer.file={shown(file)} is not a file{from_here(file)}. Give a tokenizer.json."


@rule("data.mix", "data.dir", "data.val_source")
def sources_of_the_mix_are_there(mix: Mapping[str, float], folder: str, val_source: str | None) -> Iterator[str]:
    if mix and val_source is not None:
        yield "data.mix validates on a part of each source and would ignore data.val_source. Leave it out."
    wrong = [source for source, share in mix.items() if not share > 0]
    for source in wrong:
        yield f"data.mix gives {shown(name_of(source))} the share {mix[source]:g}; wanted a number above 0."
    for source, share in mix.items():
        if not wrong and share < MIN_SHARE * sum(mix.values()):
            yield f"data.mix gives {shown(name_of(source))} less than {MIN_SHARE:g} of the whole. Leave it out."
        if source not in ("stdlib", "shakespeare_char") and missing(source) and not _was_prepared(source, folder):
            yield f"data.mix: {shown(source)} does not exist{from_here(source)}. Give a file or a folder."


@rule("data.mask_documents", "tokenizer.name")
def documents_have_ends(mask_documents: bool, tokenizer: str) -> Iterator[str]:
    if mask_documents and tokenizer == "char":
        yield "data.mask_documents=true needs an end-of-text token, and tokenizer=char has none. Use tokenizer=byte."


@rule("data.name", "tokenizer.name", "data.mask_documents", "data.mix", "data.shards")
def conversations_have_roles(
    name: str, tokenizer: str, mask_documents: bool, mix: Mapping[str, float], shards: str | None
) -> Iterator[str]:
    if name not in ("chat", "tasks"):
        return
    if tokenizer == "char":
        yield f"data={name} needs control tokens, and tokenizer=char has none. Use tokenizer=byte."
    if not mask_documents:
        yield f"data={name} keeps conversations apart, got data.mask_documents=false. Use data.mask_documents=true."
    for key, value in {"mix": mix, "shards": shards}.items():
        if value:
            yield f"data={name} has conversations of its own and would ignore data.{key}. Leave one out."


@rule("data.name", "data.mask_documents", "samples.every_steps", "samples.prompt", into=NOTES)
def samples_begin_with_text(name: str, mask_documents: bool, every_steps: int, prompt: str) -> Iterator[str]:
    if mask_documents and every_steps and not prompt and name not in ("chat", "tasks"):
        learned = "with data.mask_documents=true nothing is learned about what follows end-of-text"
        yield f"Live samples begin with end-of-text, and {learned}. Try samples.prompt=TEXT."


@rule("data.name", "data.val_source", "data.dir")
def validation_text_is_there(name: str, source: str | None, folder: str) -> Iterator[str]:
    if source is None:
        return
    if name not in ("text", "chat"):
        given = f"data.val_source={shown(name_of(source))}"
        yield f"data={name} has its own validation split and would ignore {given}. For your own text, add data=text."
    elif not source:
        yield "data.val_source is empty. Give a file or folder, or leave it out."
    elif missing(source) and not _was_prepared(source, folder, "val_source"):
        for place in missing(source):
            yield f"data.val_source={shown(place)} does not exist{from_here(place)}. Give an existing file or folder."


def _was_prepared(source: str, folder: str, key: str = "source") -> bool:
    """Return whether tokens of a text that is gone are still kept: training goes on with them."""
    wanted = name_of(source)
    for path in glob.glob(os.path.join(glob.escape(at(folder)), "*", "prepared.json")):
        try:
            if json.loads(read_plain(path))["keys"][key] == wanted:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


@rule("data.val_source", "data.val_fraction", into=NOTES)
def fraction_is_used(val_source: str | None, val_fraction: float) -> Iterator[str]:
    if val_source is not None and val_fraction != 0.1:
        yield f"data.val_fraction={val_fraction:g} is not used: the validation text is data.val_source."


@rule("prepare.engine", "ray.address")
def ray_is_here(engine: str, address: str | None) -> Iterator[str]:
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        yield f"prepare.engine=ray needs the package 'ray'. Type: {sys.executable} -m pip install ray"
    if engine != "ray" and address is not None:
        yield f"ray.address={shown(address)} is for prepare.engine=ray. Add it, or leave the address out."


@rule("data.mix", "prepare.part", "prepare.slurm")
def parts_are_of_one_source(mix: Mapping[str, float], part: str | None, slurm: int) -> Iterator[str]:
    if mix and (part is not None or slurm):
        remedy = "Prepare each source alone with tokenizer=gpt2 or tokenizer=file, then the mixture without parts"
        yield f"prepare.part and prepare.slurm are for one source, got data.mix with {len(mix)}. {remedy}."


@rule("prepare.part")
def parts_are_counted(part: str | None) -> Iterator[str]:
    if part is not None:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            yield f"prepare.part={shown(part)} is no part; wanted i/n with i from 1 to n: prepare.part=1/16."


@rule("data.encoding")
def encoding_is_known(encoding: str) -> Iterator[str]:
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        yield f"data.encoding={shown(encoding)} is not a text encoding that Python knows. Use utf-8, latin-1 ..."
