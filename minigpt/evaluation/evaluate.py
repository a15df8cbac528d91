"""minigpt evaluate: scores texts and questions with one model, or with two and compares them."""

import codecs
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint
from minigpt.config.commands import EvaluateConfig
from minigpt.config.convert import shown
from minigpt.config.schema import DataConfig
from minigpt.data.batch import document_end
from minigpt.data.chat.roles import ends_of
from minigpt.data.readers.document import ReadOptions
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import scheme_of
from minigpt.evaluation.compare import by_unit, text_units, verdict
from minigpt.evaluation.interval import LEVEL, difference, too_few
from minigpt.evaluation.questions import Pair, Question, encode_questions, judge, read_questions, score_pairs
from minigpt.evaluation.texts import TextScore, read_text, score_text, write_tokens
from minigpt.faults import UserFault
from minigpt.files import write_json, writing
from minigpt.machine.hardware import probe
from minigpt.screen import Progress, number_of, size_text, tell

Models = Sequence[LoadedCheckpoint]  # one, or two to compare
Figures = dict[str, Any]  # as JSON
MOST_SHOWN = 1e6  # perplexity per word: a larger one comes from text without blanks, or from a model that knows nothing


def evaluate(config: EvaluateConfig) -> None:
    """Score files, print the figures, and write them to the files that the config names.

    All files are read before anything is scored.
    """
    if not config.file and not config.questions:
        raise UserFault("nothing to score. Give file=TEXT or questions=FILE")
    for place in filter(None, (config.json, config.per_token)):
        with writing(place):
            Path(place).expanduser().parent.mkdir(parents=True, exist_ok=True)
    device, stride = probe(config.device).device, config.stride
    models = [load_checkpoint(path, config.which) for path in (config.checkpoint, config.versus) if path]
    for name, loaded in zip(_names(models), models, strict=True):
        loaded.model.to(device)
        tell(f"{name}{loaded.path}: context {loaded.config.model.block_size:,}, tokenizer {loaded.tokenizer.name}")
    block_size = min(loaded.config.model.block_size for loaded in models)
    if stride is not None and stride > block_size:
        raise UserFault(f"stride={stride}: the context has {block_size} tokens. Use at most so many")
    data = models[0].config.data  # says how texts are read, where nothing is typed
    key = config.text_key or data.key
    separator = (data.separator if config.separator is None else config.separator) or None
    options = ReadOptions(codecs.lookup(config.encoding).name, config.errors, key=key, separator=separator)
    if config.file and (key != DataConfig.key or separator):
        divided = f", data.separator={shown(separator)}".replace(r"\\", "\\")  # as one types it
        tell(f"texts are read with data.key={key}{divided if separator else ''}")
    texts = [_open_text(path, models, options) for path in config.file]
    questions = [_open_questions(path, models) for path in config.questions]
    scores = [_score_text(path, text, models, stride) for path, text in zip(config.file, texts, strict=True)]
    figures = [entry for entry, _ in scores]
    figures += [_answer(path, pairs, models) for path, pairs in zip(config.questions, questions, strict=True)]
    if config.versus and config.questions:
        tell("\n+- is a 95 % interval. It judges these two checkpoints, not the settings that they were trained with.")
    if config.json is not None:
        with writing(f"json={config.json}"):
            write_json(Path(config.json).expanduser(), figures[0] if len(figures) == 1 else figures)
    if config.per_token is not None:
        with writing(f"per_token={config.per_token}"):
            write_tokens(Path(config.per_token).expanduser(), config.file, [score for _, score in scores])


def _open_text(path: str, models: Models, options: ReadOptions) -> list[TokenSplit]:
    """Return a text as each model's tokens."""
    file, texts = Path(path).expanduser(), dict[str, TokenSplit]()
    for tokenizer in (loaded.tokenizer for loaded in models):
        if tokenizer.hash not in texts:
            raw = scheme_of(tokenizer.name).takes_any_bytes and options.errors == "strict"
            progress = Progress(f"reading {path}", file.stat().st_size)
            texts[tokenizer.hash] = read_text(file, tokenizer, replace(options, raw=raw), progress)
    return [texts[loaded.tokenizer.hash] for loaded in models]


