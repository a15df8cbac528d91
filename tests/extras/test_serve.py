"""`minigpt serve` as a process: the official client, bounds, doors, and its end. See `make test-extras`."""

import asyncio
import json
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import minigpt
from tests.extras.serving import ServerProcess

REASON = "make test-extras installs fastapi, uvicorn, openai and httpx"
pytest.importorskip("fastapi", reason=REASON)
pytest.importorskip("uvicorn", reason=REASON)
httpx = pytest.importorskip("httpx", reason=REASON)
openai = pytest.importorskip("openai", reason=REASON)


# Long enough to know that the text never ends: a stray end-of-text token would end what is to be interrupted.
LEARNED = ["model.n_embd=32", "model.block_size=32", "batch_tokens=256", "trainer.max_steps=250", "optimizer.lr=1e-2"]


@pytest.fixture(scope="module")
def trained(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("served"))(*LEARNED)


@pytest.fixture(scope="module")
def server(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    words = [f"checkpoint={trained}", f"checkpoint={trained}", "rows=4", "queue=12", "max_tokens=100000", "log=prompts"]
    with ServerProcess(folder, *words, OMP_NUM_THREADS="1") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def gauge(http, name):
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"minigpt_{name}"))


def until(check, seconds=10.0):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_official_clients_calls(client, trained):
    names = [model.id for model in client.models.list()]
    assert names == ["run", "run-2"]
    assert client.models.retrieve("run-2").owned_by == "minigpt"
    asked = {"model": "run", "prompt": "how much", "max_tokens": 12, "seed": 3, "temperature": 0.8}
    whole = client.completions.create(**asked, logprobs=3, n=2)
    assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (8, 24)
    assert len(whole.choices[1].logprobs.token_logprobs) == 12
    assert all(len(top) == 3 for top in whole.choices[0].logprobs.top_logprobs)
    # The text is that of minigpt sample and of generate(): the same filters, draws and seeds.
    assert whole.choices[0].text == minigpt.load(trained).generate(
        "how much", max_new_tokens=12, temperature=0.8, seed=3
    )
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    stopped = client.completions.create(**asked, stop=whole.choices[0].text[4:6])
    assert stopped.choices[0].finish_reason == "stop"
    assert whole.choices[0].text.startswith(stopped.choices[0].text)


def test_the_official_clients_chat(client):
    messages = [{"role": "user", "content": "how much wood"}]
    asked = {
        "model": "run",
        "messages": messages,
        "max_completion_tokens": 20,
        "seed": 4,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**asked)
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == message.content
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    assert not chunks[-1].choices[0].delta.content


def test_errors_come_as_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="there are: run, run-2"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.BadRequestError, match="temperature must be from 0 to 100") as error:
        client.chat.completions.create(model="run", messages=[{"role": "user", "content": "a"}], temperature=-1)
    assert error.value.param == "temperature"


