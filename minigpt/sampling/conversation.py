"""How messages become the tokens that a model continues.

A model that was trained on conversations has its own form, which comes with its tokenizer; any other gets a plain
transcript, which it may or may not go on with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minigpt.data.tokenizer import Tokenizer

ROLES = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True)
class Turn:
    """What a model continues to give its answer."""

    tokens: list[int]
    ends: frozenset[int]  # tokens that end the answer
    stop: Sequence[str] = ()  # texts that do


def turn_of(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> Turn:
    """Return messages as the beginning of the assistant's answer.

    A tokenizer with a method `encode_chat(messages) -> Turn` decides by itself. Without one the text is

        System: Be brief.
        User: Hello
        Assistant:

    and the answer ends where the model begins a line with `User:`.

    Args:
        tokenizer: the model's.
        messages: role (one of ROLES) and content of each, at least one.

    Raises:
        UserFault: a character that the tokenizer does not know.
    """
    own = getattr(tokenizer, "encode_chat", None)
    if own is not None:
        return own(messages)
    lines = [f"{ROLES[message['role']]}: {message['content']}\n" for message in messages]
    ends: frozenset[int] = frozenset() if tokenizer.eot is None else frozenset({tokenizer.eot})
    return Turn(tokenizer.encode("".join([*lines, "Assistant:"])), ends, ["\nUser:"])
