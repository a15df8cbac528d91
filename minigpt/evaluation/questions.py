"""Questions: which of some continuations a model finds most likely, or whether it continues a text as wanted.

A file of questions is JSON lines, each an object:

    {"context": "The capital of France is", "choices": [" Paris", " Rome"], "answer": 0}         multiple choice
    {"context": "The cat", "choices": [" sat", " sit"], "after": " on the mat.", "answer": 0}     a gap to fill
    {"context": "To be, or not to", "answer": " be"}                                              open
    {"messages": [{"role": "user", "content": "2 + 3"}, {"role": "assistant", "content": "5"}]}   open: the last message
    {"prompt": "2 + 3", "completion": "5"}                                                        the same

Conversations have the form of data=chat (minigpt/data/chat/roles.py). A record may name its "task": then accuracy is
given for each task, too.

A choice's score is the log-likelihood of the choice and `after`, given the context; the choice with the highest is the
model's answer. Length-normalised, the score is divided by the bytes of both. An open question is answered right if each
token of the answer is the most likely one; at the end of a message any control token may be.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.data.chat.roles import END, BadRecord, encode_turn, has_roles, is_answer, messages_of
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.evaluate import measure_pass, nats_and_right, windows_at_once
from minigpt.model.gpt import GPT
from minigpt.sampling.write import start_tokens

Pair = tuple[list[int], list[int]]  # tokens of a context, at least one, and of what may follow it, at least one


@dataclass(frozen=True)
class Question:
    """A question; one without a choice is open."""

    context: str
    choices: list[str]  # for an open question the answer alone
    after: str
    answer: int  # place of the right choice
    messages: tuple[dict[str, str], ...] = ()  # in place of the context
    task: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the model has to find the answer itself."""
        return len(self.choices) == 1


@dataclass(frozen=True)
class Answers:
    """The result of a model: right or not, question by question."""

    plain: NDArray[np.bool_]
    normalised: NDArray[np.bool_]  # by the bytes of the choices
    chance: float  # accuracy of drawing a choice at random; 0 for an open one
    tasks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # `plain`, task by task

    def figures(self) -> dict[str, Any]:
        """Return the figures, as JSON."""
        return {
            "questions": len(self.plain),
            "accuracy": float(self.plain.mean()),
            "accuracy_normalised": float(self.normalised.mean()),
            "chance": self.chance,
            **({"tasks": {task: float(right.mean()) for task, right in self.tasks.items()}} if self.tasks else {}),
        }


def read_questions(path: Path) -> list[Question]:
    """Read a file of questions."""
    questions = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                questions.append(_question(json.loads(line)))
            except (ValueError, TypeError, AttributeError, BadRecord) as error:
                raise UserFault(f"{path}, line {number:,}: {error}. Wanted: a JSON object a line") from None
    if not questions:
        raise UserFault(f"{path} holds no question; wanted JSON lines (docs/EVALUATION.md)")
    return questions


def _question(record: dict[str, Any]) -> Question:
    task = str(record.pop("task", ""))
    if not record.keys().isdisjoint(("messages", "completion")):
        *messages, last = messages_of(record)
        if not messages or not is_answer(last):
            raise ValueError("a conversation must end with an answer of the assistant")
        return Question("", [last["content"]], "", 0, tuple(messages), task)
    context, after = record.pop("context", ""), record.pop("after", "")
    choices, answer = record.pop("choices", None), record.pop("answer", None)
    is_open = choices is None and isinstance(answer, str) and answer and not after
    choices, answer = ([answer], 0) if is_open else (choices, answer)
    texts = [context, after, *(choices if isinstance(choices, list) else [None])]
    if record or not all(isinstance(text, str) for text in texts) or "" in texts[2:] or len(texts) < 4 - bool(is_open):
        raise ValueError('wanted {"context": TEXT, "choices": [TEXT ...], "answer": NUMBER} or "answer": TEXT alone')
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise ValueError(f"answer must be the place of the right choice, 0 to {len(choices) - 1}, got {answer!r}")
    return Question(context, choices, after, answer, task=task)