def test_a_text_in_company_is_the_text_alone(client):
    def ask(seed):
        return (
            client.completions.create(model="run", prompt="wood" * (seed % 3 + 1), max_tokens=40, seed=seed)
            .choices[0]
            .text
        )

    alone = [ask(seed) for seed in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == alone


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_row_within_a_second(server, http, stream):
    body = json.dumps({"model": "run", "prompt": "a", "max_tokens": 100_000, "n": 4, "stream": stream})
    connection = server.connect()
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    until(lambda: gauge(http, "texts_writing") == 4)
    connection.close()
    until(lambda: gauge(http, "texts_writing") == 0, 1.0)


def test_more_requests_than_may_wait_are_told_so_at_once(server, http, client):
    body = json.dumps({"model": "run", "prompt": "a", "max_tokens": 100_000, "n": 16})
    connection = server.connect()
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    until(lambda: gauge(http, "texts_waiting") == 12)
    with pytest.raises(openai.RateLimitError, match="try again later"):
        client.completions.create(model="run", prompt="b")
    assert client.completions.create(model="run-2", prompt="b", max_tokens=2).usage.completion_tokens == 2
    connection.close()
    until(lambda: gauge(http, "texts_writing") + gauge(http, "texts_waiting") == 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"text"', 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'{"model": ' + b"1" * 5000 + b"}", 400),
        (b'{"model": 3}', 400),
        (b'{"model": "run", "prompt": "a", "max_tokens": 1e999}', 400),
        (b'{"model": "run", "prompt": "\\ud800"}', 400),
        (b'{"model": "run", "prompt": "a", "\\ud800": 1}', 400),
        (b'{"model": "\\ud800"}', 404),
        (b" " * ((1 << 20) + 1), 413),
    ],
)
def test_nonsense_is_refused_in_openais_form(http, body, status):
    for path in ("/v1/completions", "/v1/chat/completions", "/api/next"):
        reply = http.post(path, content=body)
        assert reply.status_code == status, reply.text
        assert reply.json()["error"]["message"]
    assert http.post("/v1/completions", json={"model": "run", "prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_body_without_a_length_is_counted_too(http):
    def endless():
        for _ in range(1000):
            yield b" " * 10_000

    assert http.post("/v1/completions", content=endless()).status_code == 413


def test_slow_connections_are_closed_and_keep_nobody_waiting(server, http):
    slow = [server.connect() for _ in range(20)]
    for connection in slow:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A")
    assert http.get("/health").json() == {"status": "ok"}
    started = time.monotonic()
    for connection in slow:
        with connection:
            assert connection.recv(100) == b""
    assert 5 < time.monotonic() - started < 25


def test_more_connections_than_there_may_be_are_closed_at_once(server, http):
    connections = [server.connect() for _ in range(510)]

    def closed() -> int:
        return sum(bool(select.select([each], [], [], 0)[0]) for each in connections)

    until(lambda: closed() >= 10, 8.0)
    for each in connections:
        each.close()
    until(lambda: http.get("/health").status_code == 200)


def test_no_other_name_and_no_other_origin_gets_in(http, server):
    port = server.port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "0.0.0.0", "192.168.1.2", ""):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 403, host
    for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 200, host
    for origin in ("http://evil.example", "null", f"http://localhost:{port + 1}", "", "http://[::1"):
        headers = {"Host": f"localhost:{port}", "Origin": origin}
        assert http.post("/v1/completions", json={}, headers=headers).status_code == 403, origin
    own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
    assert http.post("/v1/completions", json={}, headers=own).status_code == 400
    assert (
        "400"  # of h11
        in server.send("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n").partition("\n")[
            0
        ]
    )
    assert http.get("/v1/models?api_key=secret").status_code == 400


def test_what_is_not_there_and_not_allowed(http):
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v1/completions").status_code == 405
    assert http.get("/docs").status_code == http.get("/openapi.json").status_code == 404
    assert "error" in http.get("/v1/nothing").json()


def test_the_page_lets_nothing_foreign_in(http):
    page = http.get("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"


def test_the_pages_questions(http):
    found = http.post("/api/next", json={"model": "run", "tokens": [104, 111]}).json()
    assert len(found["top"]) == 40
    assert http.post("/api/next", json={"model": "run", "tokens": []}).status_code == 400
    assert http.post("/api/look", json={"model": "run", "text": "how"}).json()["attention"]["heads"] == 2
    assert http.post("/api/score", json={"model": "run", "text": "how much"}).json()["nats_per_token"] > 0
    assert http.post("/api/score", json={"model": "run", "text": 5}).status_code == 400


def test_metrics_are_prometheus_text(http):
    lines = http.get("/metrics").text.splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert names >= {"minigpt_requests_total", "minigpt_tokens_written_total", "minigpt_memory_bytes"}
    assert all(
        line.startswith("#") or (len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0) for line in lines
    )


def test_a_path_can_not_write_a_line_of_its_own(server, http):
    http.get("/a%0APOST /forged 200%1b[2J")
    assert "GET /aPOST /forged 200␛[2J 404" in server.said()


def test_prompts_are_said_when_asked_for_and_not_otherwise(server, client, trained, tmp_path):
    client.completions.create(model="run", prompt="a seldom word", max_tokens=1)
    assert "'a seldom word'" in server.said()
    with ServerProcess(tmp_path, f"checkpoint={trained}") as quiet:
        httpx.post(f"{quiet.url}/v1/completions", json={"model": "run", "prompt": "a seldom word", "max_tokens": 1})
    said = (tmp_path / "server.log").read_text()
    assert "POST /v1/completions 200" in said
    assert "seldom" not in said
    assert said.endswith("Stopped.\n")


def test_with_a_token_nobody_gets_in_without(trained, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with ServerProcess(tmp_path, f"checkpoint={trained}", "host=0.0.0.0", f"token_file={tmp_path / 'token'}") as server:
        url = f"http://127.0.0.1:{server.port}"
        for key in ("wrong", "0123456789abcde", "0123456789abcdeé"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 401
        assert httpx.get(f"{url}/metrics").status_code == httpx.post(f"{url}/api/next", json={}).status_code == 401
        assert httpx.get(f"{url}/v1/models?token=0123456789abcdef").status_code == 400
        assert httpx.get(f"{url}/v1/models", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(f"{url}/health").status_code == httpx.get(url).status_code == 200
        with openai.OpenAI(base_url=f"{url}/v1", api_key="0123456789abcdef") as client:
            assert [model.id for model in client.models.list()] == ["run"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_at_once_and_clients_are_told(trained, tmp_path, number):
    with ServerProcess(tmp_path, f"checkpoint={trained}", "max_tokens=100000") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            answer = client.completions.create(model="run", prompt="a", max_tokens=100_000, stream=True)
            next(answer)
            started = time.monotonic()
            server.process.send_signal(number)
            with pytest.raises(openai.APIError):
                for _ in answer:
                    pass
        assert server.process.wait(20) == 0
        assert time.monotonic() - started < 10
    assert "Traceback" not in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["host=0.0.0.0"], "clients must show a token"),
        (["host=0.0.0.0", "token_file={folder}/short"], "16 ASCII characters or more"),
        (["token_file={folder}/none"], "is not a file"),
        (["host=nowhere.invalid", "token_file={folder}/good"], "can't be listened at"),
        (["port=70000"], "port must be at least 0 and at most 65535"),
        (["rows=33"], "rows must be"),
        (["checkpoint=/nowhere"], "checkpoint='/nowhere' does not exist"),
    ],
)
def test_what_can_not_be_served_is_said_before_anything_is_loaded(trained, tmp_path, words, says):
    (tmp_path / "short").write_text("short")
    (tmp_path / "good").write_text("0123456789abcdef")
    words = [f"checkpoint={trained}", *(word.format(folder=tmp_path) for word in words)]
    done = subprocess.run(
        [sys.executable, "-m", "minigpt", "serve", *words], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_port_that_is_taken_is_named(trained, server):
    words = [f"checkpoint={trained}", f"port={server.port}"]
    done = subprocess.run(
        [sys.executable, "-m", "minigpt", "serve", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "Use another port=" in done.stderr


def test_a_whole_reply_is_made_in_a_thread_where_it_keeps_nobody_waiting(trained, monkeypatch):
    from fastapi.testclient import TestClient

    from minigpt.config.commands import ServeConfig
    from minigpt.serving.app import make_app
    from minigpt.serving.engine import Engine
    from minigpt.serving.models import load_models
    from minigpt.serving.protocol import Reply

    loops = []
    monkeypatch.setattr(Reply, "_logprobs", lambda *_: loops.append(asyncio._get_running_loop()))
    config = ServeConfig(checkpoint=[str(trained)], rows=2, queue=2)
    engine = Engine(load_models(config), queue=config.queue, on_error=str)
    with TestClient(make_app(engine, config, hosts={"testserver"}, token=None, say=str)) as http:
        asked = {"model": "run", "prompt": "a", "max_tokens": 2, "n": 4, "logprobs": 1}
        assert len(http.post("/v1/completions", json=asked).json()["choices"]) == 4
        refused = http.post("/v1/completions", json=asked | {"n": 5}).json()
    assert loops == [None] * 4
    assert refused["error"]["message"] == "n must be from 1 to 4, got 5"
