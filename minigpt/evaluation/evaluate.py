"""minigpt evaluate: scores texts and questions with one model, or with two and compares them."""

import codecs
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint
from minigpt.config.commands import EvaluateConfig
from minigpt.data.batch import document_end
from minigpt.data.chat.roles import ends_of
from minigpt.data.readers.document import ReadOptions
from minigpt.data.text import Text, read_text
from minigpt.data.tokenizer import scheme_of
from minigpt.evaluation.compare import by_unit, units_of, verdict
from minigpt.evaluation.interval import LEVEL, difference, too_few
from minigpt.evaluation.questions import Pair, Question, encode_questions, judge, read_questions, score_pairs, too_long
from minigpt.evaluation.texts import TextScore, score_text, write_tokens
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import write_json
from minigpt.machine.hardware import find_named
from minigpt.screen import Progress, Say, size_text

Models = Sequence[LoadedCheckpoint]  # one, or two to compare


def evaluate(config: EvaluateConfig, say: Say = print) -> None:
    """Score files, print the figures, and write them to the files that the config names.

    All faults of checkpoints and files are told at once, before anything is scored.
    """
    device = find_named(config.device)
    paths = [path for path in (config.checkpoint, config.versus) if path]
    (models,) = _open([partial(load_checkpoint, path, config.which) for path in paths])
    for name, loaded in zip(_names(models), models, strict=True):
        loaded.model.to(device)
        say(f"{name}{loaded.path}: context {loaded.config.model.block_size:,}, tokenizer {loaded.tokenizer.name}")
    texts, asked, _ = _open(
        [partial(_open_text, path, models, config, say) for path in config.file],
        [partial(_open_questions, path, models) for path in config.questions],
        [partial(_check_stride, config.stride, loaded) for loaded in models],
    )
    scores = [_score_text(path, own, models, config.stride, say) for path, own in zip(config.file, texts, strict=True)]
    figures = [entry for entry, _ in scores]
    figures += [_answer(path, own, models, say) for path, own in zip(config.questions, asked, strict=True)]
    if texts:
        lie = "side by side, as val/loss is measured" if config.stride is None else f"every {config.stride:,} tokens"
        say(f"\nWindows lie {lie}; a text's first token is only read. Per word: words between white space, and each")
        say("line end counts as one (wikitext's convention).")
    if config.versus:
        say("\n+- is a 95 % interval. It judges these two checkpoints, not the settings that they were trained with.")
    try:
        if config.json is not None:
            write_json(_result(config.json), figures[0] if len(figures) == 1 else figures)
        if config.per_token is not None:
            write_tokens(_result(config.per_token), config.file, [score for _, score in scores])
    except OSError as error:
        raise StorageFailure(f"{error.filename} can't be written: {error.strerror or error}. Make room") from error


def _result(path: str) -> Path:
    """Return the file to write for a path: for a link its target, so that the link stays."""
    return Path(os.path.realpath(os.path.expanduser(path)))


def _open(*groups: Sequence[Callable[[], Any]]) -> list[list[Any]]:
    """Return what the calls return, group by group; the faults of all of them are raised at once."""
    faults: list[str] = []
    opened: list[list[Any]] = []
    for calls in groups:
        opened.append([])
        for call in calls:
            try:
                opened[-1].append(call())
            except UserFault as fault:
                faults += fault.faults
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    return opened


def _check_stride(stride: int | None, loaded: LoadedCheckpoint) -> None:
    block_size = loaded.config.model.block_size
    if stride is not None and stride > block_size:
        raise UserFault(f"stride={stride}: {loaded.path} has a context of {block_size} tokens. Use at most so many")


def _open_text(path: str, models: Models, config: EvaluateConfig, say: Say) -> list[Text]:
    """Return a text as each model's tokens."""
    place, texts = Path(os.path.expanduser(path)), dict[str, Text]()
    for tokenizer in (loaded.tokenizer for loaded in models):
        if tokenizer.hash not in texts:
            raw = scheme_of(tokenizer.name).takes_any_bytes
            options = ReadOptions(codecs.lookup(config.data.encoding).name, config.data.errors, raw, config.data.key)
            progress = Progress(f"reading {path}", place.stat().st_size, say)
            texts[tokenizer.hash] = read_text(place, tokenizer, options, progress)
    return [texts[loaded.tokenizer.hash] for loaded in models]


def _open_questions(path: str, models: Models) -> tuple[list[Question], list[list[Pair]]]:
    """Return questions, and their choices as each model's tokens."""
    questions = read_questions(place := Path(os.path.expanduser(path)))
    sizes = [(loaded.tokenizer, loaded.config.model.block_size) for loaded in models]
    return questions, [encode_questions(tokenizer, questions, size, place) for tokenizer, size in sizes]


