"""Downloads against a server on this machine: right, wrong, cut, slow, refused."""

import contextlib
import hashlib
import http.server
import socket
import threading
import time

import pytest

from minigpt.data.sources import download as module
from minigpt.data.sources.download import download

CONTENT = b"To be, or not to be\n" * 50_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(30)
        self.send_response(404 if self.path == "/missing" else 200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client left
            self.wfile.write(CONTENT[: 30_000 if self.path == "/cut" else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("path", ["/file", "/endless"])
def test_a_file_arrives_whole(server, path):
    assert download(server + path, SHA256) == CONTENT


def test_a_wrong_checksum_is_refused_with_both(server):
    with pytest.raises(ConnectionError, match=f"SHA-256 {SHA256}, wanted {'0' * 64}"):
        download(server + "/file", "0" * 64)


def test_an_answer_of_404_is_named(server):
    with pytest.raises(ConnectionError, match="HTTP Error 404: Not Found"):
        download(server + "/missing", SHA256)


def test_a_cut_body_is_named(server):
    with pytest.raises(ConnectionError, match=r"30000 bytes read, 970000 more expected"):
        download(server + "/cut", SHA256)


def test_a_refused_connection_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match="refused"):
        download(f"http://127.0.0.1:{port}/file", SHA256)


def test_a_server_that_does_not_answer_is_given_up(server, monkeypatch):
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.2)
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match=r"no answer within 0.2 s"):
        download(server + "/slow", SHA256)
    assert time.monotonic() - begun < 20


def test_a_name_that_takes_long_to_look_up_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(0.6))
    with pytest.raises(ConnectionError, match=r"no answer within 0.2 s"):
        download("http://nowhere.invalid/file", SHA256)
