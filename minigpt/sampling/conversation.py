"""How messages become the tokens that a model continues.

A model that was trained on conversations reads control tokens (minigpt/data/chat/roles.py); any other model gets a
plain transcript, which it may or may not continue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minigpt.data.chat.roles import encode_turn, ends_of, has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions

ROLES = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


class ConversationTooLong(UserFault):
    """Messages and answer are longer than the context."""


@dataclass(frozen=True)
class Turn:
    """The tokens that a model continues with its answer, and what ends the answer."""

    tokens: list[int]
    ends: frozenset[int]  # tokens that end the answer
    stop: Sequence[str] = ()  # texts that end the answer

    def options(self, options: SamplingOptions) -> SamplingOptions:
        """Return sampling options with which the answer ends at the turn's stop strings, too."""
        return replace(options, stop=[*options.stop, *self.stop])


def turn_of(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> Turn:
    """Encode messages, up to the point where the assistant's answer begins.

    A tokenizer with roles gives `<|system|>Be brief.<|user|>Hello<|assistant|>`, and <|end|> ends the answer, as any
    other control token does. Without them the text is

        System: Be brief.
        User: Hello
        Assistant:

    and the answer ends where the model begins a line with `User:`. Another program's chat model has its own template.
    """
    if template := tokenizer.template:
        known = [{**message, "role": ROLES[message["role"]].lower()} for message in messages]
        return Turn(tokenizer.encode(template.render(known), allow_special=True), ends_of(tokenizer) | template.ends)
    if has_roles(tokenizer):
        return Turn(encode_turn(tokenizer, messages), ends_of(tokenizer))
    lines = [f"{ROLES[message['role']]}: {message['content']}\n" for message in messages]
    return Turn([*tokenizer.start, *tokenizer.encode("".join([*lines, "Assistant:"]))], ends_of(tokenizer), ["\nUser:"])


def has_conversations(tokenizer: Tokenizer) -> bool:
    """Return whether a model with this tokenizer was trained on conversations."""
    return tokenizer.template is not None or has_roles(tokenizer)


def form_of(tokenizer: Tokenizer) -> str:
    """Return a name for the form in which a model reads messages."""
    if has_conversations(tokenizer):
        return "messages by its own chat_template" if tokenizer.template else "messages as data=chat trained it"
    return "a plain transcript, as it has no chat_template, and may not answer"


def refuse_too_long(turn: Turn, block_size: int, max_new_tokens: int) -> None:
    """Refuse messages that leave less than a quarter of the context (or max_new_tokens) for the answer.

    The model would lose their beginning. `chat` and the page then leave out the oldest exchange.
    """
    room = block_size - min(max_new_tokens, block_size // 4)
    if len(turn.tokens) > room:
        kept = f", of which {block_size - room:,} are for the answer" if room < block_size else ""
        wrong = f"the model reads {block_size:,} tokens{kept}; these messages have {len(turn.tokens):,}"
        raise ConversationTooLong(f"{wrong}. Send a shorter one")
