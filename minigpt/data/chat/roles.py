"""Conversations: the forms that a record may have, and their tokens. Control tokens say who speaks; no text holds one.

    <|system|>Be brief.<|user|>Hello<|assistant|>Hi!<|end|>

A turn begins with the token of its role and goes on to the next control token; the assistant writes <|end|> itself when
it is done. What is learned follows from the tokens alone: all tokens after <|assistant|>, up to and including <|end|>.

Until it reaches the tokenizer a conversation is bytes: its texts in UTF-8, and for each control token one byte that
never occurs in UTF-8.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # readers need only the names and the marks
    from minigpt.data.tokenizer import Tokenizer

ROLES = {"system": "<|system|>", "developer": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
END = "<|end|>"
CONTROL = (*dict.fromkeys(ROLES.values()), END)
MARKS = {name: bytes([0xF8 + number]) for number, name in enumerate(CONTROL)}
_MARK = re.compile(b"([" + b"".join(MARKS.values()) + b"])")
_NAMES = {mark: name for name, mark in MARKS.items()}

WANTED = '{"messages": [{"role": "user", "content": "..."}, ...]} or {"prompt": "...", "completion": "..."}'
NOT_LEARNED = (  # keys of a message that would be ignored
    "weight", "train", "tool_calls", "function_call", "reasoning_content", "audio", "refusal",
)  # fmt: skip


def with_roles(tokenizer: "Tokenizer") -> "Tokenizer":
    """Return a tokenizer that has the control tokens: missing ones are added after all its tokens."""
    missing = [name for name in CONTROL if name not in tokenizer.special]
    return tokenizer.extended(missing) if missing else tokenizer


def has_roles(tokenizer: "Tokenizer") -> bool:
    """Return whether a tokenizer has the control tokens of conversations."""
    return tokenizer.special.keys() >= {*CONTROL}


def ends_of(tokenizer: "Tokenizer") -> frozenset[int]:
    """Return the tokens that end an answer: end-of-text, a file's own end of a turn, and all tokens of roles.

    The text after another role's token is not the assistant's.
    """
    ends = [tokenizer.eot, tokenizer.rules.end if tokenizer.rules else None]
    roles = [tokenizer.special[name] for name in CONTROL if has_roles(tokenizer)]
    return frozenset(roles) | {token for token in ends if token is not None}


def end_of_turn(tokenizer: "Tokenizer") -> int | None:
    """Return the token with which a model ends its answer: that of the roles, a file's own, or end-of-text."""
    if has_roles(tokenizer):
        return tokenizer.special[END]
    return tokenizer.rules.end if tokenizer.rules and tokenizer.rules.end is not None else tokenizer.eot


def is_text_part(part: Any) -> bool:
    """Return whether a part of a message's content, in OpenAI's form, is a text."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def marked(messages: Sequence[Mapping[str, str]], errors: str = "strict") -> bytes:
    """Return messages, each with role and content, as bytes; UnicodeError for a lone surrogate if errors=strict."""
    parts = []
    for message in messages:
        end = MARKS[END] if message["role"] == "assistant" else b""
        parts += [MARKS[ROLES[message["role"]]], message["content"].encode(errors=errors), end]
    return b"".join(parts)


def encode_marked(tokenizer: "Tokenizer", content: bytes) -> Iterator[NDArray[Any]]:
    """Yield the tokens of bytes that `marked` returned, or of a part of them; the tokenizer must have the roles."""
    for number, part in enumerate(_MARK.split(content)):
        if number % 2:
            yield np.array([tokenizer.special[_NAMES[part]]], tokenizer.dtype)
        elif part:
            yield from tokenizer.encode_chunks([part])


def encode_turn(tokenizer: "Tokenizer", messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the tokens of messages, followed by <|assistant|>, with which the next answer begins."""
    tokens, special = [*tokenizer.start], tokenizer.special
    for message in messages:
        end = [special[END]] if message["role"] == "assistant" else []
        tokens += [special[ROLES[message["role"]]], *tokenizer.encode(message["content"]), *end]
    return [*tokens, special[ROLES["assistant"]]]


def learned(tokens: NDArray[Any], tokenizer: "Tokenizer") -> NDArray[np.bool_]:
    """Return which of these tokens (n,) the assistant wrote: (n,). It takes 2 bytes a token."""
    control = np.zeros(tokenizer.vocab_size, bool)
    control[list(tokenizer.special.values())] = True
    places = np.flatnonzero(control[tokens])
    answers = tokens[places] == tokenizer.special[ROLES["assistant"]]
    change = np.zeros(len(tokens) + 1, np.int8)
    change[places[answers] + 1] += 1
    change[np.append(places, len(tokens) - 1)[1:][answers] + 1] -= 1  # after the next control token
    return np.cumsum(change[:-1], dtype=np.int8, out=change[:-1]).view(bool)


class BadRecord(Exception):
    """A record that is not what it should be."""


def conversation_of(record: Any, errors: str) -> bytes:
    """Return the conversation of a record, as `marked` writes it; b"" if the assistant says nothing.

    Raises:
        BadRecord: it is no conversation.
        UnicodeError: a lone surrogate.
    """
    messages = messages_of(record)
    return marked(messages, errors) if any(map(is_answer, messages)) else b""


def is_answer(message: Mapping[str, str]) -> bool:
    return message["role"] == "assistant" and bool(message["content"].strip())


def messages_of(record: Any) -> list[dict[str, str]]:
    """Return the messages of a record, role and content of each.

    Raises:
        BadRecord: it is not of OpenAI's form, nor a prompt and its completion.
    """
    if not isinstance(record, dict):
        raise BadRecord(f"the record is not an object; wanted {WANTED}")
    if isinstance(record.get("messages"), list):
        if "completion" in record:
            raise BadRecord("the record has both 'messages' and 'completion'; wanted one of them")
        return [_message(message, f"messages[{place}]") for place, message in enumerate(record["messages"])]
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return [_message(message, f"message {place}") for place, message in enumerate([*prompt, *completion])]
    if isinstance(prompt, str) and isinstance(completion, str):
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    raise BadRecord(f"the record has {', '.join(map(repr, list(record)[:8])) or 'nothing'}; wanted {WANTED}")


def _message(message: Any, place: str) -> dict[str, str]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise BadRecord(f"{place} has the role {str(role)[:40]!r}; the roles are {', '.join(ROLES)}")
    if ignored := [key for key in NOT_LEARNED if message.get(key) not in (None, "", [])]:
        raise BadRecord(f"{place} has {ignored[0]!r}, which is not known here: leave it out")
    content = message.get("content")
    if isinstance(content, list) and all(is_text_part(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRecord(f"{place}.content is not text")
    return {"role": role, "content": content}
