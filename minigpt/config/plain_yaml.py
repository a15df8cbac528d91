"""YAML that holds values and nothing else, read without believing it."""

from typing import Any

import yaml

MAX_CHARACTERS = 100_000
MAX_DEPTH = 20


def plain_yaml(text: str) -> Any:
    """What a YAML text says, as dictionaries, lists and values.

    Raises:
        ValueError: it is too long or too deep, or holds an alias: nine lines of them stand for gigabytes.
        yaml.YAMLError: it is no YAML, or wants an object made.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it holds the YAML alias *{event.anchor}, in whose place its value must stand")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return yaml.safe_load(text)