def _score_text(
    path: str, texts: list[Text], models: Models, stride: int | None, say: Say
) -> tuple[dict[str, Any], TextScore]:
    """Score a text and print the figures; return them, and the first model's score."""
    say(f"\n{path}: {size_text(texts[0].bytes)}, {texts[0].words:,} words, {texts[0].lines:,} lines")
    ends = [document_end(loaded.config.data, loaded.tokenizer) for loaded in models]
    scores, figures = [], []
    for name, loaded, text, end in zip(_names(models), models, texts, ends, strict=True):
        progress = Progress(f"scoring {path}", len(text) - 1, say, unit="tokens", size=1)
        scores.append(score_text(loaded.model, text, stride=stride, document_end=end, progress=progress))
        figures.append(own := scores[-1].figures())
        say(f"  {name}{own['nats_per_token']:.4f} nats per token, {own['tokens']:,} tokens predicted")
        say(f"  {' ' * len(name)}{own['bits_per_byte']:.4f} bits per byte, {own['bytes']:,} bytes")
        per_word = f" per token, {own['word_perplexity']:,.2f} per word" if own["word_perplexity"] else " per token"
        say(f"  {' ' * len(name)}perplexity {own['perplexity']:,.2f}{per_word}; accuracy {own['accuracy']:.2%}")
    if len(models) == 1:
        return _entry(path, models, figures), scores[0]
    sizes = [loaded.config.model.block_size for loaded in models]
    units = units_of([(text, text.tokenizer, size) for text, size in zip(texts, sizes, strict=True)], ends)
    sums = [by_unit(units, each.text, each.text.tokenizer, [each.nats]) for each in scores]
    between = _difference(sums, units.sizes, units.loss, units.name, "much text", say)
    return _entry(path, models, figures, difference=between), scores[0]


def _answer(path: str, asked: tuple[list[Question], list[list[Pair]]], models: Models, say: Say) -> dict[str, Any]:
    """Let the models answer questions and print the figures; return them."""
    questions, pairs = asked
    say(f"\n{path}: {len(questions):,} questions")
    answers = []
    for name, loaded, own in zip(_names(models), models, pairs, strict=True):
        progress = Progress(f"answering {path}", len(own), say, unit="choices", size=1)
        answers.append(judge(questions, score_pairs(loaded.model, own, progress, ends=ends_of(loaded.tokenizer))))
        now = answers[-1].figures()
        say(f"  {name}accuracy {now['accuracy']:.2%}, length-normalised {now['accuracy_normalised']:.2%}")
        for task, right in answers[-1].tasks.items():
            say(f"    {task:<16}{right.mean():>8.2%}  {right.sum():,} of {len(right):,}")
        if long := too_long(questions, own, loaded.config.model.block_size):
            first = f"number {long[0][0]:,} first ({long[0][1]:,} tokens)"
            many = f"{len(long):,} of {len(questions):,}"
            say(f"  {name}{many} have more tokens than the context, and only their end is read: {first}")
    say(f"  {answers[0].chance:.2%} are right by chance")
    figures = [each.figures() for each in answers]
    if len(models) == 1:
        return _entry(path, models, figures)
    sizes, unit = np.ones(len(questions)), "wrong answers per question"
    more = ("questions", "many questions", say)
    plain = _difference([1.0 - each.plain for each in answers], sizes, unit, *more)
    unit += ", length-normalised"
    normalised = _difference([1.0 - each.normalised for each in answers], sizes, unit, *more)
    return _entry(path, models, figures, difference=plain, difference_normalised=normalised)


def _names(models: Models) -> list[str]:
    """Return the names that are printed before each model's figures."""
    return ["A  ", "B  "] if len(models) > 1 else [""]


def _entry(path: str, models: Models, figures: list[dict[str, Any]], **differences: Any) -> dict[str, Any]:
    """Return a file's figures as JSON; those of a second model are under "versus"."""
    own = [{"checkpoint": str(loaded.path)} | each for loaded, each in zip(models, figures, strict=True)]
    return {"file": path, **own[0]} | ({"versus": own[1] | differences} if len(own) > 1 else {})


def _difference(
    sums: list[NDArray[Any]], sizes: NDArray[Any], unit: str, name: str, more: str, say: Say
) -> dict[str, Any] | None:
    """Print which of two models is better, by the paired interval of `compare`; return the difference B - A."""
    documents = name != "windows"  # questions are as independent as documents
    if reason := too_few(sizes, documents=documents, name=name):
        say(f"  cannot tell which is better: {reason}")
        return None
    between = difference(sums[0][None], sums[1][None], sizes, documents=documents)
    say(f"  {verdict('A', 'B', between, unit, more=more)}")
    return {"value": between.value, "plus_minus": between.half_width(LEVEL), "level": LEVEL, "unit": unit}
