"""OpenAI's protocol: from the fields of a request to the texts to write, and from written texts to JSON.

Source: https://platform.openai.com/docs/api-reference (completions, chat, models, errors).
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from minigpt.config.commands import ServeConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.sampling.conversation import refuse_too_long, turn_of
from minigpt.sampling.filters import options_of
from minigpt.sampling.generate import window_start
from minigpt.sampling.write import encode_prompt, text_ends, texts_of
from minigpt.serving.engine import Answer, Piece, Served, Token
from minigpt.serving.views import label

MAX_TOP = 20  # likeliest tokens that are named with each token
FINISH = {"end of text": "stop", "stopped": "stop", "length": "length"}  # TextInProgress.ended -> finish_reason
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

# Fields that would change the answer and are not supported: refused unless they have one of these values.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "suffix": ("",), "echo": (False,),
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "best_of": (1,), "max_new_tokens": (),
}  # fmt: skip

StopText = Annotated[str, Field(max_length=200)]


class ApiError(Exception):
    """An error that is sent to the client, in OpenAI's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else KINDS.get(status, "invalid_request_error")
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class WritingRequest(BaseModel):
    """The fields that both kinds of request share. Unknown fields are let pass; null means the default."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str
    n: int = Field(1, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=1e-3, le=1e3)
    seed: int = Field(default_factory=lambda: secrets.randbits(32), ge=-(2**63), lt=2**63)
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] = []
    stream: bool = False
    stream_options: dict[str, Any] = {}
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, content: Any) -> Any:
        """Drop fields that are null."""
        return {key: value for key, value in content.items() if value is not None} if type(content) is dict else content


class CompletionRequest(WritingRequest):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] = ""
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    truncate_prompt_tokens: Literal[-1] | None = None  # vLLM's: read the end of a prompt that is too long


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(WritingRequest):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP)


def read_request(body: CompletionRequest | ChatRequest, served: Served, config: ServeConfig) -> "Reply":
    """Return the reply to a request, whose answer is ready to be written. A wish above config.max_tokens is cut to it.

    A prompt that is longer than the context is refused, since the model would read only its end.

    Raises:
        ApiError: 400, for a field or a prompt that can't be used.
    """
    tokenizer, block_size = served.loaded.tokenizer, served.loaded.model.config.block_size
    most = config.rows + config.queue
    for name, neutral in NEUTRAL.items():
        if name in (body.model_extra or {}) and (body.model_extra or {})[name] not in neutral:
            raise ApiError(400, f"{name} is not supported here: leave it out", param=name)
    wish = body.max_tokens or 16
    if isinstance(body, ChatRequest):
        wish = body.max_completion_tokens or body.max_tokens or 256
    stop = [text for text in ([body.stop] if isinstance(body.stop, str) else body.stop) if text]
    options = replace(options_of(body), max_new_tokens=min(wish, config.max_tokens), stop=stop)
    if isinstance(body, ChatRequest):
        top = body.top_logprobs if body.logprobs else None
        turn = turn_of(tokenizer, [{"role": message.role, "content": message.text} for message in body.messages])
        refuse_too_long(turn, block_size, options.max_new_tokens)
        prompts, options, ends = [turn.tokens], turn.options(options), turn.ends
    else:
        top = body.logprobs
        prompts = read_prompts(body, tokenizer, block_size)
        ends = text_ends(tokenizer)
    if len(prompts) * body.n > most:
        raise ApiError(400, f"n={body.n} asks for {len(prompts) * body.n} texts; at most {most}", param="prompt")
    return Reply(body, Answer(body.model, texts_of(prompts, options, body.n, ends), top), tokenizer, prompts)


def read_prompts(body: CompletionRequest, tokenizer: Tokenizer, block_size: int) -> list[list[int]]:
    """Return the prompts as tokens: of a text, a list of texts, a list of tokens, or a list of these."""
    one = isinstance(body.prompt, str) or (bool(body.prompt) and isinstance(body.prompt[0], int))
    given: list[Any] = [body.prompt] if one else list(body.prompt)
    prompts = []
    for prompt in given:
        if isinstance(prompt, str):
            tokens = encode_prompt(tokenizer, prompt)
        elif prompt and all(0 <= token < tokenizer.vocab_size for token in prompt):
            tokens = prompt
        else:
            wanted = f"at least one token, each from 0 to {tokenizer.vocab_size - 1}"
            raise ApiError(400, f"prompt: wanted {wanted}", param="prompt")
        if len(tokens) > block_size:
            if body.truncate_prompt_tokens is None:
                sizes = f"the model reads {block_size:,} tokens, and the prompt has {len(tokens):,}"
                remedy = "Send its end only, or truncate_prompt_tokens=-1"
                raise ApiError(400, f"{sizes}. {remedy}", param="prompt", code="context_length_exceeded")
            tokens = tokens[window_start(len(tokens), block_size) :]
        prompts.append(tokens)
    return prompts


class Reply:
    """A request, its answer, and the prompts as tokens: turns the written texts into JSON."""

    def __init__(self, body: WritingRequest, answer: Answer, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]):
        self.body, self.answer, self.tokenizer, self.prompts = body, answer, tokenizer, prompts
        self.chat = isinstance(body, ChatRequest)
        self.kind = "chat.completion" if self.chat else "text_completion"
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.head = {"id": name, "object": self.kind, "created": int(time.time()), "model": answer.model}
        self.begun: set[int] = set()  # choices of which a part was sent

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return a reply that is not streamed, of a whole piece for each choice."""
        choices = [self._choice(piece, message="message") for piece in pieces]
        return {**self.head, "choices": choices, "usage": self.usage(sum(len(piece.tokens) for piece in pieces))}

    def chunk(self, *pieces: Piece, **more: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else self.kind
        choices = [self._choice(piece, message="delta") for piece in pieces]
        return {**self.head, "object": kind, "choices": choices, **more}

    def usage(self, written: int) -> dict[str, int]:
        """Return the counts of tokens."""
        read = sum(map(len, self.prompts))
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _choice(self, piece: Piece, *, message: str) -> dict[str, Any]:
        first = piece.choice not in self.begun
        self.begun.add(piece.choice)
        choice: dict[str, Any] = {"index": piece.choice, "finish_reason": FINISH.get(piece.ended)}
        if self.chat:
            choice[message] = {"content": piece.text} | ({"role": "assistant"} if first else {})
        else:
            choice["text"] = piece.text
        logprobs = self._chat_logprobs if self.chat else self._logprobs
        choice["logprobs"] = None if self.answer.top is None else logprobs(piece.tokens)
        if self.body.return_token_ids:
            choice["token_ids"] = [token.id for token in piece.tokens]
            prompt, number = divmod(piece.choice, len(self.answer.texts) // len(self.prompts))
            if first and number == 0:
                choice["prompt_token_ids"] = self.prompts[prompt]
        return choice

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        name = partial(label, self.tokenizer)
        return {
            "tokens": [name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{name(top): logprob for top, logprob in token.top} for token in tokens],
        }

    def _chat_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        def described(token: int, logprob: float) -> dict[str, Any]:
            data = self.tokenizer.token_bytes(token)
            return {"token": label(self.tokenizer, token), "logprob": logprob, "bytes": list(data)}

        tops = [[described(*top) for top in token.top] for token in tokens]
        pairs = zip(tokens, tops, strict=True)
        content = [described(token.id, token.logprob) | {"top_logprobs": top} for token, top in pairs]
        return {"content": content, "refusal": None}


def sentence_of(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Return what is wrong with a request's body, by pydantic's first error, and the field that is concerned."""
    error, places = errors[0], [str(place) for place in errors[0]["loc"][1:]]
    if error["type"] == "json_invalid" or not places:
        return f"the request must be a JSON object, with Content-Type: application/json ({error['msg']})", None
    got = "" if error["type"] == "missing" else f", got {ascii(error.get('input'))[:100]}"
    return f"{'.'.join(places)}: {error['msg']}{got}", places[0]
