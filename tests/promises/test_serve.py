"""`minigpt serve` answers OpenAI's protocol: by default to this machine alone, to others with a token."""

import base64
import json
import re

import pytest

pytest.importorskip("fastapi", reason="pip install fastapi uvicorn httpx, or make test-extras")
pytest.importorskip("httpx", reason="pip install fastapi uvicorn httpx, or make test-extras")

from fastapi.testclient import TestClient

import minigpt
from minigpt.cli import _dispatch
from minigpt.config.compose import compose
from minigpt.faults import UserFault
from minigpt.serving.app import make_app
from minigpt.serving.engine import Engine, Token, load_models
from minigpt.serving.protocol import ChatRequest, CompletionRequest, Piece, read_request
from minigpt.serving.serve import read_token

HERE = "http://localhost:8000"


@pytest.fixture(scope="module")
def trained(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("served"))("model.block_size=24", "batch_tokens=240")


@pytest.fixture(scope="module")
def served(trained):
    """HTTP clients of applications with these settings, and what they log."""
    clients = []

    def start(*words, token=None):
        logged = []
        config = compose("serve", [f"checkpoint={trained}", "rows=4", "queue=8", "compile=off", *words])
        engine = Engine(load_models(config), queue=config.queue, on_error=str)
        client = TestClient(make_app(engine, config, token=token, say=logged.append), base_url=HERE)
        clients.append(client)
        client.__enter__()
        client.logged = logged
        return client

    yield start
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def http(served):
    return served("log=prompts", "max_tokens=50")


def complete(http, **fields):
    return http.post("/v1/completions", json={"model": "run", "prompt": "how much", "max_tokens": 8, **fields})


def error_of(reply):
    return reply.status_code, reply.json()["error"]


def test_the_texts_are_those_of_minigpt_sample_whole_and_streamed(http, trained):
    fields = {"seed": 3, "temperature": 0.8}
    whole = complete(http, **fields, n=2).json()
    wanted = minigpt.load(trained).generate("how much", max_new_tokens=8, temperature=0.8, seed=3)
    assert whole["choices"][0]["text"] == wanted
    assert whole["choices"][1]["text"] != wanted
    assert whole["usage"] == {"prompt_tokens": 8, "completion_tokens": 16, "total_tokens": 24}
    events = complete(http, **fields, stream=True, logprobs=1, stream_options={"include_usage": True})
    *lines, end = [line.removeprefix("data: ") for line in events.text.split("\n\n") if line]
    chunks = [json.loads(line) for line in lines]
    assert end == "[DONE]"
    assert events.text.isascii()  # some clients divide lines at U+2028, too
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == wanted
    names = [name for chunk in chunks[:-1] for name in chunk["choices"][0]["logprobs"]["tokens"]]
    assert len(names) == 8
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-2:] == [None, "length"]


def test_equal_prompts_get_different_texts(http):
    choices = complete(http, prompt=["how "] * 5, temperature=1.5, max_tokens=12).json()["choices"]
    assert len({choice["text"] for choice in choices}) == 5


def test_a_conversation(http):
    fields = {"model": "run", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 4}
    reply = http.post("/v1/chat/completions", json={**fields, "logprobs": True, "top_logprobs": 2}).json()
    assert reply["choices"][0]["message"]["role"] == "assistant"
    assert len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    fields["messages"][0]["content"] = "x" * 30
    status, error = error_of(http.post("/v1/chat/completions", json=fields))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "the model reads 24 tokens, of which 4 are for the answer; these messages have 47" in error["message"]


def test_harmless_fields_are_tolerated_and_a_large_wish_is_cut_to_the_limit(http):
    reply = complete(http, user="me", unheard_of=3, echo=False, presence_penalty=0.0, seed=None, stop="", best_of=1)
    assert reply.status_code == 200
    assert complete(http, max_tokens=10**6).json()["usage"]["completion_tokens"] <= 50


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "greater than or equal to 0, got -1"),
        ({"max_tokens": 1.5}, "max_tokens", "valid integer"),
        ({"n": 13}, "prompt", "n=13 asks for 13 texts; at most 12"),
        ({"stop": ["\ud800"]}, "stop", "valid string"),
        ({"prompt": [257]}, "prompt", "from 0 to 256"),
        ({"prompt": "\ud800"}, None, "surrogate"),
        ({"prompt": "x" * 25}, "prompt", "the model reads 24 tokens, and the prompt has 25"),
        ({"tools": [{}]}, "tools", "not supported"),
        ({"max_new_tokens": 8}, "max_new_tokens", "not supported"),
        ({"model": 3}, "model", "valid string"),
    ],
)
def test_a_wrong_value_is_named(http, fields, param, says):
    content = json.dumps({"model": "run", "prompt": "a", **fields})
    reply = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    status, error = error_of(reply)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert says in error["message"]


def test_a_long_prompt_is_cut_only_on_demand(http):
    assert complete(http, prompt="x" * 30, truncate_prompt_tokens=-1).json()["usage"]["prompt_tokens"] == 17


NONSENSE = dict.fromkeys((b"", b"{", b"[]", b"[" * 100_000, b"\xff\xfe"), 400)
NONSENSE |= {b'{"model": "\\ud800"}': 404, b" " * ((1 << 20) + 1): 413}


@pytest.mark.parametrize(("body", "status"), NONSENSE.items(), ids=range(len(NONSENSE)))
def test_nonsense_is_refused(http, body, status):
    reply = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status
    assert complete(http).status_code == 200


