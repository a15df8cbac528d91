"""`minigpt serve` as a process: the official client, limits, and its end. See `make test-extras`."""

import json
import signal
import subprocess
import sys
import time

import pytest

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
    words = [f"checkpoint={trained}", f"checkpoint={trained}", "rows=4", "queue=12", "max_tokens=100000"]
    with ServerProcess(folder, *words, OMP_NUM_THREADS="1") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def until(check, seconds=120.0):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def begin(server, **fields):
    """A raw connection with a request for a text that never ends."""
    body = json.dumps({"model": "run", "prompt": "a", "max_tokens": 100_000, **fields})
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = server.connect()
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def test_the_official_clients_calls(client):
    assert [model.id for model in client.models.list()] == ["run", "run-2"]
    assert client.models.retrieve("run-2").owned_by == "minigpt"
    wanted = {"model": "run", "prompt": "how much", "max_tokens": 12, "seed": 3, "temperature": 0.8}
    whole = client.completions.create(**wanted, logprobs=3, n=2)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (8, 24)
    assert all(len(top) == 3 for top in whole.choices[0].logprobs.top_logprobs)
    chunks = list(client.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    stopped = client.completions.create(**wanted, stop=whole.choices[0].text[4:6])
    assert stopped.choices[0].finish_reason == "stop"
    chat = {"model": "run", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 6, "seed": 4}
    message = client.chat.completions.create(**chat).choices[0].message
    chunks = list(client.chat.completions.create(**chat, stream=True))
    assert chunks[0].choices[0].delta.role == message.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == message.content
    with pytest.raises(openai.NotFoundError, match="there are: run, run-2"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature") as error:
        client.completions.create(model="run", prompt="a", temperature=-1)
    assert error.value.param == "temperature"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_row(server, stream):
    connection = begin(server, n=4, stream=stream)
    until(lambda: server.health()["writing"] == 4)
    connection.close()
    until(lambda: server.health()["writing"] == 0)
    until(lambda: "POST /v1/completions 499" in server.said())


def test_more_requests_than_may_wait_are_told_so_at_once(server, client):
    connection = begin(server, n=16)
    until(lambda: server.health()["waiting"] == 12)
    with pytest.raises(openai.RateLimitError, match="try again later"):
        client.completions.create(model="run", prompt="b")
    assert client.completions.create(model="run-2", prompt="b", max_tokens=2).usage.completion_tokens == 2
    connection.close()
    until(lambda: server.health() == {"status": "ok", "writing": 0, "waiting": 0})


def test_bodies_and_connections_are_limited_and_idle_ones_closed(server):
    def endless():
        for _ in range(1000):
            yield b" " * 10_000

    head = {"Content-Type": "application/json"}
    assert httpx.post(f"{server.url}/v1/completions", content=endless(), headers=head).status_code == 413
    connections = [server.connect() for _ in range(510)]
    until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
    for connection in connections:
        connection.close()
    until(lambda: httpx.get(f"{server.url}/health").status_code == 200)


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
    log = (tmp_path / "server.log").read_text()
    assert "Traceback" not in log
    assert log.endswith("Stopped.\n")


def test_a_port_that_is_taken_is_named_before_anything_is_loaded(trained, server):
    command = [sys.executable, "-m", "minigpt", "serve", f"checkpoint={trained}", f"port={server.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Use another port=" in done.stderr
