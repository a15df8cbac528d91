"""Rules of the other commands: sample, chat, export, evaluate, serve and sweep."""

import glob
import importlib.util
import ipaddress
import os
import re
import sys
from collections.abc import Iterator

from minigpt.config.convert import shown
from minigpt.config.rules.rule import from_here, not_there, rule
from minigpt.config.sources import at, there
from minigpt.invocation import typed


@rule("checkpoint")
def checkpoint_is_there(given: str | list[str] | None) -> Iterator[str]:
    runs = [path for path in glob.glob("runs/*") if os.path.isdir(path)]
    remedy = f"Try checkpoint={max(runs, key=os.path.getmtime)}" if runs else f"Train one first: {typed('train')}"
    for checkpoint in given if isinstance(given, list) else [given or ""]:
        if checkpoint:
            yield from not_there("checkpoint", checkpoint, remedy)
    if not given or given == [""]:
        yield f"checkpoint is missing. Give checkpoint=RUN_OR_CHECKPOINT_DIR. {remedy}"


@rule("versus")
def other_checkpoint_is_there(versus: str | None) -> Iterator[str]:
    if versus is not None:
        yield from not_there("versus", versus, "Give a run or checkpoint directory.")


@rule("adapter")
def adapters_are_there(given: str | list[str] | None) -> Iterator[str]:
    for adapter in [given] if isinstance(given, str) else given or []:
        if not there(adapter):
            yield f"adapter={shown(adapter)} does not exist{from_here(adapter)}. Give a run with adapter=lora."


@rule("device", "precision")
def sample_precision_fits_device(device: str, precision: str) -> Iterator[str]:
    if device == "mps" and precision == "fp64":
        yield "device=mps has no fp64. Use precision=fp32 or device=cpu."


@rule("samples.prompt")
@rule("prompt")
def prompts_are_text(prompts: list[str] | str) -> Iterator[str]:
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        bad = re.search("[\ud800-\udfff]", prompt)
        if bad:
            where = f"not valid UTF-8 at position {bad.start()}"
            yield f"The prompt {shown(prompt)} is {where}. Put it in a UTF-8 file: prompt_file="


@rule("prompt_file")
def prompt_file_is_there(prompt_file: str | None) -> Iterator[str]:
    if prompt_file is not None and not os.path.isfile(at(prompt_file)):
        yield f"prompt_file={shown(prompt_file)} is not a file{from_here(prompt_file)}. Give a text file."


@rule("stop")
def stops_are_not_empty(stop: list[str]) -> Iterator[str]:
    if "" in stop:
        yield "stop holds an empty string, which would end every text at once. Remove it."


@rule("format", "dir")
def exports_are_possible(form: str, folder: str | None) -> Iterator[str]:
    if form == "gguf" and importlib.util.find_spec("gguf") is None:
        yield (
            f"format=gguf needs the Python package 'gguf', which {sys.executable} lacks. "
            f"Type: {sys.executable} -m pip install gguf"
        )
    if folder and os.path.lexists(os.path.expanduser(folder)):
        yield f"dir={shown(folder)} is there already, and an export overwrites nothing. Give a new folder."


@rule("file", "questions")
def files_to_score_are_there(files: list[str], questions: list[str]) -> Iterator[str]:
    if not files and not questions:
        yield "There is nothing to score. Give file=TEXT or questions=FILE.jsonl."
    for key, path in (*(("file", each) for each in files), *(("questions", each) for each in questions)):
        if not os.path.isfile(at(path)):
            yield f"{key}={shown(path)} is not a file{from_here(path)}. Give a file."


@rule("file", "questions", "json", "per_token")
def results_have_files_of_their_own(
    files: list[str], questions: list[str], json: str | None, per_token: str | None
) -> Iterator[str]:
    taken = {os.path.realpath(at(path)) for path in (*files, *questions)}
    for key, path in (("json", json), ("per_token", per_token)):
        if path is not None:
            place = os.path.realpath(os.path.expanduser(path))
            odd = os.path.exists(place) and not os.path.isfile(place)  # a folder, /dev/null, a pipe
            if not path or odd or not os.path.isdir(os.path.dirname(place)):
                yield f"{key}={shown(path)} is no file in an existing folder{from_here(path)}. Give another name."
            elif place in taken:
                yield f"{key}={shown(path)} is a file that is used already. Give another name."
            taken.add(place)
    if per_token is not None and not files:
        yield "per_token= is for texts. Give file=TEXT, or leave it out."


@rule("host", "token_file")
def server_is_possible(host: str, token_file: str | None) -> Iterator[str]:
    if lacking := [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]:
        yield (
            f"serve needs the Python packages fastapi and uvicorn; {sys.executable} lacks {' and '.join(lacking)}. "
            f"Type: {sys.executable} -m pip install fastapi uvicorn"
        )
    if token_file is not None and not os.path.isfile(at(token_file)):
        yield f"token_file={shown(token_file)} is not a file{from_here(token_file)}. Give a file that holds the token."
    elif not is_loopback(host) and token_file is None and not os.environ.get("MINIGPT_TOKEN"):
        remedy = "Put one into a file, token_file=FILE, or into the environment variable MINIGPT_TOKEN."
        yield f"host={shown(host)} can be reached from other machines, so clients must show a token. {remedy}"


@rule("hosts", "origins")
def names_are_names(hosts: list[str], origins: list[str]) -> Iterator[str]:
    for host in hosts:
        if not re.fullmatch(r"(\*\.)?[\w.:\[\]-]+", host):
            yield f"hosts={shown(host)} is no name of a host. Write hosts=example.org, without https:// and port."
    for origin in origins:
        if not re.fullmatch(r"https?://[^/]+", origin):
            yield f"origins={shown(origin)} is no origin. Write origins=https://example.org, without a path."


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own, which no other machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@rule("sweep.storage")
def storage_is_a_url(storage: str | None) -> Iterator[str]:
    if storage is not None and not re.match(r"[a-z][\w+]*://.", storage):
        remedy = "Write sqlite:///FILE or postgresql://USER@HOST/DATABASE, or leave it out for a file in sweep.dir."
        yield f"sweep.storage={shown(storage)} is not the URL of a database. {remedy}"
