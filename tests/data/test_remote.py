"""Tokens at a URL: their order, the cache, and a server on this machine that does all that servers do wrong."""

import contextlib
import http.server
import itertools
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from minigpt.config.compose import compose
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data import blocks as order
from minigpt.data import remote
from minigpt.data.batch import MicroBatches
from minigpt.data.blocks import Blocks
from minigpt.data.preparing.prepare import prepare
from minigpt.data.remote import PieceCache, RemoteFolder, RemoteSplit, pieces_of
from minigpt.data.shards import SplitWriter, TokenSplit
from minigpt.data.sources import download
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import StorageFailure, UserFault
from minigpt.training.run import train

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
BYTE = build_tokenizer("byte")
TOKENS = 45_011


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves a folder. `faults` names what goes wrong with the next answers for ranges; then all is well."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and content are two packets: the second would wait 40 ms for an answer

    def do_HEAD(self):
        self.answer(self.content(), 200)

    def do_GET(self):
        server, content = self.server, self.content()
        if content is None:
            return self.answer(None, 404)
        asked = self.headers.get("Range")
        if asked is None:
            return self.answer(content, 200)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        with server.lock:
            server.ranges.append((self.path, first))
            fault = server.faults.pop(0) if server.faults else ""
        part = content[first : last + 1]
        if fault == "503":
            self.answer(b"busy", 503)
        elif fault == "ignored":
            self.answer(content, 200)
        elif fault == "cut":
            self.answer(part, 206, part[: len(part) // 2])
            self.close_connection = True
        elif fault == "short":
            self.answer(part[:-2], 206)
        elif fault == "hang":
            server.stop.wait(20)
        elif fault == "slow":
            self.answer(part, 206, part[:100])
            time.sleep(0.3)
            self.wfile.write(part[100:])
        elif fault == "other":
            self.answer(bytes([255]) * len(part), 206)
        else:
            self.answer(part, 206)

    def content(self):
        path = Path(self.server.folder) / self.path.partition("?")[0].strip("/")
        return path.read_bytes() if path.is_file() else None

    def answer(self, content, status, sent=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET" and content:
            self.wfile.write(content if sent is None else sent)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves tmp_path/shards at server.url."""
    monkeypatch.setattr(order, "PIECE_TOKENS", 1024)
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(download, "_SILENT_SECONDS", 0.5)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.daemon_threads = True
        found.folder, found.faults, found.ranges = tmp_path / "shards", [], []
        found.lock, found.stop = threading.Lock(), threading.Event()
        found.url = f"http://someone:hunter2@127.0.0.1:{found.server_port}?sig=abcdef"
        with contextlib.suppress(FileExistsError):
            found.folder.mkdir()
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.stop.set()
        found.shutdown()


@pytest.fixture
def split(server):
    """(local, new): the split as it is on the server, and a function that opens it from here."""
    values = np.random.default_rng(1).integers(0, 256, TOKENS)
    with SplitWriter(server.folder, "train", tokenizer=BYTE, shard_tokens=7_000) as writer:
        writer.write(values)
        writer.finish()
    here = server.folder.parent / "here"
    here.mkdir()
    (here / "train.json").write_bytes((server.folder / "train.json").read_bytes())

    def new(limit_bytes=1e9):
        return RemoteSplit(RemoteFolder(server.url), here, "train", tokenizer=BYTE, limit_bytes=limit_bytes)

    return TokenSplit(server.folder, "train", tokenizer=BYTE), new


def held(here):
    """The pieces in the cache, and what else lies there."""
    files = [path for path in pieces_of(here).rglob("*") if path.is_file() and ".lock" not in path.name]
    others = [path for path in files if not path.name.isdecimal() and path.suffix != ".tmp"]  # a worker's, on its way
    return [path for path in files if path.name.isdecimal()], others


# The order


@pytest.mark.parametrize(
    ("n_tokens", "T", "sequences"), [(40_000, 16, 3), (17 * 1024, 7, 12), (700, 16, 2), (2_100, 99, 1)]
)
def test_each_window_of_an_epoch_comes_once_and_stays_in_its_piece(monkeypatch, n_tokens, T, sequences):
    monkeypatch.setattr(order, "PIECE_TOKENS", 1024)
    blocks = Blocks(n_tokens, T, sequences, seed=5)
    P = blocks.piece_tokens
    for epoch in (0, 1, 4):
        samples = np.arange(epoch * blocks.epoch, (epoch + 1) * blocks.epoch, dtype=np.uint64)
        starts = blocks.starts(samples)
        assert len(set(starts.tolist())) == len(starts)
        assert starts.min() >= 0
        assert (starts // P == (starts + T) // P).all()
        assert (starts + T < n_tokens).all()
        for piece in range(blocks.pieces):
            own = np.sort(starts[starts // P == piece])
            assert len(own) == blocks.windows(piece)
            assert (np.diff(own) == T).all()
    assert blocks.epoch * T >= n_tokens - (blocks.pieces + 1) * 2 * T


def test_a_batch_is_of_one_block_and_the_pieces_it_needs_are_known_before(monkeypatch):
    monkeypatch.setattr(order, "PIECE_TOKENS", 1024)
    blocks = Blocks(200_000, 16, 10, seed=5)
    assert blocks.pieces == 196
    assert blocks.pieces_of_block == 20
    seen, spread = set(), []
    for step in range(2 * blocks.epoch // 10):
        samples = np.arange(10 * step, 10 * (step + 1), dtype=np.uint64)
        pieces = set((blocks.starts(samples) // 1024).tolist())
        needed = blocks.needed(step)
        assert len(needed) <= 40
        assert pieces <= set(needed) | seen
        spread.append(len(pieces))
        seen = set(needed)
    assert np.mean(spread) > 7  # of 10 windows: 20 (1 - 0.95^10) = 8 are expected
    whole = blocks.starts(np.arange(500, dtype=np.uint64))
    assert blocks.starts(np.arange(100, 110, dtype=np.uint64)).tolist() == whole[100:110].tolist()
    assert Blocks(200_000, 16, 10, seed=6).starts(np.arange(10, dtype=np.uint64)).tolist() != whole[:10].tolist()


def test_a_batch_of_a_corpus_of_a_terabyte_takes_no_time():
    blocks = Blocks(500_000_000_000, 1024, 32, seed=1)
    blocks.needed(10**6)  # an epoch's order of pieces is made once
    begun = time.process_time()
    for step in range(10**6, 10**6 + 20):
        blocks.needed(step)
        blocks.starts(np.arange(32 * step, 32 * (step + 1), dtype=np.uint64))
    assert time.process_time() - begun < 2


# The cache


def test_what_is_read_is_what_is_there_across_pieces_and_shards(split):
    local, new = split
    there = new()
    assert len(there) == len(local) == TOKENS
    for start, stop in [(0, 10), (1000, 1050), (6_900, 7_200), (20_000, TOKENS), (TOKENS - 11, TOKENS + 9_000), (5, 5)]:
        assert there.tokens(start, stop).tolist() == local.tokens(start, stop).tolist()
    starts = np.array([3, 7_000 - 4, TOKENS - 9])
    assert there.windows(starts, 9).tolist() == local.windows(starts, 9).tolist()
    with pytest.raises(IndexError):
        there.windows(np.array([TOKENS - 8]), 9)


def test_batches_are_the_same_from_any_step_on_and_the_cache_is_bounded(split, server):
    local, new = split
    layout = {"seed": 3, "block_size": 16, "micro_batch": 2, "accumulate": 1}
    limit = (2 * 16 + remote.WORKERS + 1) * 1024 * 2  # two blocks, and what is on its way
    there = new(limit)
    there.refuse_small_cache(block_size=16, sequences=2)
    batches = [each.tokens.tolist() for each in itertools.islice(MicroBatches(there, **layout), 700)]
    pieces, others = held(server.folder.parent / "here")
    assert others == []
    assert sum(path.stat().st_size for path in pieces) <= limit
    assert len({first for _, first in server.ranges}) > 32  # so that pieces had to go
    blocks = Blocks(TOKENS, 16, 2, 3)
    wanted = local.windows(blocks.starts(np.arange(2 * 650, 2 * 651, dtype=np.uint64)), 16)
    assert batches[650] == wanted.tolist()
    for path in pieces:
        path.unlink()
    asked = len(server.ranges)
    assert MicroBatches(new(limit), **layout)[650].tokens.tolist() == batches[650]
    assert len(server.ranges) - asked < 2 * 16  # this batch's pieces and what workers began meanwhile, no two blocks


def test_the_next_block_is_there_before_it_is_needed(split, server):
    _, new = split
    there = new()
    starts = there.window_starts(0, seed=3, block_size=16, sequences=2)
    there.windows(starts, 17)
    needed = Blocks(TOKENS, 16, 2, 3).needed(0)
    for _ in range(500):
        if {path.name for path in held(server.folder.parent / "here")[0]} >= set(map(str, needed)):
            break
        time.sleep(0.01)
    asked = len(server.ranges)
    for piece in needed:
        there.tokens(piece * 1024, piece * 1024 + 5)
    assert len(server.ranges) == asked


def test_ranks_of_a_machine_share_what_was_fetched(split, server):
    local, new = split
    found = [None] * 3

    def read(rank):
        there = new()
        found[rank] = there.tokens(0, TOKENS).tolist()

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [local.tokens(0, TOKENS).tolist()] * 3
    assert len(server.ranges) == len(set(server.ranges))


def test_a_cache_without_room_for_two_blocks_is_refused_with_what_is_needed(split):
    with pytest.raises(UserFault, match=r"data.cache_gb=1e-05 is too small: .* two blocks of 16 pieces"):
        split[1](10_000).refuse_small_cache(block_size=16, sequences=2)


def test_an_unfinished_piece_of_a_killed_process_is_removed_some_time(tmp_path):
    cache = PieceCache(tmp_path, lambda number, path: path.write_bytes(b"x"), 10)
    old, young = tmp_path / ".7.abcd.tmp", tmp_path / ".8.abcd.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert cache.path(3).read_bytes() == b"x"
    assert not old.exists()
    assert young.exists()


# Faults


def test_conversations_at_a_url_are_refused_before_their_tokens_are_fetched(server, tmp_path):
    rows = "".join(json.dumps({"prompt": f"say {n}", "completion": f"it is {n}"}) + "\n" for n in range(30))
    (tmp_path / "talks.jsonl").write_text(rows)
    chat = DataConfig(name="chat", source=str(tmp_path / "talks.jsonl"), dir=str(tmp_path / "a"), mask_documents=True)
    for file in prepare(chat, TokenizerConfig("byte")).folder.iterdir():
        (server.folder / file.name).write_bytes(file.read_bytes())
    here = tmp_path / "b"
    with pytest.raises(UserFault, match=r"data.shards=.* holds conversations.*data=chat data.source=FILE") as fault:
        prepare(DataConfig(name="text", shards=server.url, dir=str(here)), TokenizerConfig("byte"))
    assert "hunter2" not in str(fault.value)
    assert list((here / "remote").iterdir()) == []


@pytest.mark.parametrize("fault", ["503", "cut", "short", "ignored", "hang", "slow"])
def test_what_a_server_does_wrong_once_or_twice_changes_nothing(split, server, fault):
    local, new = split
    server.faults += [fault] * (1 if fault == "hang" else 2)
    assert new().tokens(100, 2_000).tolist() == local.tokens(100, 2_000).tolist()
    assert not server.faults
    assert held(server.folder.parent / "here")[1] == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("503", "503"),
        ("cut", "ClientPayloadError"),
        ("short", "the answer was cut"),
        ("ignored", "the server ignores ranges"),
        ("hang", "Timeout"),
    ],
)
def test_what_it_always_does_wrong_is_named_without_credentials_and_leaves_nothing(
    split, server, monkeypatch, fault, reason
):
    monkeypatch.setattr(download, "_SILENT_SECONDS", 0.1)
    there = split[1]()
    server.faults += [fault] * 100
    with pytest.raises(StorageFailure, match=reason) as caught:
        there.tokens(0, 10)
    said = str(caught.value)
    assert "after 5 tries" in said
    assert "train-000.bin of data.shards=http://<redacted>@127.0.0.1" in said
    assert "hunter2" not in said
    assert "abcdef" not in said
    assert held(server.folder.parent / "here") == ([], [])
    server.faults.clear()
    assert len(there.tokens(0, 10)) == 10  # it is asked for anew


def test_tokens_that_can_not_be_are_named(split, server):
    server.faults += ["other"]
    with pytest.raises(StorageFailure, match="holds token 65535, and the vocabulary has 257"):
        split[1]().tokens(0, 10)


def test_a_server_that_is_not_there_is_named(split, server):
    server.shutdown()
    server.server_close()
    with pytest.raises(StorageFailure, match="Connect"):
        split[1]().tokens(0, 10)


# From the command line


@pytest.fixture
def words(run, server):
    """Of a training on what was prepared and put on the server."""
    (run.folder / "text.txt").write_text(
        "".join(f"{n} bottles of beer on the wall, {n} bottles of beer.\n" for n in range(1500))
    )
    config = compose("prepare", [word for word in run.arguments() if word.startswith(("data", "tokenizer"))])
    from minigpt.data.preparing.prepare import prepare

    prepared = prepare(config.data, config.tokenizer, say=lambda line: None)
    server.folder.rmdir()
    prepared.folder.rename(server.folder)
    own = [word for word in run.arguments() if not word.startswith(("data.source", "data=text"))]
    return [*own, f"data.shards={server.url}", "schedule=constant"]


def test_a_run_on_a_url_stops_where_the_server_fails_goes_on_with_the_same_bytes_and_keeps_no_secret(
    run, words, server, capsys
):
    def start(name, *extra):
        return train(compose("train", [*words, *extra, f"run.dir={run.folder / name}"]))

    assert start("whole", "trainer.max_steps=8") == 0
    model = "checkpoints/step-000000008/model.safetensors"
    whole = (run.folder / "whole" / model).read_bytes()
    for path in (run.folder / "data" / "remote").rglob("*-pieces/*/*"):
        path.unlink(missing_ok=True)  # those fetched ahead may still be coming
    assert start("parts", "trainer.max_steps=4") == 0
    for path in (run.folder / "data" / "remote").rglob("*-pieces/*/*"):
        path.unlink(missing_ok=True)
    server.faults += ["503"] * 100
    with pytest.raises(StorageFailure, match="goes on from its last checkpoint"):
        start("parts", "trainer.max_steps=8")
    server.faults.clear()
    assert start("parts", "trainer.max_steps=8") == 0
    assert (run.folder / "parts" / model).read_bytes() == whole
    said = capsys.readouterr()
    files = [path for path in run.folder.rglob("*") if path.is_file() and "shards" not in path.parts]
    for path in [path for path in files if path.suffix != ".tmp"]:
        assert b"hunter2" not in path.read_bytes(), path
        assert b"abcdef" not in path.read_bytes(), path
    assert "hunter2" not in said.out + said.err


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["data.mix=stdlib:1"], "data.shards"),
        (["data=text", "data.source=README.md"], "data.shards"),
        (["tokenizer=bpe"], "data.shards holds tokens of tokenizer=byte, got tokenizer=bpe"),
        (["data.cache_gb=0.00001"], "data.cache_gb=1e-05 is too small"),
    ],
)
def test_what_does_not_go_together_is_refused(words, extra, sentence):
    with pytest.raises(UserFault, match=sentence):
        train(compose("train", [*words, *extra]))


def test_a_url_that_holds_something_else_is_named(words, server):
    (server.folder / "prepared.json").write_text("{}")
    with pytest.raises(UserFault, match="is no folder that `minigpt prepare` has made"):
        train(compose("train", words))
    (server.folder / "prepared.json").unlink()
    with pytest.raises(StorageFailure, match="http://<redacted>@127"):
        train(compose("train", words))
