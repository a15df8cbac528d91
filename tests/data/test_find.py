"""What data.source may name: files, folders, globs, lists, addresses; and what the screen says about each file."""

import gzip
import http.server
import threading
import zipfile

import pytest

from minigpt.config.check import check
from minigpt.config.schema import DataConfig, PrepareConfig, TokenizerConfig
from minigpt.config.sources import name_of, places
from minigpt.data.preparing.prepare import prepare
from minigpt.data.readers import jsonl, packed
from minigpt.data.sources import download
from minigpt.data.sources.corpus import find_corpus
from minigpt.faults import UserFault

TEXT = b"A text of some length, so that there is something to validate on. " * 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("texts/a.txt", "texts/b.md", "texts/sub/a.txt", "more/c.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() + TEXT)
    return tmp_path


def labels(source, **keys) -> list[str]:
    return [file.label for file in find_corpus(DataConfig(name="text", source=str(source), **keys)).files]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("texts/*.txt", ["a.txt"]),
        ("texts/**", ["a.txt", "b.md", "sub/a.txt"]),
        ("*", ["more/c.txt", "texts/a.txt", "texts/b.md", "texts/sub/a.txt"]),
        ("t*/s*/?.txt", ["texts/sub/a.txt"]),
        ("texts/b.md,texts/a.txt", ["b.md", "a.txt"]),
        ("texts, more", ["texts/a.txt", "texts/b.md", "texts/sub/a.txt", "more/c.txt"]),
        ('["texts/a.txt", "more/*"]', ["a.txt", "c.txt"]),
        ("texts/a.txt,texts/a.txt", ["a.txt"]),
    ],
)
def test_globs_and_lists(folder, source, wanted):
    assert labels(source) == wanted
    assert check(PrepareConfig(data=DataConfig(name="text", source=source))) == []


@pytest.mark.parametrize("source", ["texts/**/*.txt", "texts/**", "texts/*", "texts/*/*.txt", "**/*.txt", "texts"])
def test_no_link_is_entered_and_nothing_prepared_is_read(folder, source):
    (folder / "texts/loop").symlink_to(folder / "texts")
    (folder / "texts/again").symlink_to(folder / "texts")
    (folder / "texts/.hidden.txt").write_bytes(TEXT)
    (folder / "texts/out").mkdir()
    (folder / "texts/out/tokens.txt").write_bytes(TEXT)
    corpus = find_corpus(DataConfig(name="text", source=source, dir="texts/out"))
    found = [file.path.resolve() for file in corpus.files]
    assert len(set(found)) == len(found) > 0
    assert not any(path.is_relative_to(folder / "texts/out") for path in found)
    notes = "\n".join(corpus.notes)
    assert "(a link to a folder)" in notes
    assert ("(hidden)" in notes) == (source != "texts/*/*.txt")
    assert check(PrepareConfig(data=DataConfig(name="text", source=source))) == []


def test_text_added_beside_prepared_tokens_is_read(folder):
    data = DataConfig(name="text", source="**")
    prepare(data, TokenizerConfig(name="byte"), say=str)
    before = sum(path.stat().st_size for path in folder.glob("*/**/*.[tm]*") if "data" not in path.parts)
    (folder / "texts/new.txt").write_bytes(TEXT)
    assert prepare(data, TokenizerConfig(name="byte"), say=str).summary["bytes"] > before > 0


def test_a_name_with_commas_or_brackets_is_a_name_where_it_is_there(folder):
    for name in ("a, b.txt", "[1].txt", "x*.txt"):
        (folder / name).write_bytes(TEXT)
        assert labels(name) == [name]
    assert places("[broken") == ["[broken"]


def test_every_place_that_is_not_there_is_named(folder):
    source = "texts,nowhere,no*thing"
    with pytest.raises(UserFault) as fault:
        labels(source)
    assert len(fault.value.faults) == 2
    faults = check(PrepareConfig(data=DataConfig(name="text", source=source)))
    assert ["'nowhere'" in faults[0], "'no*thing'" in faults[1]] == [True, True]