def test_other_names_and_origins_are_let_in_by_settings_only(http, served):
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.1.2", ""):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 400, host
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 200, host
    for origin in ("http://evil.example", "null", "http://localhost:8001", "", "http://[::1"):
        assert complete(http).status_code == 200
        refused = http.post("/v1/completions", json={"model": "run"}, headers={"Origin": origin})
        assert error_of(refused)[0] == 403, origin
    assert http.get("/v1/models", headers={"Origin": HERE}).status_code == 200
    proxied = served("hosts=models.example", "hosts=host.docker.internal", "origins=https://models.example")
    headers = {"Host": "models.example", "Origin": "https://models.example"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    asked["Access-Control-Request-Private-Network"] = "true"  # as Chrome asks before a page reaches its own machine
    assert proxied.options("/v1/completions", headers=headers | asked).status_code == 200
    reply = proxied.post("/v1/completions", json={"model": "run", "max_tokens": 1}, headers=headers)
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "https://models.example")
    assert proxied.get("/v1/models", headers={"Host": "host.docker.internal:8000"}).status_code == 200
    assert proxied.get("/v1/models", headers={"Host": "evil.example"}).status_code == 400


def test_with_a_token_nobody_gets_in_without(served):
    http = served(token="0123456789abcdef")
    for key in ("wrong", "0123456789abcde", "0123456789abcdeé"):
        reply = http.get("/v1/models", headers={"Authorization": f"Bearer {key}".encode()})
        assert error_of(reply)[1]["code"] == "invalid_api_key"
    assert http.get("/v1/models").status_code == http.post("/api/next", json={}).status_code == 401
    assert http.get("/").status_code == http.get("/health").status_code == 200
    headers = {"Authorization": "Bearer 0123456789abcdef", "Host": "192.168.1.2:8000"}
    assert http.get("/v1/models", headers=headers).json()["data"][0]["id"] == "run"


def test_other_machines_need_a_token(trained, tmp_path, monkeypatch):
    monkeypatch.delenv("MINIGPT_TOKEN", raising=False)
    with pytest.raises(UserFault, match="clients must show a token"):
        compose("serve", [f"checkpoint={trained}", "host=0.0.0.0"])
    (tmp_path / "token").write_text("short\n")
    config = compose("serve", [f"checkpoint={trained}", "host=0.0.0.0", f"token_file={tmp_path / 'token'}"])
    with pytest.raises(UserFault, match="16 ASCII characters or more"):
        read_token(config)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(config) == "0123456789abcdef"


def test_each_request_is_logged_refused_ones_too_and_writes_one_line(http, served):
    quiet = served()
    for client, shown in ((http, True), (quiet, False)):
        client.logged.clear()
        complete(client, prompt="a seldom word")
        client.get("/a%0APOST /forged 200%1b[2J")
        client.get("/v1/models", headers={"Origin": "http://evil.example"})
        client.get("/v1/models", headers={"Host": "evil.example"})
        written, forged, origin, host = client.logged
        assert re.match(r"POST /v1/completions 200 [\d.]+ s run: 13 tokens read, \d written", written)
        assert ("'a seldom word'" in written) is shown
        assert "GET /a␊POST /forged 200␛[2J 404" in forged.replace("\n", "␊")
        assert "GET /v1/models 403" in origin
        assert "400" in host


def test_logprobs_in_both_forms(trained):
    config = compose("serve", [f"checkpoint={trained}", "compile=off"])
    (model,) = load_models(config)
    token = Token(104, -0.5, [(104, -0.5), (195, -1.5)])
    plain = read_request(CompletionRequest(model="run", prompt="ab", logprobs=2), model, config)
    (choice,) = plain.whole([Piece(0, "h", [token, Token(256, -2.0)], "end of text")])["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] == {
        "tokens": ["h", "<|endoftext|>"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"h": -0.5, "\\xc3": -1.5}, {}],
    }
    fields = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "return_token_ids": True}
    chat = read_request(ChatRequest(model="run", **fields), model, config)
    (choice,) = chat.chunk(Piece(0, "h", [token]))["choices"]
    assert choice["delta"] == {"role": "assistant", "content": "h"}
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([104], list(chat.prompts[0]))
    top = [{"token": "h", "logprob": -0.5, "bytes": [104]}, {"token": "\\xc3", "logprob": -1.5, "bytes": [195]}]
    assert choice["logprobs"]["content"] == [{**top[0], "top_logprobs": top}]


def test_the_page_and_its_requests(http):
    page = http.get("/")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert http.get("/docs").status_code == http.get("/openapi.json").status_code == 404
    assert "/v1/chat/completions" in http.post("/chat/completions", json={}).text  # a base_url without it
    assert len(http.post("/api/next", json={"model": "run", "tokens": [104, 111]}).json()["top"]) == 40
    assert http.post("/api/next", json={"model": "run", "tokens": []}).status_code == 400
    assert http.get("/v1/models/run").json().items() >= {"prompt": "", "conversations": False}.items()
    assert http.post("/api/score", json={"model": "run", "text": "how much"}).json()["nats_per_token"] > 0
    view = http.post("/api/look", json={"model": "run", "text": "how"}).json()["attention"]
    assert len(base64.b64decode(view["weights"])) == 2 * view["layers"] * view["heads"] * 9


def test_serve_names_what_it_can_not_use(trained, capsys):
    for word, says in (("port=70000", "port must be"), ("rows=33", "rows must be")):
        with pytest.raises(UserFault, match=says):
            _dispatch(["serve", f"checkpoint={trained}", word])
