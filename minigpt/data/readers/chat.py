"""Conversations: the forms that a record may have."""

from collections.abc import Mapping
from typing import Any

from minigpt.data.chat.roles import ROLES, is_text_part, marked

WANTED = '{"messages": [{"role": "user", "content": "..."}, ...]} or {"prompt": "...", "completion": "..."}'
NOT_LEARNED = (  # keys of a message that would be ignored
    "weight", "train", "tool_calls", "function_call", "reasoning_content", "audio", "refusal",
)  # fmt: skip


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