def test_the_screen_says_what_was_found(folder):
    (folder / "texts" / "r.jsonl").write_text('{"text": "one"}\n{"text": ""}\n')
    (folder / "texts" / "table.csv").write_bytes(b"a,b\r\n\xff\r\n")
    (folder / "texts" / "z.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + TEXT + b"\0"))
    size = sum(path.stat().st_size for path in folder.glob("texts/**/*.*"))
    (folder / "texts" / "linked").symlink_to(folder / "more")
    (folder / "texts" / ".hidden").touch()
    said: list[str] = []
    data = DataConfig(name="text", source="texts", dir="texts/prepared")
    (folder / "texts" / "prepared").mkdir()
    prepared = prepare(data, TokenizerConfig(name="byte"), say=said.append)
    assert said[:-4] == [
        "data: left out 1 (hidden): .hidden",
        "data: left out 1 (a link to a folder): linked",
        "data: left out 1 (data.dir): prepared",
        f"data: reading 6 files, {size:,} bytes: 5 text (2 .txt, 1 .md, 1 .csv, 1 .txt.gz), 1 JSON lines (1 .jsonl)",
        "data: the text of a record is its 'text'; another key or column: data.key=KEY",
        "data: 1 .csv read as plain text, marks and all (records are read from .jsonl and .parquet)",
        "data: 1 documents are not UTF-8 and taken as bytes, table.csv first",
        "data: 2 lines end in CR LF; they are kept as they are",
        "data: documents with a byte-order mark in front: 1; data.encoding=utf-8-sig drops it",
        "data: 1 NUL bytes; they are kept as they are",
        "data: 1 records without any text are passed over",
    ]
    assert prepared.summary["documents"] == 6
    assert "1 NUL bytes; they are kept as they are" in prepared.summary["notes"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n", "a PNG picture"),
        (b"%PDF-1.7", "a PDF document"),
        (b"PK\x03\x04", "a ZIP archive or an office document"),
        (b"x" * 257 + b"ustar", "a tar archive, unpack it first"),
    ],
)
def test_a_file_that_is_no_text_is_not_taken_for_bytes(folder, content, kind):
    (folder / "file").write_bytes(content)
    with pytest.raises(UserFault, match=f"file is {kind}; wanted text"):
        find_corpus(DataConfig(name="text", source="file"), raw=True)
    (folder / "texts" / "file").write_bytes(content)
    assert find_corpus(DataConfig(name="text", source="texts"), raw=True).notes == (f"left out 1 ({kind}): file",)


