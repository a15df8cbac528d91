"""OpenAI's protocol: from the fields of a request to the texts to write, and from written texts to JSON.

Source: https://platform.openai.com/docs/api-reference (completions, chat, models, errors).
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from minigpt.config.schema import SampleConfig
from minigpt.data.chat.roles import is_text_part
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.sampling.conversation import ROLES, Turn, refuse_too_long, turn_of
from minigpt.sampling.generate import Row
from minigpt.sampling.write import encode_prompt
from minigpt.serving.engine import Answer, Piece, Token

MAX_TEXTS, MAX_STOPS, MAX_STOP_CHARACTERS, MAX_TOP = 128, 16, 200, 20
FINISH = {"end of text": "stop", "stopped": "stop", "length": "length"}  # Sample.ended -> finish_reason

# Fields that have no effect here, and fields that are refused unless they have one of these values.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
NOT_HERE: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0, None), "frequency_penalty": (0, None), "logit_bias": ({}, None), "suffix": ("", None),
    "echo": (False, None), "tools": ([], None), "tool_choice": ("none", "auto", None), "functions": ([], None),
    "response_format": ({"type": "text"}, None), "modalities": (["text"], None), "parallel_tool_calls": (True, False),
}  # fmt: skip


KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
WORDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", (int, float): "a number", str: "text", list: "a list",
    (str, list): "text or a list", dict: "an object",
}  # fmt: skip


class ApiError(Exception):
    """An error that is sent to the client, in OpenAI's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else KINDS.get(status, "invalid_request_error")
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Fields:
    """The fields of a request, each taken once and checked.

    Args:
        content: of the request's body.
    """

    def __init__(self, content: Mapping[str, Any]):
        self.left = dict(content)

    def take(self, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a field; the default if it is missing or null.

        Raises:
            ApiError: it has another type.
        """
        value = self.left.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ApiError(400, f"{name} must be {WORDS[kinds]}", param=name)
        return value

    def number(self, name: str, default: float | None, low: float, high: float, *, whole: bool = False) -> Any:
        """Return a number between limits, both included; the default if it is missing or null.

        Raises:
            ApiError: it is no number, or outside of the limits.
        """
        value = self.take(name, int if whole else (int, float), default)
        if value is not None and not low <= value <= high:  # NaN neither
            raise ApiError(400, f"{name} must be from {low} to {high}, got {value}", param=name)
        return value

    def finish(self) -> None:
        """Refuse fields that were not taken.

        Raises:
            ApiError: a field is unknown, or would change the answer and is not supported.
        """
        for name, value in self.left.items():
            param = ascii(name[:100])[1:-1]
            if name in NOT_HERE and value not in NOT_HERE[name]:
                raise ApiError(400, f"{param} is not supported here: leave it out", param=param)
            if name not in NOT_HERE and name not in IGNORED:
                raise ApiError(400, f"unknown parameter {param!r}", param=param)


@dataclass
class Order:
    """What a request asks for."""

    answer: Answer
    tokenizer: Tokenizer
    chat: bool
    stream: bool
    usage: bool  # in a chunk of its own at the end of a stream
    token_ids: bool
    prompts: Sequence[Sequence[int]]
    shown: str  # the prompt, for the log


def read_order(
    content: Mapping[str, Any],
    tokenizers: Mapping[str, Tokenizer],
    *,
    contexts: Mapping[str, int],
    chat: bool,
    max_tokens: int,
    max_texts: int,
) -> Order:
    """Return what the body of a request asks for.

    Args:
        content: the body.
        tokenizers: of the models, by name.
        contexts: tokens that each model reads; longer messages are refused, since it would read only their end.
        chat: whether the body holds messages, not a prompt.
        max_tokens: most tokens of a text.
        max_texts: most texts of a request; more are refused before anything is encoded.

    Raises:
        ApiError: 404 for an unknown model, 400 for anything else that is wrong.
    """
    fields = Fields(content)
    model = fields.take("model", str)
    if model is None:
        raise ApiError(400, "model is missing", param="model")
    if model not in tokenizers:
        known = ", ".join(tokenizers)
        raise ApiError(
            404, f"the model {str(model)[:100]!r} does not exist; there are: {known}", code="model_not_found"
        )
    max_texts = min(max_texts, MAX_TEXTS)
    n = fields.number("n", 1, 1, max_texts, whole=True)
    fields.number("best_of", n, n, n, whole=True)
    turns = (
        [_read_messages(fields, tokenizers[model], contexts[model])]
        if chat
        else _read_prompts(fields, tokenizers[model], max_texts // n)
    )
    top = _read_logprobs(fields, chat)
    limit = fields.number("max_tokens", min(256 if chat else 16, max_tokens), 1, max_tokens, whole=True)
    if chat:
        limit = fields.number("max_completion_tokens", limit, 1, max_tokens, whole=True)
    options = SampleConfig(
        max_new_tokens=limit,
        temperature=fields.number("temperature", 1.0, 0, 100),
        top_p=fields.number("top_p", 1.0, 1e-9, 1),
        top_k=fields.number("top_k", 0, 0, 2**31, whole=True),
        min_p=fields.number("min_p", 0.0, 0, 1),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 1e-3, 1e3),
        seed=fields.number("seed", secrets.randbits(32), -(2**63), 2**63 - 1, whole=True),
        stop=_read_stop(fields),
    )
    stream = fields.take("stream", bool, False)
    usage = bool(fields.take("stream_options", dict, {}).get("include_usage"))
    token_ids = fields.take("return_token_ids", bool, False)
    fields.finish()
    rows = []
    for turn in turns:
        own = options if not turn.stop else SampleConfig(**{**vars(options), "stop": [*options.stop, *turn.stop]})
        rows += [Row(turn.tokens, own, number, turn.ends) for number in range(n)]  # they share the list of tokens
    shown = str(content.get("messages" if chat else "prompt"))
    prompts = [turn.tokens for turn in turns]
    return Order(Answer(model, rows, top), tokenizers[model], chat, stream, usage, token_ids, prompts, shown)


def _read_prompts(fields: Fields, tokenizer: Tokenizer, most: int) -> list[Turn]:
    """Return the prompts, `most` at most: a text, a list of texts, a list of tokens, or a list of these."""
    given = fields.take("prompt", (str, list), "")
    one = isinstance(given, str) or (bool(given) and all(isinstance(each, int) for each in given))
    ends: frozenset[int] = frozenset() if tokenizer.eot is None else frozenset({tokenizer.eot})
    prompts = [given] if one else given
    if not 0 < len(prompts) <= most:
        raise ApiError(400, f"prompt holds {len(prompts)} prompts; wanted from 1 to {most} with this n", param="prompt")
    return [Turn(_encode(tokenizer, prompt), ends) for prompt in prompts]


def _encode(tokenizer: Tokenizer, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return _refused(lambda: encode_prompt(tokenizer, prompt), "prompt")
    fit = isinstance(prompt, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in prompt)
    if not fit or not prompt or not all(0 <= token < tokenizer.vocab_size for token in prompt):
        wanted = f"a text, or a list of tokens from 0 to {tokenizer.vocab_size - 1}, or a list of these"
        raise ApiError(400, f"prompt must be {wanted}", param="prompt")
    return prompt


def _read_messages(fields: Fields, tokenizer: Tokenizer, context: int) -> Turn:
    messages = fields.take("messages", list, [])
    plain = []
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            raise ApiError(400, f"{param}.role must be one of {', '.join(ROLES)}", param=param)
        content = message.get("content")
        if isinstance(content, list) and all(is_text_part(part) for part in content):
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            raise ApiError(400, f"{param}.content must be text", param=param)
        plain.append({"role": role, "content": content})
    if not plain:
        raise ApiError(400, "messages must hold at least one message", param="messages")
    turn: Turn = _refused(lambda: turn_of(tokenizer, plain), "messages")
    try:
        refuse_too_long(turn, context)
    except UserFault as fault:
        raise ApiError(400, str(fault), param="messages", code="context_length_exceeded") from None
    return turn


def _refused(encode: Callable[[], Any], param: str) -> Any:
    try:
        return encode()
    except UserFault as fault:
        raise ApiError(400, str(fault), param=param) from None


def _read_logprobs(fields: Fields, chat: bool) -> int | None:
    """Return how many of the likeliest tokens are wanted with each token; None: no logprobs."""
    if not chat:
        return fields.number("logprobs", None, 0, MAX_TOP, whole=True)
    wanted = fields.take("logprobs", bool, False)
    top = fields.number("top_logprobs", 0, 0, MAX_TOP, whole=True)
    if top and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    return top if wanted else None


def _read_stop(fields: Fields) -> list[str]:
    stop = fields.take("stop", (str, list), [])
    stop = [stop] if isinstance(stop, str) else stop
    fit = all(isinstance(each, str) and 0 < len(each) <= MAX_STOP_CHARACTERS for each in stop)
    fit = fit and not any(re.search("[\ud800-\udfff]", each) for each in stop)
    if not fit or len(stop) > MAX_STOPS:
        wanted = f"a text, or a list of up to {MAX_STOPS} texts, each of 1 to {MAX_STOP_CHARACTERS} characters"
        raise ApiError(400, f"stop must be {wanted}", param="stop")
    return stop


class Reply:
    """Turns written texts into JSON.

    Args:
        order: the request.
        created: seconds since 1970.
    """

    def __init__(self, order: Order, created: int):
        self.order = order
        self.kind = "chat.completion" if order.chat else "text_completion"
        name = f"{'chatcmpl' if order.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.head = {"id": name, "object": self.kind, "created": created, "model": order.answer.model}

    def whole(self, pieces: Sequence[Piece]) -> Iterator[str]:
        """Yield the JSON of a reply that is not streamed, from a whole piece for each choice.

        It comes choice by choice: `json.dumps` holds the interpreter's lock, and a whole reply may have 100 MB.
        """
        head = json.dumps({**self.head, "usage": self.usage(sum(len(piece.tokens) for piece in pieces))})
        yield head[:-1] + ', "choices": ['
        for piece in pieces:
            choice = json.dumps(self._choice(piece, message="message"), ensure_ascii=False)
            yield f"{choice}, " if piece is not pieces[-1] else choice
        yield "]}"

    def chunk(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        """Return a chunk of a stream; a prompt's first chunk holds its tokens, if they are asked for."""
        kind = "chat.completion.chunk" if self.order.chat else self.kind
        return {**self.head, "object": kind, "choices": [self._choice(piece, message="delta", first=first)]}

    def last_chunk(self, tokens: int) -> dict[str, Any]:
        """Return the chunk with the usage, after `tokens` tokens."""
        kind = "chat.completion.chunk" if self.order.chat else self.kind
        return {**self.head, "object": kind, "choices": [], "usage": self.usage(tokens)}

    def usage(self, written: int) -> dict[str, int]:
        """Return the count of tokens."""
        read = sum(map(len, self.order.prompts))
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _choice(self, piece: Piece, *, message: str, first: bool = True) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": piece.choice, "finish_reason": FINISH.get(piece.ended)}
        if self.order.chat:
            choice[message] = {"content": piece.text} | ({"role": "assistant"} if first else {})
        else:
            choice["text"] = piece.text
        logprobs = self._chat_logprobs if self.order.chat else self._logprobs
        choice["logprobs"] = None if self.order.answer.top is None else logprobs(piece.tokens)
        if self.order.token_ids:
            choice["token_ids"] = [token.id for token in piece.tokens]
            prompt, number = divmod(piece.choice, len(self.order.answer.rows) // len(self.order.prompts))
            if first and number == 0:
                choice["prompt_token_ids"] = self.order.prompts[prompt]
        return choice

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        names = [self.name_of(token.id) for token in tokens]
        offsets = list(accumulate(map(len, names[:-1]), initial=0))[: len(names)]
        tops = [{self.name_of(each): logprob for each, logprob in token.top} for token in tokens]
        logprobs = [token.logprob for token in tokens]
        return {"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _chat_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        def one(token: int, logprob: float) -> dict[str, Any]:
            data = self.order.tokenizer.token_bytes(token)
            return {"token": self.name_of(token), "logprob": logprob, "bytes": list(data)}

        content = [
            {**one(token.id, token.logprob), "top_logprobs": [one(*each) for each in token.top]} for token in tokens
        ]
        return {"content": content, "refusal": None}

    def name_of(self, token: int) -> str:
        """Return a token as text, a control token as its name, and bytes that are no UTF-8 as OpenAI writes them."""
        data = self.order.tokenizer.token_bytes(token)
        try:
            return self.order.tokenizer.names.get(token) or data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
