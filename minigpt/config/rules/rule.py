"""How a rule is registered, and the parts of sentences that several rules share."""

import os
from collections.abc import Callable, Iterator

from minigpt.config.convert import shown
from minigpt.config.hub import is_hub_name, local_path
from minigpt.config.sources import there
from minigpt.faults import UserFault

Check = Callable[..., Iterator[str]]  # the values of some settings -> a sentence for each rule that they break
RULES: list[tuple[tuple[str, ...], Check]] = []  # the settings that a check reads, and the check
NOTES: list[tuple[tuple[str, ...], Check]] = []  # the same for choices that are allowed, but seldom meant


def rule(*keys: str, into: list[tuple[tuple[str, ...], Check]] = RULES) -> Callable[[Check], Check]:
    """Register a check of the values of these settings."""

    def register(function: Check) -> Check:
        into.append((keys, function))
        return function

    return register


def nearest_multiples(key: str, value: int, unit: int) -> str:
    """Return `key=` with the multiples of unit on either side of value, positive ones only."""
    below = value // unit * unit
    return f"{key}={f'{below} or ' if below else ''}{below + unit}"


def not_there(key: str, source: str, remedy: str) -> Iterator[str]:
    """Yield a sentence for weights that are neither a path nor on the hub."""
    if is_hub_name(source):
        try:
            local_path(source)
        except UserFault as fault:
            yield f"{key}={fault}"
    elif not there(source):
        yield f"{key}={shown(source)} does not exist{from_here(source)}. {remedy}"


def from_here(path: str) -> str:
    return f" (looked from {os.getcwd()})" if path and not os.path.isabs(os.path.expanduser(path)) else ""