@pytest.mark.parametrize(("name", "package"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_a_package_is_asked_for_by_name(folder, monkeypatch, name, package):
    (folder / "texts" / name).write_bytes(b"content")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserFault, match=rf"{name} can't be read without .*'{package}'.*-m pip install {package}"):
        labels("texts")
    assert labels("texts", exclude="*.zst,*.parquet") == ["a.txt", "b.md", "sub/a.txt"]


def test_a_decompression_bomb_is_named_before_it_fills_anything(folder, monkeypatch):
    monkeypatch.setattr(packed, "MIN_BOMB_BYTES", 1 << 20)
    for name in ("bomb.txt.gz", "bomb.jsonl.gz"):
        (folder / "texts" / name).write_bytes(gzip.compress(b"a" * (1 << 23)))
    with pytest.raises(UserFault) as fault:
        prepare(DataConfig(name="text", source="texts", dir="d"), TokenizerConfig(name="byte"), say=lambda _: None)
    assert [" is a decompression bomb: of 8,1" in sentence for sentence in fault.value.faults] == [True, True]


def test_a_line_without_end_is_named(folder, monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1000)
    (folder / "long.jsonl").write_bytes(b'{"text": "x"}\n{"text": "' + b"x" * 2000)
    with pytest.raises(UserFault, match=r"long\.jsonl, line 2 is longer than 1,000 bytes"):
        prepare(DataConfig(name="text", source="long.jsonl", dir="d"), TokenizerConfig(name="byte"), say=lambda _: None)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one text, badly at first."""

    faults: list = []  # noqa: RUF012
    text, version = TEXT, ("ETag", '"1"')

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.text)))
        self.send_header(*self.version)
        self.end_headers()

    def do_GET(self):
        fault = self.faults.pop() if self.faults else None
        if fault == 503:
            self.send_error(503)
            return
        self.do_HEAD()  # whatever range was asked for
        self.wfile.write(self.text[: 99 if fault in ("cut", "hang") else 999 if fault == "slow" else None])
        if fault in ("hang", "slow"):
            self.wfile.flush()
            threading.Event().wait(0.9 if fault == "hang" else 0.2)
            self.wfile.write(self.text[999:] if fault == "slow" else b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Server, "faults", [])
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()


def test_an_address_is_fetched_once_and_whole(folder, server):
    Server.faults = ["slow", "cut", 503]  # the last comes first
    said: list[str] = []
    data = DataConfig(name="text", source=f"{server}/dir/book.txt?sig=SECRET", dir="d")
    for _ in range(2):
        prepared = prepare(data, TokenizerConfig(name="byte"), say=said.append)
    assert prepared.summary["bytes"] == len(TEXT)
    assert [line.partition(" from ")[0] for line in said if "fetching" in line] == ["data: fetching 1 files, 0.0 MB,"]
    written = [path for path in folder.glob("d/**/*") if path.is_file()]
    assert [path.name for path in written if path.parent.parent.name == "fetched"] == ["book.txt"]
    assert not any(b"SECRET" in path.read_bytes() for path in written)
    assert not any("SECRET" in line for line in said)
    assert "SECRET" not in name_of(data.source)


@pytest.mark.parametrize("key", ["ETag", "Last-Modified", "Digest"])
def test_an_address_whose_text_changes_is_fetched_again(folder, server, monkeypatch, key):
    data = DataConfig(name="text", source=f"{server}/book.txt", dir="d")
    for version, text in (("Sat, 21 Nov 2026 09:00:00 GMT", TEXT), ("Sun, 22 Nov 2026 09:00:00 GMT", TEXT[::-1])):
        monkeypatch.setattr(Server, "text", text)
        monkeypatch.setattr(Server, "version", (key, version))
        prepared = prepare(data, TokenizerConfig(name="byte"), say=str)
        assert bytes(prepared.train.tokens(0, 40).tolist()) == text[:40]


def test_another_blob_of_hugging_face_is_another_text(tmp_path, monkeypatch):
    def copy_of(blob):
        stated = ("datasets/a/t.txt", "t.txt", {"size": 3, "blob_id": blob})
        monkeypatch.setattr(download, "_listed", lambda url: (None, [stated]))
        (file,) = download.fetch("hf://datasets/a/t.txt", tmp_path, lambda _: False, str)
        return file.path

    assert copy_of("1") == copy_of("1") != copy_of("2")


def test_addresses_that_look_equal_without_their_secrets_are_told_apart(folder, server):
    def prepared(key: str):
        data = DataConfig(name="text", source=f"{server}/dir/book.txt?key={key}", dir="d")
        return prepare(data, TokenizerConfig(name="byte"), say=str)

    assert prepared("a").folder == prepared("a").folder
    Server.faults = [503] * 9
    with pytest.raises(UserFault, match=r"key=<redacted> can't be read"):
        prepared("b")


def test_archives_with_a_file_of_the_same_name_are_told_apart(folder):
    for name in "ab":
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr("t.txt", name * 2000)
    for name in "ab":
        source = f"zip://t.txt::file://{folder}/{name}.zip"
        (file,) = find_corpus(DataConfig(name="text", source=source, dir="d"), say=str).files
        assert file.path.read_bytes() == name.encode() * 2000


def test_credentials_of_several_addresses_hide_no_other_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    signed = "https://me:SECRET@host/a.txt?X-Amz-Signature=SECRET&v=1&sig=SECRET"
    name = name_of(f"{signed},nowhere")
    assert name == f"https://<redacted>@host/a.txt?X-Amz-Signature=<redacted>&v=1&sig=<redacted>,{tmp_path}/nowhere"
    (fault,) = check(PrepareConfig(data=DataConfig(name="text", source=f"{signed},nowhere")))
    assert "'nowhere' does not exist" in fault


@pytest.mark.parametrize("signed", ["HTTPS://me:SECRET@host/a.txt", "https://me:SEC,RET@host/a.txt"])
def test_a_password_is_hidden_whatever_it_holds(signed):
    assert places(f"{signed},b.txt") == [signed, "b.txt"]
    assert "RET" not in name_of(signed)
    (fault,) = check(PrepareConfig(data=DataConfig(name="text", source=f"{signed},nowhere")))
    assert "'nowhere' does not exist" in fault
    assert "RET" not in fault


@pytest.mark.parametrize("kind", ["cut", "hang", 503])
def test_a_server_that_fails_is_named_and_leaves_no_half(folder, server, monkeypatch, kind):
    monkeypatch.setattr(download, "_SILENT_SECONDS", 0.3)
    Server.faults = [kind] * 3
    data = DataConfig(name="text", source=f"{server}/book.txt?access_token=SECRET", dir="d")
    with pytest.raises(
        UserFault, match=r"book\.txt\?access_token=<redacted> can't be read.*Check the address"
    ) as fault:
        prepare(data, TokenizerConfig(name="byte"), say=lambda _: None)
    assert "SECRET" not in str(fault.value)
    assert not list(folder.glob("d/**/*.txt"))


@pytest.mark.parametrize("source", ["memory://corpus", "memory://corpus/*.txt", "memory://corpus/a.txt"])
def test_any_file_system_of_fsspec(folder, source):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/corpus/a.txt": TEXT, "/corpus/b.txt": TEXT, "/corpus/c.png": b"\x89PNG"})
    wanted = ["a.txt"] if source.endswith("a.txt") else ["a.txt", "b.txt"]
    assert labels(source, dir="d", exclude="*.md") == wanted
    memory.rm("/corpus", recursive=True)
    with pytest.raises(UserFault, match=r"memory://corpus.* can't be read"):
        labels(source, dir="d")
    with pytest.raises(UserFault, match="nosuch://x can't be read"):
        labels("nosuch://x", dir="d")
