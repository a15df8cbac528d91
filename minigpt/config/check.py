"""The rules a config must obey beyond its types. Standard library only; never touches torch.

Every broken rule is reported at once, each sentence with what was got, what is wanted and what to type.
A rule is skipped while a setting it reads is itself out of range: one mistake, one sentence.
"""

import math
import operator
import os
from collections.abc import Iterator, Mapping
from typing import Any

from minigpt.config.convert import Fault, settings, shown, values
from minigpt.config.roles import default_run_dir
from minigpt.config.rules import NOTES, RULES, Check
from minigpt.config.setting import Setting
from minigpt.config.sources import at, there

MAX_WHOLE = 10**12  # limit of whole numbers that state none: it catches typing errors


def check(config: Any) -> list[str]:
    """Return a sentence for each broken rule of a config. Reads paths, writes nothing."""
    return [fault.sentence for fault in find_faults(config)]


def find_faults(config: Any) -> list[Fault]:
    """Return what `check` reports, with the settings that each fault concerns."""
    now, known = values(config), settings(config.__class__)
    found = [Fault((key,), sentence) for key, each in known.items() for sentence in _wrong_alone(each, now[key])]
    wrong = {key for fault in found for key in fault.keys}
    if not wrong and now.get("init.from") and now.get("run.dir", "") is None:
        now |= {"run.dir": default_run_dir(config)}
    return found + _faults_of(RULES, {key: value for key, value in now.items() if key not in wrong})


def find_notes(config: Any) -> list[str]:
    """Return a sentence for each choice that is allowed but seldom meant."""
    return [note.sentence for note in _faults_of(NOTES, values(config))]


def _faults_of(rules: list[tuple[tuple[str, ...], Check]], now: Mapping[str, Any]) -> list[Fault]:
    held = [(keys, rule) for keys, rule in rules if now.keys() >= {*keys}]
    return [Fault(keys, sentence) for keys, rule in held for sentence in rule(*(now[key] for key in keys))]


def _wrong_alone(setting: Setting, value: Any) -> Iterator[str]:
    """Yield what is wrong with the value of one setting, whatever the others are."""
    key, remedy = setting.key, "Give another, or leave it out."
    if setting.required and not value:
        yield f"{key} is missing: {setting.meaning}. Give {key}=..."
    elif isinstance(value, str):
        if not value.strip() and (setting.folder or (setting.kind is str and (setting.default or not setting.literal))):
            yield f"{key} is empty. {remedy}"
        elif setting.folder and "\0" in value:
            yield f"{key}={shown(value)} holds a NUL character. {remedy}"
        elif setting.folder and there(value) and not os.path.isdir(at(value)):
            yield f"{key}={shown(value)} is a file, and a folder is wanted. {remedy}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        high = MAX_WHOLE if setting.is_whole and setting.high is None else setting.high
        tests = {"at least": operator.ge, "more than": operator.gt, "at most": operator.le, "less than": operator.lt}
        limits = zip(tests, (setting.low, setting.above, high, setting.below), strict=True)
        stated = {words: limit for words, limit in limits if limit is not None}
        inside = all(tests[words](value, limit) for words, limit in stated.items())
        if not inside or not math.isfinite(value):
            wanted = [f"{words} {limit}" for words, limit in stated.items()]
            yield f"{key} must be {' and '.join([*wanted, 'finite'] if inside else wanted)}, got {shown(value)}."
