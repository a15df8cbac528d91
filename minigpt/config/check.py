"""Checks of a config beyond types: the range of each setting, and the rules. Standard library only.

Every fault is reported at once. A rule is skipped while a setting that it reads is itself out of range: one mistake,
one sentence.
"""

import difflib
import glob
import operator
import os
import re
from collections.abc import Iterator
from typing import Any

from minigpt.config.commands import PlanConfig
from minigpt.config.convert import Fault, read, settings, shown, values
from minigpt.config.rules import RULES
from minigpt.config.run_names import default_run_dir
from minigpt.config.schema import TrainConfig
from minigpt.config.setting import Setting
from minigpt.config.sources import exists, expand, from_here, is_begun, is_hub_name
from minigpt.faults import UserFault
from minigpt.invocation import typed


def check(config: Any) -> list[str]:
    """Return a sentence for each broken rule of a config. Reads paths, writes nothing."""
    return [fault.sentence for fault in find_faults(config)]


def find_faults(config: Any) -> list[Fault]:
    """Return what `check` reports, with the settings that each fault concerns."""
    now, known = values(config), settings(config.__class__)
    begun = now.get("init.from") and is_begun(now["run.dir"] or default_run_dir(config))
    alone = [key for key in known if not (begun and key == "init.from")]  # a run that continues has its own checkpoint
    faults = [Fault((key,), sentence) for key in alone for sentence in _wrong_alone(known[key], now[key])]
    wrong = {key for fault in faults for key in fault.keys}
    now = {key: value for key, value in now.items() if key not in wrong}
    rules = [(keys, rule) for keys, rule in RULES if now.keys() >= {*keys}]
    if isinstance(config, PlanConfig) and not (config.budget or config.data.source):  # no text is needed
        rules = [(keys, rule) for keys, rule in rules if "data.source" not in keys]
    return faults + [Fault(keys, sentence) for keys, rule in rules for sentence in rule(*(now[key] for key in keys))]


def stored_config(content: Any) -> TrainConfig:
    """Return the config that a checkpoint stores, or the config of another program's model.

    Only the settings of the model must be valid: others may come from another version, and paths from another machine.

    Raises:
        UserFault: the first fault.
    """
    config, faults = read(TrainConfig, content)
    for fault in [*faults, *find_faults(TrainConfig(model=config.model))]:
        if not fault.keys or fault.keys[0].startswith("model."):
            raise UserFault(fault.sentence)
    return config


def _wrong_alone(setting: Setting, value: Any) -> Iterator[str]:
    """Yield the faults of one setting's value that do not depend on other settings."""
    key, remedy = setting.key, "Give another, or leave it out."
    if setting.required and (not value or value == [""]):
        example = f" Give {key}=..." if not setting.words else " Type them after the command: RUN RUN"
        yield f"{key} is missing: {setting.meaning}.{_a_model(key) if setting.model else example}"
    elif setting.file or setting.model:
        for path in value if isinstance(value, list) else [value] if value is not None else []:
            if setting.file and not os.path.isfile(expand(path)):
                yield f"{key}={shown(path)} is not a file{from_here(path)} Give a file."
            elif setting.model and not exists(path) and not is_hub_name(path):
                place = from_here(path)
                yield f"{key}={shown(path)} does not exist{place}{'' if place.endswith('?') else _a_model(key, path)}"
    elif isinstance(value, str):
        if not value.strip() and (setting.folder or (setting.kind is str and (setting.default or not setting.literal))):
            yield f"{key} is empty. {remedy}"
        elif setting.folder and exists(value) and not os.path.isdir(expand(value)):
            yield f"{key}={shown(value)} is a file, and a folder is wanted. {remedy}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        limits = (setting.low, setting.above, setting.high, setting.below)
        tests = {"at least": operator.ge, "more than": operator.gt, "at most": operator.le, "less than": operator.lt}
        stated = {words: limit for words, limit in zip(tests, limits, strict=True) if limit is not None}
        if not all(tests[words](value, limit) for words, limit in stated.items()):
            yield f"{key} must be {' and '.join(f'{words} {stated[words]}' for words in stated)}, got {shown(value)}."


def _a_model(key: str, typed_name: str = "") -> str:
    """Return an example for a setting that names a trained model: the run of this name, else the newest, if any."""
    if re.fullmatch(r"gpt2(-medium|-large|-xl)?", typed_name):
        return f" Type {key}=openai-community/{typed_name}"
    runs = {os.path.basename(path): path for path in glob.glob("runs/*") if os.path.isdir(path)}
    meant = difflib.get_close_matches(os.path.basename(typed_name), runs, n=1)
    train = f"Train one first: {typed('train')}"
    run = runs[meant[0]] if meant else max(runs.values(), key=os.path.getmtime, default=None)
    example = f"Try {key}={run}" if run else train if key == "checkpoint" else ""
    kinds = "a run, a checkpoint, a Hugging Face folder, or a name on Hugging Face's hub like openai-community/gpt2"
    return f" Give {kinds}. {example}".rstrip()
