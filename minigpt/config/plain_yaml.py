"""Reads YAML of strangers as plain values."""

from typing import Any

import yaml

MAX_CHARACTERS = 100_000  # of a YAML text, or of a checkpoint's config.json
MAX_DEPTH = 20
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, where PyYAML was built with it: ten times faster


def plain_yaml(text: str, loader: Any = YAML_LOADER) -> Any:
    """Return the plain values in a YAML text that may be hostile.

    Args:
        text: the YAML.
        loader: PyYAML's class; yaml.SafeLoader where Hydra reads the text, too: the one in C refuses other texts.

    Raises:
        ValueError: it is too long or too deep, or holds an alias: nine lines of them stand for gigabytes.
        yaml.YAMLError: it is no YAML, or would create an object.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it holds the YAML alias *{event.anchor}, in whose place its value must stand")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return loader(text).get_single_data()
