"""OpenAI's protocol, field by field."""

import json
import math
import time

import pytest

from minigpt.data.chat.roles import with_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.sampling.conversation import Turn, turn_of
from minigpt.serving.engine import Piece, Token
from minigpt.serving.protocol import ApiError, Reply, read_order
from minigpt.serving.views import label

BYTE = build_tokenizer("byte")
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def order(chat=False, max_texts=1000, **content):
    content = {"model": "m", **({"messages": HELLO} if chat else {"prompt": "ab"}), **content}
    return read_order(content, {"m": BYTE}, contexts={"m": 64}, chat=chat, max_tokens=100, max_texts=max_texts)


def whole(order, *pieces):
    return json.loads("".join(Reply(order, 0).whole(pieces)))


def options(**content):
    return order(**content).answer.rows[0].options


def test_a_completion_has_openais_defaults_and_takes_its_options():
    own = options()
    assert (own.max_new_tokens, own.temperature, own.top_p, own.stop) == (16, 1.0, 1.0, [])
    own = options(max_tokens=7, temperature=0, top_p=0.5, seed=9, stop="x", top_k=3, min_p=0.1, repetition_penalty=1.2)
    assert (own.max_new_tokens, own.temperature, own.top_p, own.seed, own.stop) == (7, 0, 0.5, 9, ["x"])
    assert (own.top_k, own.min_p, own.repetition_penalty) == (3, 0.1, 1.2)
    assert options().seed != options().seed  # without one: any
    assert options(chat=True, max_completion_tokens=5).max_new_tokens == 5


def test_prompts_come_as_text_or_tokens_alone_or_several():
    assert [row.tokens for row in order(prompt="hi").answer.rows] == [[104, 105]]
    assert [row.tokens for row in order(prompt=["a", "b"], n=2).answer.rows] == [[97], [97], [98], [98]]
    assert [row.number for row in order(prompt=["a", "b"], n=2).answer.rows] == [0, 1, 0, 1]
    assert [row.tokens for row in order(prompt=[1, 256]).answer.rows] == [[1, 256]]
    assert [row.tokens for row in order(prompt=[[1], [2, 3]]).answer.rows] == [[1], [2, 3]]
    assert order(prompt="").answer.rows[0].tokens == [BYTE.eot]
    assert order(prompt="<|endoftext|>").answer.rows[0].tokens == list(b"<|endoftext|>")
    assert order().answer.rows[0].ends == {BYTE.eot}


def test_messages_become_a_transcript_or_what_the_tokenizer_says():
    row = order(chat=True).answer.rows[0]
    assert BYTE.decode(row.tokens) == "System: Be brief.\nUser: Hello\nAssistant:"
    assert row.options.stop == ["\nUser:"]
    assert order(chat=True, stop=["!"]).answer.rows[0].options.stop == ["!", "\nUser:"]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert BYTE.decode(order(chat=True, messages=parts).answer.rows[0].tokens) == "User: ab\nAssistant:"

    own = with_roles(BYTE)
    system, user, assistant, _ = range(257, 261)
    wanted = [system, *b"Be brief.", user, *b"Hello", assistant]
    assert turn_of(own, HELLO) == Turn(
        wanted, frozenset(range(256, 261)), ()
    )  # nobody else's turn is part of an answer


