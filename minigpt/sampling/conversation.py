"""How messages become the tokens that a model continues.

A model that was trained on conversations reads control tokens (minigpt/data/chat/roles.py); any other model gets a
plain transcript, which it may or may not continue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minigpt.data.chat.roles import encode_turn, ends_of, has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault

ROLES = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True)
class Turn:
    """The tokens that a model continues with its answer, and what ends the answer."""

    tokens: list[int]
    ends: frozenset[int]  # tokens that end the answer
    stop: Sequence[str] = ()  # texts that end the answer


def turn_of(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> Turn:
    """Encode messages, up to the point where the assistant's answer begins.

    A tokenizer with roles gives `<|system|>Be brief.<|user|>Hello<|assistant|>`, and <|end|> ends the answer, as any
    other control token does. Without them the text is

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
    if has_roles(tokenizer):
        return Turn(encode_turn(tokenizer, messages), ends_of(tokenizer))
    lines = [f"{ROLES[message['role']]}: {message['content']}\n" for message in messages]
    return Turn(tokenizer.encode("".join([*lines, "Assistant:"])), ends_of(tokenizer), ["\nUser:"])


def refuse_too_long(turn: Turn, block_size: int) -> None:
    """Refuse messages that are longer than the model's context: it would read their end only, without their roles.

    Raises:
        UserFault: they are longer.
    """
    if len(turn.tokens) > block_size:
        raise UserFault(
            f"the model reads {block_size:,} tokens, and these messages have {len(turn.tokens):,}. Send a shorter one"
        )
