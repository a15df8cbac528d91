"""A download over HTTP that broke off leaves nothing behind, and the same command fetches the file again."""

import http.server
import threading

import pytest

from minigpt.faults import UserFault
from tests.promises.test_text_in import TEXT, documents, folder, made

__all__ = ["folder"]


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves TEXT at any path; while it `breaks`, it ends in the middle."""

    breaks = True

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        content = TEXT.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"7"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:1000] if self.breaks else content)

    def log_message(self, *_):
        pass


def test_a_file_that_came_in_part_is_never_read(folder, monkeypatch):
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = f"http://127.0.0.1:{server.server_port}/a.txt"
        with pytest.raises(UserFault, match="can't be read"):
            made(source)
        fetched = folder / "data" / "fetched"
        assert not [path for path in fetched.rglob("*") if path.is_file()]
        monkeypatch.setattr(Server, "breaks", False)
        prepared, _ = made(source)
        server.shutdown()
    assert "".join(text for split in documents(prepared) for text in split) == TEXT
    assert len([path for path in fetched.rglob("*") if path.is_file()]) == 1