def test_messages_longer_than_the_context_are_refused_as_openai_does():
    longest = [{"role": "user", "content": "x" * (64 - len("User: \nAssistant:"))}]
    assert len(order(chat=True, messages=longest).answer.rows[0].tokens) == 64
    with pytest.raises(ApiError, match="reads 64 tokens, and these messages have 65") as refused:
        order(chat=True, messages=[{"role": "user", "content": longest[0]["content"] + "x"}])
    error = refused.value.content["error"]
    assert (refused.value.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert error["type"] == "invalid_request_error"
    assert len(order(prompt="x" * 65).answer.rows[0].tokens) == 65  # of a plain text the end is read


@pytest.mark.parametrize(
    ("content", "param", "says"),
    [
        ({"max_tokens": 0}, "max_tokens", "from 1 to 100, got 0"),
        ({"max_tokens": 101}, "max_tokens", "from 1 to 100"),
        ({"max_tokens": 1.5}, "max_tokens", "a whole number"),
        ({"max_tokens": True}, "max_tokens", "a whole number"),
        ({"temperature": -1}, "temperature", "from 0 to 100"),
        ({"temperature": math.nan}, "temperature", "from 0 to 100"),
        ({"temperature": "warm"}, "temperature", "a number"),
        ({"top_p": 0}, "top_p", "from 1e-09 to 1"),
        ({"n": 129}, "n", "from 1 to 128"),
        ({"n": 100, "prompt": ["a", "b"]}, "prompt", "2 prompts; wanted from 1 to 1 with this n"),
        ({"n": 81, "max_texts": 80}, "n", "from 1 to 80"),
        ({"n": 81, "max_texts": 80, "chat": True}, "n", "from 1 to 80"),
        ({"best_of": 3}, "best_of", "from 1 to 1"),
        ({"seed": 2**63}, "seed", "from"),
        ({"stop": [""]}, "stop", "characters"),
        ({"stop": ["\ud800"]}, "stop", "characters"),
        ({"stop": ["a"] * 17}, "stop", "up to 16"),
        ({"stop": 3}, "stop", "text or a list"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"prompt": []}, "prompt", "from 1 to 128"),
        ({"prompt": [[]]}, "prompt", "tokens from 0 to 256"),
        ({"prompt": [257]}, "prompt", "tokens from 0 to 256"),
        ({"prompt": [True]}, "prompt", "tokens from 0 to 256"),
        ({"prompt": {"a": 1}}, "prompt", "text or a list"),
        ({"prompt": "\ud800"}, "prompt", "surrogate"),
        ({"echo": True}, "echo", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not supported"),
        ({"max_token": 5}, "max_token", "unknown parameter 'max_token'"),
        ({"\ud800": 5}, "\\ud800", "unknown parameter"),
        ({"chat": True, "messages": []}, "messages", "at least one"),
        ({"chat": True, "messages": ["hi"]}, "messages[0]", "role"),
        ({"chat": True, "messages": [{"role": "robot", "content": ""}]}, "messages[0]", "system, developer, user"),
        ({"chat": True, "messages": [{"role": "user", "content": 3}]}, "messages[0]", "content must be text"),
        (
            {"chat": True, "messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
            "messages[0]",
            "content must be text",
        ),
        ({"chat": True, "top_logprobs": 3}, "top_logprobs", "logprobs=true"),
        ({"chat": True, "tools": [{}]}, "tools", "not supported"),
    ],
)
def test_a_wrong_value_is_named(content, param, says):
    with pytest.raises(ApiError) as error:
        order(**content)
    assert error.value.status == 400
    assert error.value.content["error"]["param"] == param
    assert error.value.content["error"]["type"] == "invalid_request_error"
    assert says in str(error.value)


def test_what_means_nothing_here_is_taken():
    order(user="me", presence_penalty=0, frequency_penalty=None, logit_bias={}, echo=False, suffix=None, best_of=1)
    order(chat=True, tools=[], response_format={"type": "text"}, store=False, metadata={"a": "b"})


def test_a_model_that_is_not_there_is_404():
    with pytest.raises(ApiError, match="there are: m") as error:
        order(model="gpt-4")
    assert (error.value.status, error.value.content["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(ApiError, match="model is missing"):
        order(model=None)


def test_each_control_token_has_its_own_name_among_logprobs():
    own = with_roles(BYTE)
    asked = read_order(
        {"model": "m", "prompt": "a", "logprobs": 3},
        {"m": own},
        contexts={"m": 9},
        chat=False,
        max_tokens=9,
        max_texts=9,
    )
    tops = [(260, -0.1), (256, -9.0), (257, -12.5)]
    found = whole(asked, Piece(0, "", [Token(260, -0.1, tops)], "end of text"))["choices"][0]["logprobs"]
    assert found["tokens"] == ["<|end|>"]
    assert found["top_logprobs"] == [{"<|end|>": -0.1, "<|endoftext|>": -9.0, "<|system|>": -12.5}]
    assert label(own, 258) == "<|user|>"


def test_logprobs_in_both_forms():
    token = Token(104, -0.5, [(104, -0.5), (195, -1.5)])
    reply = whole(order(logprobs=2), Piece(0, "h", [token, Token(105, -2.0, [])], "length"))
    (choice,) = reply["choices"]
    assert choice["logprobs"] == {
        "tokens": ["h", "i"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"h": -0.5, "bytes:\\xc3": -1.5}, {}],
        "text_offset": [0, 1],
    }
    assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    chat = order(chat=True, logprobs=True, top_logprobs=2, return_token_ids=True)
    (choice,) = Reply(chat, 0).chunk(Piece(0, "h", [token]), first=True)["choices"]
    assert choice["delta"] == {"role": "assistant", "content": "h"}
    assert choice["token_ids"] == [104]
    assert choice["prompt_token_ids"] == list(chat.prompts[0])
    assert choice["logprobs"]["content"] == [
        {"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]}, {"token": "bytes:\\xc3", "logprob": -1.5, "bytes": [195]},
        ]}
    ]  # fmt: skip


def test_a_request_costs_its_size_and_not_that_of_its_choices_together():
    wanted = order(prompt=["ab", "c"], n=3, logprobs=0, return_token_ids=True)
    rows = wanted.answer.rows
    assert len({id(row.tokens) for row in rows}) == 2  # a list for each prompt
    ids = [choice.get("prompt_token_ids") for choice in whole(wanted, *map(Piece, range(6)))["choices"]]
    assert ids == [[97, 98], None, None, [99], None, None]
    assert len(list(Reply(wanted, 0).whole([Piece(index) for index in range(6)]))) == 8  # no choice waits for another
    began = time.monotonic()
    (choice,) = whole(order(logprobs=0), Piece(0, "", [Token(104)] * 30_000))["choices"]
    assert choice["logprobs"]["text_offset"] == list(range(30_000))
    assert time.monotonic() - began < 4  # all names summed up for each: 20 s and more
    with pytest.raises(ApiError, match="with this n"):  # said before anything is encoded
        order(prompt=["\ud800"] * 3, n=50)


@pytest.mark.parametrize(
    ("ended", "reason"), [("length", "length"), ("stopped", "stop"), ("end of text", "stop"), ("", None)]
)
def test_how_a_text_ended(ended, reason):
    assert whole(order(), Piece(0, "", [], ended))["choices"][0]["finish_reason"] == reason
