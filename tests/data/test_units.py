"""Units of work: the same tokens for any cut, any processes and any kill, and none is made twice."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt import cli
from minigpt.config.check import check
from minigpt.config.schema import DataConfig, PrepareConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import make, units, workers
from minigpt.data.preparing.prepare import UnfinishedParts, prepare
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.data.tokenizers.scheme import SINGLE_BYTES
from minigpt.faults import StorageFailure, UserFault
from minigpt.screen import Progress, tell

TEXTS = {
    "a.txt": "".join(f"Line {n}: the naïve fox can't jump.\r\n" for n in range(300)),
    "b.txt": "naïve1!" * 10_000 + " and then words " * 9_000,  # no place to cut at for 80,000 bytes
    "c.txt": "",
    "d.txt": "x",
}
UNITS = 4  # of these texts, at least 50,000 bytes each
SEVERAL = {
    name: build_tokenizer(name, vocab_size=300, alphabet="ab 中\n", train=[iter([b"ab ab abc ab. 12 \n ab"])])
    for name in ("byte", "char", "bpe")
}


@pytest.fixture
def texts(tmp_path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, newline="")
    return folder


def run(texts: Path, place: str, name: str = "byte", **work) -> Path:
    data = DataConfig(name="text", source=str(texts), dir=str(texts.parent / place))
    config = TokenizerConfig(name, vocab_size=280)
    return prepare(data, config, work=WorkConfig(**work), say=lambda line: None).folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def whole(parts: list[tuple[str, list[bytes]]], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The tokens of both splits as they are without units."""
    tokens: dict[str, list[int]] = {"train": [], "val": []}
    for name, chunks in parts:
        if tokens[name] and tokenizer.eot is not None:
            tokens[name].append(tokenizer.eot)
        for piece in tokenizer.encode_chunks(iter(chunks)):
            tokens[name] += piece.tolist()
    return tokens


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(["train", "val"]),
            st.lists(st.text(st.sampled_from("ab 中\n"), max_size=40).map(str.encode), max_size=4),
        ),
        max_size=6,
    ),
    size=st.integers(1, 60),
)
@settings(max_examples=150)
def test_the_tokens_do_not_depend_on_the_units(parts, size):
    for tokenizer in SEVERAL.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(units, "UNIT_BYTES", size)
            patch.setattr(Tokenizer, "runs", runs_of_eight)
            frames = list(units.cut(((name, iter(chunks)) for name, chunks in parts), tokenizer))
        found: dict[str, list[int]] = {"train": [], "val": []}
        for frame in frames:
            head, _, content = units.encode_unit(frame, tokenizer).partition(b"\n")
            tokens = np.frombuffer(content, tokenizer.dtype).tolist()
            for name, counts in sorted(units.json.loads(head)["splits"].items()):
                found[name] += tokens[: counts["tokens"]]
                tokens = tokens[counts["tokens"] :]
        wanted = whole(parts, tokenizer)
        if tokenizer.name != "bpe":  # whose forced cuts are at 64 KiB: see below
            assert found == wanted
        assert all(tokenizer.decode_bytes(found[name]) == tokenizer.decode_bytes(wanted[name]) for name in found)


def runs_of_eight(tokenizer, chunks):
    text = b"".join(chunks)
    if tokenizer.name == "byte":
        edges = [*range(0, len(text), 8), len(text)]
        return (text[a:b] for a, b in pairwise(edges))
    return (character.encode() for character in text.decode())


@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_any_size_of_units_and_any_number_of_processes_give_the_same_files(texts, monkeypatch, name):
    """With a text that has to be cut where there is no border, and documents of nothing and of one byte."""
    wanted = tree(run(texts, "whole", name))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    assert tree(run(texts, "here", name, workers=1)) == wanted
    assert tree(run(texts, "two", name, workers=2)) == wanted


