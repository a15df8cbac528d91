"""data=tasks: generated conversations about small tasks whose answers can be checked.

    spell planet            p l a n e t
    reverse planet          tenalp
    how many e in letter    l0 e1 t1 t1 e2 r2 = 2              the count so far after each letter
    78 + 345                8+5+0=13 7+4+1=12 0+3+1=04 = 423   column by column from the right: digits and the carry
    sort 52 17 90 33        17 33 52 90
    repeat planet moon      planet moon
    hello, i am planet      hello planet, nice to meet you     small talk

Words are made up from syllables, so there is no end of them. Each word, each pair of numbers and each set of numbers
belongs to one part, train, val or test, by its hash: nothing that a question of one part asks about is in another.

sort7 and reverse9 are harder forms of two tasks: lists of 7 numbers and words of 9 letters, which occur in no
conversation. A model that has learned the tasks above can learn them from a reward (objective=grpo).
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from minigpt.files import write_file

VERSION = 2  # of what is generated
SIZES = {"train": 160_000, "val": 700, "test": 1_750}  # conversations; of val and test one question each
PARTS = ("test", "val", *["train"] * 8)  # by tenths of the hash

_ONSETS = "b c d f g h j k l m n p q r s t v w x y z bl br ch cl cr dr fl fr gl gr pl pr sh sl sp st sw th tr".split()  # noqa: SIM905
_VOWELS = "a e i o u a e i o u ai ea ee oo ou y".split()  # noqa: SIM905
_CODAS = ["", "", "", *"b d f g k l m n p r s t w x z ck ll nd ng nt ss st".split()]  # noqa: SIM905
# Questions and answers of small talk. Those that always are the same are asked in training only: they hold no word that
# another part could ask about.
_TALK, _ALWAYS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).values()

REMEMBERED = 0.08  # of the training conversations that end with a question about their beginning

Exchange = tuple[str, str]  # a question and its answer


def part_of(key: str) -> str:
    """Return the part, train, val or test, to which a word or numbers belong."""
    return PARTS[int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % len(PARTS)]


def pick(random: Random, choices: Any) -> Any:
    """Return one of some choices, drawn with `random()` alone, which is the same in every version of Python."""
    return choices[int(random.random() * len(choices))]


def word(random: Random, part: str, letters: int | None = None) -> str:
    """Return a word of this part, of 3 to 8 letters or as many as are asked for."""
    while True:
        length, text = letters or 3 + int(random.random() * 6), ""
        while len(text) < length:
            text += pick(random, _ONSETS) + pick(random, _VOWELS) + pick(random, _CODAS)
        if part_of(text[:length]) == part:
            return text[:length]


def spell(random: Random, part: str) -> Exchange:
    letters = word(random, part)
    return f"spell {letters}", " ".join(letters)


def reverse(random: Random, part: str, letters: int | None = None) -> Exchange:
    text = word(random, part, letters)
    return f"reverse {text}", text[::-1]


def count(random: Random, part: str) -> Exchange:
    text = word(random, part)
    letter = pick(random, text if random.random() < 0.8 else "abcdefghijklmnopqrstuvwxyz")
    steps = [f"{character}{text[: place + 1].count(letter)}" for place, character in enumerate(text)]
    return f"how many {letter} in {text}", f"{' '.join(steps)} = {text.count(letter)}"


def add(random: Random, part: str) -> Exchange:
    while True:
        total = int(random.random() * 1000)
        first = int(random.random() * (total + 1))
        smaller = min(first, total - first)
        if part_of(f"{smaller}+{total - smaller}") == part:  # 3 + 5 on the side of 5 + 3
            break
    columns, carry = [], 0
    for place in (1, 10, 100):
        a, b = first // place % 10, (total - first) // place % 10
        columns.append(f"{a}+{b}+{carry}={a + b + carry:02d}")
        carry = (a + b + carry) // 10
    return f"{first} + {total - first}", f"{' '.join(columns)} = {total}"


def sort(random: Random, part: str, length: int | None = None) -> Exchange:
    while True:
        size, numbers = length or 4 + int(random.random() * 3), list[int]()
        while len(numbers) < size:
            number = 10 + int(random.random() * 90)
            numbers += [number] if number not in numbers else []
        ordered = " ".join(map(str, sorted(numbers)))
        if part_of(ordered) == part:
            return f"sort {' '.join(map(str, numbers))}", ordered


def copy(random: Random, part: str) -> Exchange:
    words = " ".join(word(random, part) for _ in range(1 + int(random.random() * 3)))
    return f"repeat {words}", words


def talk(random: Random, part: str) -> Exchange:
    if part == "train" and random.random() < 0.2:
        return pick(random, [*_ALWAYS.items()])
    name = word(random, part)
    question, answer = pick(random, [*_TALK.items()])
    return question.format(name), answer.format(name)


TASKS: dict[str, Callable[[Random, str], Exchange]] = {
    "spell": spell, "reverse": reverse, "count": count, "add": add, "sort": sort, "copy": copy, "small talk": talk,
}  # fmt: skip
OFTEN = [*TASKS, "reverse", "add", "sort"]  # in training
HARDER: dict[str, Callable[[Random, str], Exchange]] = {
    "sort7": partial(sort, length=7), "reverse9": partial(reverse, letters=9),
}  # fmt: skip


def conversations(part: str) -> Iterator[dict[str, Any]]:
    """Yield the conversations of a part: for training of one to three exchanges, else different questions by task."""
    random = Random(f"minigpt tasks {VERSION} {part}")
    if part == "train":
        for _ in range(SIZES[part]):
            name = word(random, part) if random.random() < REMEMBERED else None
            introduction = (f"my name is {name}", _TALK["my name is {}"].format(name))
            exchanges = [TASKS[pick(random, OFTEN)](random, part) if name is None else introduction]
            while random.random() < 0.3 and len(exchanges) < 3:
                exchanges.append(TASKS[pick(random, OFTEN)](random, part))
            if name is not None:
                exchanges.append(("what is my name", f"your name is {name}"))
            yield {"messages": messages_of(exchanges)}
        return
    for task in TASKS:
        yield from questions(task, random, part)


def questions(task: str, random: Random, part: str) -> Iterator[dict[str, Any]]:
    """Yield different questions of a task, as many as each task has in this part."""
    asked: dict[str, str] = {}
    while len(asked) < SIZES[part] // len(TASKS):
        asked |= [(TASKS | HARDER)[task](random, part)]
    yield from ({"task": task, "messages": messages_of([exchange])} for exchange in asked.items())


def question(task: str, seed: int, number: int) -> Exchange:
    """Return training question `number` of a task and its answer, a pure function of the three."""
    return (TASKS | HARDER)[task](Random(f"minigpt question {seed} {number}"), "train")


def messages_of(exchanges: list[Exchange]) -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, itertools.chain(*exchanges), strict=False)]


def task_file(folder: Path, part: str, harder: str = "") -> Path:
    """Return the file of a part, or of a harder task's questions in it; it is made if it is missing."""
    path = folder / f"tasks-{VERSION}" / f"{part}{f'-{harder}' * bool(harder)}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        random = Random(f"minigpt tasks {VERSION} {part} {harder}")
        rows = questions(harder, random, part) if harder else conversations(part)
        write_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path