def _open_questions(path: str, models: Models) -> tuple[list[Question], list[list[Pair]]]:
    """Return questions, and their choices as each model's tokens."""
    questions = read_questions(file := Path(path).expanduser())
    sizes = [(loaded.tokenizer, loaded.config.model.block_size) for loaded in models]
    return questions, [encode_questions(tokenizer, questions, size, file) for tokenizer, size in sizes]


def _score_text(path: str, texts: list[TokenSplit], models: Models, stride: int | None) -> tuple[Figures, TextScore]:
    """Score a text and print the figures; return them, and the first model's score."""
    words, lines = number_of(texts[0].words, "word"), number_of(texts[0].lines, "line")
    tell(f"\n{path}: {size_text(texts[0].bytes)}, {words}, {lines}")
    ends = [document_end(loaded.config.data, loaded.tokenizer) for loaded in models]
    scores = []
    for name, loaded, text, end in zip(_names(models), models, texts, ends, strict=True):
        progress = Progress(f"scoring {path}", len(text) - 1, unit="tokens", size=1)
        scores.append(score_text(loaded.model, text, stride=stride, document_end=end, progress=progress))
        now, indent = scores[-1].figures(), " " * len(name)
        word = now["word_perplexity"] or math.inf
        per_word = f", {word:,.2f} per word" if word < MOST_SHOWN else ""
        tell(f"  {name}{now['nats_per_token']:.4f} nats per token, {now['tokens']:,} tokens predicted")
        tell(f"  {indent}{now['bits_per_byte']:.4f} bits per byte, {now['bytes']:,} bytes")
        tell(f"  {indent}perplexity {now['perplexity']:,.2f} per token{per_word}; accuracy {now['accuracy']:.2%}")
    between = None
    if len(models) > 1:
        sizes = [loaded.config.model.block_size for loaded in models]
        units = text_units(list(zip(texts, sizes, strict=True)), ends)
        sums = [by_unit(units, score.text, score.nats) for score in scores]
        between = _difference(sums, units.sizes, units.loss, drawn=False)
    return _entry(path, models, [score.figures() for score in scores], between), scores[0]


def _answer(path: str, opened: tuple[list[Question], list[list[Pair]]], models: Models) -> Figures:
    """Let the models answer questions and print the figures; return them."""
    questions, pairs_of_models = opened
    tell(f"\n{path}: {number_of(len(questions), 'question')}")
    answers = []
    for name, loaded, pairs in zip(_names(models), models, pairs_of_models, strict=True):
        answers.append(judge(questions, score_pairs(loaded.model, pairs, ends=ends_of(loaded.tokenizer))))
        now = answers[-1].figures()
        tell(f"  {name}accuracy {now['accuracy']:.2%}, length-normalised {now['accuracy_normalised']:.2%}")
        for task, right in answers[-1].tasks.items():
            tell(f"    {task:<16}{right.mean():>8.2%}  {right.sum():,} of {len(right):,}")
    tell(f"  {answers[0].chance:.2%} are right by chance")
    between = None
    if len(models) > 1:
        wrong, sizes = [1.0 - answer.plain for answer in answers], np.ones(len(questions))
        between = _difference(wrong, sizes, "wrong answers per question", drawn=True)
    return _entry(path, models, [answer.figures() for answer in answers], between)


def _names(models: Models) -> list[str]:
    """Return the names that are printed before each model's figures."""
    return ["A  ", "B  "] if len(models) > 1 else [""]


def _entry(path: str, models: Models, figures: list[Figures], between: Figures | None) -> Figures:
    """Return a file's figures as JSON; those of a second model, and the difference, are under "versus"."""
    first, *second = [{"checkpoint": str(loaded.path)} | now for loaded, now in zip(models, figures, strict=True)]
    return {"file": path, **first} | ({"versus": second[0] | {"difference": between}} if second else {})


def _difference(sums: list[NDArray[Any]], sizes: NDArray[Any], unit: str, *, drawn: bool) -> Figures | None:
    """Print which of two models is better, by the paired interval of `compare`; return the difference B - A.

    `drawn`: of questions, which are taken to be drawn at random; a text is not.
    """
    if drawn and (reason := too_few(sizes, name="questions")):
        tell(f"  cannot tell which is better: {reason}")
        return None
    between = difference(sums[0][None], sums[1][None], sizes, drawn=drawn)
    tell(f"  {verdict('A', 'B', between, unit, more='many questions' if drawn else 'much text')}")
    return {"value": between.value, "plus_minus": between.half_width(LEVEL), "level": LEVEL, "unit": unit}