def test_the_cuts_of_units_are_those_of_runs(monkeypatch):
    """A forced cut changes tokens, so it must lie where it lies in the whole text."""
    text = TEXTS["b.txt"].encode() + b" x" * 50_000 + b"ab1!" * 20_000
    tokenizer = Tokenizer("bpe", [*SINGLE_BYTES, b"na", b"ve", b"ab"])
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    frames = list(units.cut([("train", iter([text]))], tokenizer))
    tokens = [np.frombuffer(units.encode_unit(each, tokenizer).partition(b"\n")[2], "<u2") for each in frames]
    assert len(frames) > 5
    assert np.concatenate(tokens).tolist() == tokenizer.encode_bytes(text).tolist()


def test_units_are_given_on_in_order_as_soon_as_they_and_all_before_them_are_made(tmp_path, monkeypatch):
    """So they are put together while others are encoded, and not one by one at the end."""
    tokenizer, happened = build_tokenizer("byte"), []
    monkeypatch.setattr(units, "UNIT_BYTES", 1)

    def frames():
        return units.cut([("train", iter([letter.encode()])) for letter in "abcdef"], tokenizer)

    def run(part: tuple[int, int], order: list[int]) -> str:
        def engine(jobs):
            held = list(jobs)
            assert sorted(order) == [int(path.stem) for path, _ in held]
            for number in order:
                happened.append(str(number))
                path, frame = next(job for job in held if int(job[0].stem) == number)
                yield path, units.encode_unit(frame, tokenizer)

        happened.clear()
        progress = Progress("", 6, lambda line: None)
        for identity in units.make_units(tmp_path, frames(), tokenizer, engine=engine, part=part, progress=progress):
            happened.append("abcdef"[identities.index(identity)])
        return "".join(happened)

    identities = [units.identity(frame, tokenizer) for frame in frames()]
    assert run((1, 3), [4, 1]) == "4a1bcdef"  # what others make is passed over
    assert run((0, 1), [2, 0, 5, 3]) == "20abc5" + "3def"
    assert run((0, 1), []) == "abcdef"


def test_a_killed_worker_is_replaced_and_its_unit_made(texts, monkeypatch):
    started = []
    real = workers.Worker._start

    def start(self):
        process = real(self)
        started.append(process)  # by two threads: the last may be another's
        if len(started) < 4:
            process.kill()
        return process

    wanted = tree(run(texts, "whole"))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    monkeypatch.setattr(workers.Worker, "_start", start)
    assert tree(run(texts, "killed", workers=2)) == wanted
    assert len(started) in (4, 5)
    assert all(process.poll() is not None for process in started)


