"""Conversations: each line of JSON is a conversation, and a document."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from minigpt.data.chat.roles import ROLES, is_text_part, marked
from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.jsonl import lines_of

WANTED = '{"messages": [{"role": "user", "content": "..."}, ...]} or {"prompt": "...", "completion": "..."}'
NOT_LEARNED = (  # keys of a message that would be ignored
    "weight", "train", "tool_calls", "function_call", "reasoning_content", "audio", "refusal",
)  # fmt: skip


def read_chat(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the conversation of each record, as `marked` writes it; an empty document if the assistant says nothing."""
    for place, line in lines_of(file, begin, end):
        try:
            messages = messages_of(json.loads(line.decode(options.encoding, options.errors).lstrip("\ufeff")))
            content = marked(messages, options.errors) if any(map(is_answer, messages)) else b""
        except UnicodeError as error:
            remedy = "Write it as UTF-8 without lone surrogates, or use data.errors=replace"
            raise BadFile(f"{file}, {place}: {error}. {remedy}") from None
        except BadMessages as fault:
            raise BadFile(f"{file}, {place}: {fault}; wanted {WANTED}") from None
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{file}, {place} is not JSON ({error}). Give one conversation a line") from None
        yield Document(f"{file.label}, {place}", iter([content] if content else []))


class BadMessages(Exception):
    """A record that is no conversation."""


def is_answer(message: Mapping[str, str]) -> bool:
    return message["role"] == "assistant" and bool(message["content"].strip())


def messages_of(record: Any) -> list[dict[str, str]]:
    """Return the messages of a record, role and content of each.

    Raises:
        BadMessages: it is not of OpenAI's form, nor a prompt and its completion.
    """
    if not isinstance(record, dict):
        raise BadMessages("the record is not an object")
    if isinstance(record.get("messages"), list):
        if record.get("completion"):
            raise BadMessages("the record has both 'messages' and 'completion'")
        return [_message(each, f"messages[{place}]") for place, each in enumerate(record["messages"])]
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return [_message(each, f"message {place}") for place, each in enumerate([*prompt, *completion])]
    if isinstance(prompt, str) and isinstance(completion, str):
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    raise BadMessages(f"the record has {', '.join(map(repr, list(record)[:8])) or 'nothing'}")


def _message(message: Any, place: str) -> dict[str, str]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise BadMessages(f"{place} has the role {str(role)[:40]!r}; the roles are {', '.join(ROLES)}")
    if ignored := [key for key in NOT_LEARNED if message.get(key) not in (None, "", [])]:
        raise BadMessages(f"{place} has {ignored[0]!r}, which is not known here: leave it out")
    content = message.get("content")
    if isinstance(content, list) and all(is_text_part(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadMessages(f"{place}.content is not text")
    return {"role": role, "content": content}