def encode_questions(tokenizer: Tokenizer, questions: Sequence[Question], block_size: int, path: Path) -> list[Pair]:
    """Return the tokens of every choice of every question."""
    if any(question.messages for question in questions) and not has_roles(tokenizer):
        remedy = "Give such a model, like chat_tiny's run, or a context in place of messages"
        raise UserFault(f"{path} holds messages, for models that were trained on conversations (data=chat). {remedy}")
    pairs = []
    for number, question in enumerate(questions, 1):
        for choice in question.choices:
            try:
                if question.messages:  # an answer ends with <|end|>
                    answer = [*tokenizer.encode(choice), tokenizer.special[END]]
                    pairs.append((encode_turn(tokenizer, question.messages), answer))
                else:
                    pairs.append(encode_pair(tokenizer, question.context, choice + question.after))
            except UserFault as fault:
                raise UserFault(f"{path}, question {number:,}: {fault}") from None
            if len(pairs[-1][1]) > block_size:
                length = f"{len(pairs[-1][1]):,} tokens, and the model's context is {block_size:,}"
                raise UserFault(f"{path}, question {number:,}: {choice[:40]!r} is {length}. Shorten it")
    return pairs


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Return both as the tokens of the joined text, cut before the first token that the context alone does not have.

    So a token that reaches over the border is predicted: "the " and "cat" are "the" and " cat". An empty context is
    replaced by the token that a text starts from.
    """
    whole, before = tokenizer.encode(context + continuation), tokenizer.encode(context)
    differ = (place for place, (a, b) in enumerate(zip(whole, before, strict=False)) if a != b)
    cut = next(differ, min(len(before), len(whole) - 1))
    return [*tokenizer.start, *whole[:cut]] or start_tokens(tokenizer)[0][:1], whole[cut:]


@torch.inference_mode()
def score_pairs(model: GPT, pairs: Sequence[Pair], *, ends: Collection[int] = ()) -> list[tuple[float, bool]]:
    """Return for each continuation its log-likelihood in nats, and whether each of its tokens is the most likely one.

    Continuations have at most block_size tokens; only the end of a long context is read. `ends` are tokens that end an
    answer: any of them counts as right where one is wanted.
    """
    block_size, device = model.config.block_size, model.token_embedding.weight.device
    measure = partial(nats_and_right, alike=torch.tensor(sorted(ends), dtype=torch.long, device=device))
    scores: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))  # similar lengths together
    batch = windows_at_once(block_size, model.vocab_size)
    for first in range(0, len(order), batch):
        numbers = order[first : first + batch]
        chosen = [pairs[number] for number in numbers]
        rows = [((context + following)[-block_size - 1 :], len(following)) for context, following in chosen]
        T = max(len(row) for row, _ in rows) - 1
        tokens, targets = torch.zeros(len(rows), T, dtype=torch.long), torch.full((len(rows), T), -100)
        for place, (row, length) in enumerate(rows):  # padding after a row changes nothing before it
            tokens[place, : len(row) - 1] = torch.tensor(row[:-1])
            targets[place, len(row) - 1 - length : len(row) - 1] = torch.tensor(row[-length:])
        losses, right = measure_pass(model, tokens.to(device), targets.to(device), measure).T
        likeliest = ((right.view(len(rows), T) > 0) | (targets.to(device) < 0)).all(-1)
        sums = losses.view(len(rows), T).double().sum(-1).tolist()
        for number, loss, all_right in zip(numbers, sums, likeliest.tolist(), strict=True):
            scores[number] = (-loss, all_right)
    return scores


def judge(questions: Sequence[Question], scores: Sequence[tuple[float, bool]]) -> Answers:
    """Return which questions are answered right, by the scores of the pairs that `encode_questions` gives for them."""
    plain, normalised, remaining = [], [], iter(scores)
    for question in questions:
        likelihoods, greedy = zip(*(next(remaining) for _ in question.choices), strict=True)
        sizes = [len((choice + question.after).encode()) for choice in question.choices]
        by_byte = [likelihood / size for likelihood, size in zip(likelihoods, sizes, strict=True)]
        plain.append(greedy[0] if question.is_open else likelihoods.index(max(likelihoods)) == question.answer)
        normalised.append(greedy[0] if question.is_open else by_byte.index(max(by_byte)) == question.answer)
    chance = sum(0 if question.is_open else 1 / len(question.choices) for question in questions) / len(questions)
    names, right = np.array([question.task for question in questions]), np.array(plain)
    tasks = {task: right[names == task] for task in dict.fromkeys(names.tolist()) if task}
    return Answers(right, np.array(normalised), chance, tasks)