def test_a_unit_over_which_every_process_dies_is_named(texts, monkeypatch):
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    monkeypatch.setattr(workers, "MAX_DEATHS", 2)
    monkeypatch.setattr(
        workers.Worker, "_start", lambda self: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    with pytest.raises(UserFault, match=r"2 processes in a row died over .* \(SIGKILL\).*prepare\.workers=1"):
        run(texts, "never", workers=2)


def test_a_fault_of_the_text_comes_back_from_a_process(texts, monkeypatch, tmp_path):
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    theirs = build_tokenizer("char", alphabet="".join(TEXTS.values()).replace("w", ""))
    data = DataConfig(name="text", source=str(texts), dir=str(tmp_path / "out"))
    with pytest.raises(UserFault, match=r"'w' .*is not in the alphabet"):
        prepare(data, TokenizerConfig("char"), given=theirs, work=WorkConfig(workers=2), say=lambda line: None)
    *_, last = units.cut([("train", iter([b"n" * 90_000 + b"w"]))], theirs)
    with pytest.raises(UserFault, match=r"'w' .*is not in the alphabet.*, counted from a place inside the document"):
        units.encode_unit(last, theirs)


PROGRAM = """
import os, sys
from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import units, workers
from minigpt.data.preparing.prepare import prepare

units.UNIT_BYTES = 50_000
real = workers.Worker._start

def start(self):
    process = real(self)
    os.write(1, f"{process.pid}\\n".encode())  # at once: two threads start one each
    return process

def one_by_one(path, content):
    write(path, content)
    os.write(1, b"unit\\n")
    sys.stdin.readline()

write, units.write_file = units.write_file, one_by_one
workers.Worker._start = start
data = DataConfig(name="text", source=sys.argv[1], dir=sys.argv[2])
prepare(data, TokenizerConfig("byte"), work=WorkConfig(workers=2), say=lambda line: None)
"""


def test_a_killed_parent_leaves_no_orphan_and_no_finished_unit_is_made_again(texts, tmp_path, monkeypatch):
    command = [sys.executable, "-c", PROGRAM, str(texts), str(tmp_path / "killed")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines = []
        while lines.count("unit\n") < 2:
            lines.append(process.stdout.readline())
            assert lines[-1]
            if lines[-1] == "unit\n" and lines.count("unit\n") < 2:
                process.stdin.write("\n")
                process.stdin.flush()
        process.kill()
    orphans = [int(line) for line in lines if line != "unit\n"]
    assert len(orphans) == 2
    until = time.monotonic() + 2.0
    while any(map(is_running, orphans)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, orphans))

    wanted = tree(run(texts, "whole"))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    made, real = [], units.encode_unit
    monkeypatch.setattr(units, "encode_unit", lambda *arguments: made.append(None) or real(*arguments))
    there = len(list((tmp_path / "killed").rglob("*.unit")))
    assert tree(run(texts, "killed", workers=1)) == wanted
    assert there == 2
    assert len(made) == UNITS - there


def test_processes_that_were_started_early_do_the_work_and_none_outlives_it(texts, tmp_path, monkeypatch):
    """While the text is read; whatever happens to it then."""
    started, real = [], workers.Worker._start

    def start(self):
        process = real(self)
        started.append(process)
        return process

    monkeypatch.setattr(workers.Worker, "_start", start)
    (tmp_path / "tokenizer.json").write_text(json.dumps(build_tokenizer("byte").to_json()))
    frame = b'[["train",0,3]]\nabc'
    with workers.started_early(2):
        assert len(started) == 2
        jobs = [(tmp_path / str(number), frame) for number in range(3)]
        results = dict(workers.encode_in_processes(jobs, 2, tmp_path / "tokenizer.json"))
    assert len(results) == 3
    assert len(started) == 2
    with pytest.raises(UserFault), workers.started_early(1):
        raise UserFault("the text is at fault")
    assert [process.poll() is None for process in started] == [False] * 3
    assert not workers._early


def test_a_user_who_may_have_no_larger_pipes_or_no_process_yet_is_served_all_the_same(tmp_path, monkeypatch):
    """From 33 workers on Linux gave an ordinary user no more pages: a traceback."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(build_tokenizer("byte").to_json()))

    def refused(*_):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(workers.fcntl, "fcntl", refused)
    real = workers.Worker._start
    monkeypatch.setattr(workers.Worker, "_start", refused)
    with workers.started_early(1):
        monkeypatch.setattr(workers.Worker, "_start", real)
        jobs = [(tmp_path / "0", b'[["train",0,3]]\nabc')]
        assert len(dict(workers.encode_in_processes(jobs, 1, tmp_path / "tokenizer.json"))) == 1


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False if Path("/proc/self").exists() else subprocess.call(["kill", "-0", str(process)]) == 0


def test_ctrl_c_ends_the_processes_and_keeps_what_is_made(texts, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(texts), str(tmp_path / "stopped")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert time.monotonic() - began < 5.0  # a second on a machine with nothing else to do
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not any(is_running(int(line)) for line in lines if line != "unit\n")
    assert len(list((tmp_path / "stopped").rglob("*.unit"))) == lines.count("unit\n") == 1
    assert not list((tmp_path / "stopped").rglob("*.tmp"))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_parts_in_any_order_make_the_same_bytes_and_the_last_one_puts_them_together(texts, monkeypatch, order, capsys):
    wanted = tree(run(texts, "whole", "bpe"))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    for i in order[:2]:
        with pytest.raises(UnfinishedParts, match=rf"part {i}/3 is done: \d of \d units are still to be made"):
            run(texts, "parts", "bpe", part=f"{i}/3")
    arguments = ["data=text", f"data.source={texts}", "tokenizer=bpe", "tokenizer.vocab_size=280"]
    arguments += [f"data.dir={texts.parent / 'parts'}"]
    assert cli.prepare([*arguments, f"prepare.part={order[0]}/3"]) is None
    assert f"part {order[0]}/3 is done" in capsys.readouterr().out
    (next(texts.parent.glob("parts/text-*")) / ".train-000.bin.4711.tmp").write_bytes(
        b"of one that was killed at the end"
    )
    assert tree(run(texts, "parts", "bpe", part=f"{order[2]}/3")) == wanted
    assert tree(run(texts, "parts", "bpe", part=f"{order[0]}/3")) == wanted  # found


def test_the_plain_command_ends_what_parts_began(texts, monkeypatch):
    wanted = tree(run(texts, "whole"))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    with pytest.raises(UnfinishedParts):
        run(texts, "parts", part="2/2")
    assert tree(run(texts, "parts")) == wanted


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/", "-1/2", "a/b"])
def test_a_part_that_is_none_is_named(part):
    assert "prepare.part=" in check(PrepareConfig(prepare=WorkConfig(part=part)))[0]


@pytest.mark.parametrize("work", [WorkConfig(part="1/2"), WorkConfig(slurm=2)])
def test_parts_of_a_mixture_are_refused(work):
    config = PrepareConfig(data=DataConfig(mix={"stdlib": 0.5, __file__: 0.5}), prepare=work)
    assert any("are for one source, got data.mix with 2. Prepare each" in sentence for sentence in check(config))


def test_units_of_another_text_are_not_taken(texts, monkeypatch):
    """The source changed while it was encoded, and back: what was made of the other text is made again."""
    wanted = tree(run(texts, "whole"))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    real = make.split

    def changed(*arguments):
        (texts / "a.txt").write_text(TEXTS["a.txt"].replace("fox", "hen"), newline="")
        return real(*arguments)

    monkeypatch.setattr(make, "split", changed)
    with pytest.raises(UserFault, match="changed while it was read"):
        run(texts, "again", workers=1)
    monkeypatch.setattr(make, "split", real)
    (texts / "a.txt").write_text(TEXTS["a.txt"], newline="")
    again = tree(run(texts, "again", workers=1))
    assert {name: again[name] for name in wanted if name.endswith(".bin")} == {
        name: content for name, content in wanted.items() if name.endswith(".bin")
    }


def test_a_damaged_unit_is_named_removed_and_made_again(texts, monkeypatch):
    wanted = tree(run(texts, "whole"))
    monkeypatch.setattr(units, "UNIT_BYTES", 50_000)
    with pytest.raises(UnfinishedParts):
        run(texts, "flipped", part="1/2")
    path = max((texts.parent / "flipped").rglob("*.unit"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StorageFailure, match=r"\.unit was changed since it was written, and is removed\. Run the same"):
        run(texts, "flipped", workers=1)
    assert tree(run(texts, "flipped", workers=1)) == wanted


def test_a_disk_that_is_too_small_is_named_before_anything_is_encoded(texts, monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(make.shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    with pytest.raises(
        StorageFailure, match=r"needs about [\d,]+ bytes on the disk.*has 1,000 bytes left.*data\.dir=DIR"
    ):
        run(texts, "small")
    assert not list((texts.parent / "small").rglob("*.unit"))


def test_what_encoding_takes_is_told_from_more_than_the_first_record(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "PROBE_BYTES", 1 << 14)
    monkeypatch.setattr(make, "SMALL_BYTES", 1 << 16)
    text = "".join(json.dumps({"text": "how much wood would a woodchuck chuck"}) + "\n" for _ in range(4_000))
    told = []
    for name, first in (("plain", ""), ("short", json.dumps({"text": "\u00e9"}) + "\n")):
        (tmp_path / f"{name}.jsonl").write_text(first + text)
        said: list[str] = []
        data = DataConfig(name="text", source=str(tmp_path / f"{name}.jsonl"), dir=str(tmp_path / name))
        prepare(data, TokenizerConfig(name="bpe", vocab_size=300), say=said.append)
        kept = [found[1] for line in said if (found := re.search(r"([\d,]+) bytes of it kept", line))]
        told += [int(each.replace(",", "")) for each in kept]
    assert len(told) == 2
    assert told[1] == pytest.approx(told[0], rel=0.1)


def test_a_second_command_waits_for_the_first_with_a_sentence(texts, tmp_path):
    wanted = tree(run(texts, "whole"))
    command = [sys.executable, "-c", PROGRAM, str(texts), str(tmp_path / "both")]
    said: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        while (line := first.stdout.readline()) != "unit\n":
            assert line

        def say(line):
            said.append(line)
            if "waiting for it" in line:
                first.stdin.write("\n" * 99)
                first.stdin.flush()

        data = DataConfig(name="text", source=str(texts), dir=str(tmp_path / "both"))
        folder = prepare(data, TokenizerConfig("byte"), say=say).folder
    assert tree(folder) == wanted
    assert sum("another process is preparing" in line for line in said) == 1
    assert not any("encoding" in line for line in said)


def test_a_terminal_has_one_line_that_moves_and_a_file_has_lines(monkeypatch, capsys):
    monkeypatch.setattr("minigpt.screen.MOVE_SECONDS", 0.0)
    monkeypatch.setattr("minigpt.screen.LINE_SECONDS", 0.0)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((30, 5)))
    Progress("reading", 4_000_000, tell)(1_000_000)
    plain = capsys.readouterr().out
    assert plain.startswith("reading: 1 of 4 MB, ")
    assert plain.endswith(" s left\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    progress = Progress("reading", 4_000_000, tell)
    progress.skip(3_000_000)
    progress(500_000)
    tell("done")
    first, second, third = capsys.readouterr().out.split("\r")[1:]
    assert first == "reading: 3 of 4 MB\x1b[K"  # made before: no rate
    assert second.startswith("reading: 4 of 4 MB, ")
    assert len(second.removesuffix("\x1b[K")) == 29
    assert third == "\x1b[Kdone\n"


def test_a_slurm_array_is_written_and_makes_the_same_bytes_in_any_order(texts, monkeypatch, capsys, tmp_path):
    """Run as sbatch runs it, but for the units: four processes of 8 MiB would take a real text."""
    data = tmp_path / "a folder"
    arguments = ["data=text", f"data.source={texts}", "tokenizer=byte", f"data.dir={data}", "prepare.slurm=3"]
    cli.prepare(arguments)
    script = data / "prepare.sbatch"
    assert f"sbatch '{script}'" in capsys.readouterr().out
    text = script.read_text()
    assert "#SBATCH --array=1-3\n" in text
    assert "prepare.slurm" not in text
    assert not list(data.rglob("*.unit"))
    for task in (3, 1):
        done = subprocess.run(
            ["sh", str(script)], env=os.environ | {"SLURM_ARRAY_TASK_ID": str(task)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "Train on it" in done.stdout  # the only unit is that of task 1
    assert tree(next(data.glob("text-*"))) == tree(run(texts, "whole"))
    with pytest.raises(UserFault, match="holds a password or key"):
        cli.prepare(["data=text", "data.source=https://me:secret@host/a.txt", f"data.dir={data}", "prepare.slurm=3"])
