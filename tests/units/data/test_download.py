"""A download over HTTP is continued, by servers that know ranges and by those that do not."""

import http.server
import threading
import time

import pytest

from minigpt.faults import UserFault
from tests.promises.test_text_in import TEXT, documents, made

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves TEXT at any path, and breaks off in its middle; `parts`: it knows ranges."""

    parts, breaks, asked = True, True, []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        begin, content = self.headers.get("Range", "bytes=0-")[6:-1], TEXT.encode()
        self.asked.append((self.command, begin))
        is_part = self.parts and "Range" in self.headers and self.headers["If-Range"] == '"7"'
        self.send_response(206 if is_part else 200)
        content = content[int(begin) if is_part else 0 :]
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"7"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:1000] if self.breaks else content)
            time.sleep(0.5 * self.breaks)  # so that the client has read it, most likely

    def log_message(self, *_):
        pass


class Pages(Server):
    """Serves a page that shows a file, as code hosts do, and refuses another one."""

    def do_GET(self):
        page = b"\n<!DOCTYPE html><title>a.txt</title>"
        self.send_response(503 if "refused" in self.path else 200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page * (self.command == "GET"))


@pytest.mark.parametrize(("name", "says"), [("a.txt", "is a web page about the file"), ("refused", "503")])
def test_a_page_about_a_file_and_a_refusal_are_named(folder, name, says):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserFault, match=says):
            made(f"http://127.0.0.1:{server.server_port}/{name}")
        server.shutdown()


@pytest.mark.parametrize("parts", [True, False])
def test_a_download_that_broke_off_goes_on_where_it_stopped(folder, monkeypatch, parts):
    monkeypatch.setattr(Server, "parts", parts)
    monkeypatch.setattr(Server, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = f"http://127.0.0.1:{server.server_port}/a.txt"
        with pytest.raises(UserFault, match="can't be read"):
            made(source)
        kept = sum(path.stat().st_size for path in (folder / "data" / "fetched").rglob("*") if path.is_file())
        monkeypatch.setattr(Server, "breaks", False)
        prepared, _ = made(source)
        server.shutdown()
    assert "".join(text for split in documents(prepared) for text in split) == TEXT
    assert [begin for command, begin in Server.asked if command == "GET"] == ["0", str(kept)]
    assert len([path for path in (folder / "data" / "fetched").rglob("*") if path.is_file()]) == 1
