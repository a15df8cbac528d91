"""Text is prepared on all cores; killed and continued, and with any number of workers, it gives the same shards."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from minigpt import cli
from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import prepare as module
from minigpt.data.preparing import units
from minigpt.data.preparing.prepare import prepare
from minigpt.data.sources.corpus import find_corpus, look_inside
from minigpt.data.tokenizers.scheme import runs
from minigpt.faults import StorageFailure, UserFault
from tests.conftest import printed, running

WORDS = [f"wörd{number * number}" for number in range(4500)]


@pytest.fixture
def texts(folder, monkeypatch):
    """A long text, a folder of records and texts, and one of three long texts, prepared in units of 10 kB."""
    monkeypatch.setattr(units, "UNIT_BYTES", 10_000)
    monkeypatch.setattr(units, "WINDOW_BYTES", 100_000)
    Path("long.txt").write_text(" ".join(WORDS * 3))  # it can be cut after RUN_BYTES, 64 kB
    Path("mixed").mkdir()
    Path("mixed/a.jsonl").write_text("".join(f'{{"text": "{word} {word}"}}\n' for word in WORDS[:1500]))
    for number in range(12):
        Path(f"mixed/{number}.txt").write_text(" ".join(WORDS[number::12]))
    Path("few").mkdir()
    for number in range(3):
        Path(f"few/{number}.txt").write_text(" ".join(WORDS * 3) + f" {number}")


def made(source: str, place: str, tokenizer: str = "bpe", workers: int = 1, **keys):
    data = DataConfig("text", source, dir=place, **keys)
    return prepare(data, TokenizerConfig(tokenizer, 300), work=WorkConfig(workers))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def test_the_shards_are_the_same_for_any_number_of_workers(texts):
    one, three = (made("mixed", place, workers=workers) for place, workers in (("one", 1), ("three", 3)))
    assert len(list(one.folder.glob("*.bin"))) >= 3
    assert files(one.folder) == files(three.folder)


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_the_tokens_are_those_of_the_text_in_one_piece(texts, monkeypatch, tokenizer):
    cut = made("long.txt", "cut", tokenizer)
    monkeypatch.setattr(units, "UNIT_BYTES", 1 << 23)
    whole = made("long.txt", "whole", tokenizer)
    for split in ("train", "val"):
        one, other = getattr(cut, split), getattr(whole, split)
        assert one.tokens(0, len(one)).tolist() == other.tokens(0, len(other)).tolist()
    assert len(list(cut.folder.glob("train*.bin"))) > len(list(whole.folder.glob("train*.bin"))) == 1
    assert cut.summary == whole.summary


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_few_documents_over_several_units_are_divided_as_in_one(texts, monkeypatch, tokenizer):
    cut, three = (made("few", f"{workers}", tokenizer, workers, val_fraction=0.5) for workers in (1, 3))
    assert files(cut.folder) == files(three.folder)
    monkeypatch.setattr(units, "UNIT_BYTES", 1 << 23)
    whole = made("few", "whole", tokenizer, val_fraction=0.5)
    for split in ("train", "val"):
        one, other = getattr(cut, split), getattr(whole, split)
        assert one.tokens(0, len(one)).tolist() == other.tokens(0, len(other)).tolist()
        shards = [list(prepared.folder.glob(f"{split}*.bin")) for prepared in (cut, whole)]
        assert len(shards[0]) > 5 > len(shards[1])


@pytest.mark.parametrize("source", ["mixed", "few"])
def test_a_unit_that_is_finished_is_not_made_again(texts, monkeypatch, source):
    wanted = files(made(source, "whole").folder)
    calls, real = [], units.sha256_of

    def stop(path):
        calls.append(path)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(units, "sha256_of", stop)
    with pytest.raises(KeyboardInterrupt):
        made(source, "stopped")
    monkeypatch.setattr(units, "sha256_of", real)
    (folder,) = Path("stopped").glob("text-*")
    records = list((folder / units.UNITS).iterdir())
    assert records
    assert not (folder / "prepared.json").exists()
    shard = min(folder.glob("train-*.bin"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")  # damaged: this unit is made again
    written, write = [], units.write_json
    monkeypatch.setattr(units, "write_json", lambda path, content: written.append(path.name) or write(path, content))
    monkeypatch.setattr(module, "scan_unit", lambda unit, **how: pytest.fail("read again"))
    assert files(made(source, "stopped").folder) == wanted
    corpus = look_inside(find_corpus(DataConfig("text", source)))
    assert len(written) == len(units.units_of(corpus, runs)) - len(records) + 1


PROGRAM = """
import sys
from minigpt.config.schema import DataConfig, TokenizerConfig, WorkConfig
from minigpt.data.preparing import prepare, units
units.UNIT_BYTES = 10_000
units.WINDOW_BYTES = 100_000
data = DataConfig("text", "mixed", dir=sys.argv[1])
prepare.prepare(data, TokenizerConfig("bpe", 300), work=WorkConfig(2))
"""  # without `if __name__ == "__main__"`, as people write scripts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_or_interrupted_no_worker_stays_and_the_same_command_ends_with_the_same_bytes(texts, number):
    wanted = files(made("mixed", "whole").folder)
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler){PROGRAM}"
    command = [sys.executable, "-c", program, "killed"]
    with subprocess.Popen(command, start_new_session=True, stdout=-3, stderr=subprocess.PIPE) as process:
        while not list(Path("killed").rglob("*.bin")) and process.poll() is None:
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):  # a crowded machine may see it when it is done
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, errors = process.communicate()
    while running(process.pid):
        time.sleep(0.02)
    assert errors.count(b"Traceback") <= 1  # of the command, of no worker
    assert files(made("mixed", "killed", workers=1).folder) == wanted
    assert not list(Path("killed").rglob("*.tmp"))


def test_a_fault_of_the_text_comes_back_from_a_worker(texts):
    Path("mixed/bad.jsonl").write_text('{"text": "fine"}\nno\n')
    Path("mixed/z.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserFault) as fault:
        made("mixed", "data", "char", workers=2)
    assert ["bad.jsonl, line 2 is not JSON" in sentence for sentence in fault.value.faults] == [True, False]


def die(unit, **how):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_named_with_the_remedy(texts, monkeypatch):
    monkeypatch.setattr(module, "scan_unit", die)
    with pytest.raises(UserFault, match=r"was killed\. If memory is short, use fewer: prepare\.workers=1"):
        made("mixed", "data", workers=2)


def test_a_full_disk_is_a_storage_failure_and_the_same_command_continues(texts, monkeypatch):
    wanted = files(made("mixed", "whole").folder)
    real, left = os.fsync, [9]

    def fsync(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageFailure, match=r"No space left.*Make room or choose another folder: data\.dir=DIR"):
        made("mixed", "full")
    left[0] = 10_000
    assert files(made("mixed", "full").folder) == wanted


def test_tokens_are_found_again_and_made_anew_when_the_source_changes(texts, monkeypatch):
    first = made("mixed", "data")
    with monkeypatch.context() as patched:
        patched.setattr(module, "make", lambda *_, **__: pytest.fail("made again"))
        found, said = printed(lambda: made("mixed", "data"))
    assert found.folder == first.folder
    assert said[0].startswith(f"data: {first.folder}: ")
    Path("mixed/new.txt").write_text("one more document")
    changed, said = printed(lambda: made("mixed", "data"))
    assert changed.fingerprint != first.fingerprint
    assert any("the source changed since" in line for line in said)


def test_damaged_shards_are_made_again(texts):
    wanted = files(made("long.txt", "data").folder)
    (folder,) = Path("data").glob("text-*")
    (folder / "val-000.bin").unlink()
    _, said = printed(lambda: made("long.txt", "data"))
    assert files(folder) == wanted
    assert "has lost a file, or one was changed; preparing it anew" in said[0]


def test_a_run_continues_on_its_tokens_whatever_became_of_the_source(run, capsys):
    run("trainer.max_steps=2")
    facts = (run.path / "data.json").read_bytes()
    (run.folder / "text.txt").write_text("another text " * 99)
    capsys.readouterr()
    run("trainer.max_steps=4")
    said = f"Note: {run.folder / 'text.txt'} has changed, or is gone, since this run began. The run continues with its"
    assert said in capsys.readouterr().out
    (run.folder / "text.txt").unlink()
    run("trainer.max_steps=6")
    assert said in capsys.readouterr().out
    assert (run.path / "data.json").read_bytes() == facts
    (run.folder / "other.txt").write_text("a third text " * 99)
    with pytest.raises(UserFault, match=r"was begun with other data \(data\.source: .*text\.txt' -> .*other\.txt'\)"):
        run("trainer.max_steps=8", f"data.source={run.folder / 'other.txt'}")


def test_a_mixture_names_the_source_that_has_changed(texts):
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(f"{name} " * 900)
    config = DataConfig("stdlib", mix={"a.txt": 0.5, "b.txt": 0.5}, dir="data")
    prepared = module.prepare(config, TokenizerConfig("byte"))
    assert module.changed_sources(config, prepared) == []
    Path("b.txt").unlink()
    assert module.changed_sources(config, prepared) == [os.path.abspath("b.txt")]
    config = DataConfig("text", "a.txt", val_source="v.txt", dir="data")
    Path("v.txt").write_text("validation " * 99)
    prepared = module.prepare(config, TokenizerConfig("byte"))
    Path("c.txt").write_text(Path("a.txt").read_text())  # equal tokens by another name
    twin = module.prepare(replace(config, source="c.txt"), TokenizerConfig("byte"))
    assert twin.folder != prepared.folder
    assert module.changed_sources(config, twin) == []
    Path("v.txt").unlink()
    assert module.changed_sources(config, prepared) == [f"{os.path.abspath('a.txt')} or {os.path.abspath('v.txt')}"]


def test_the_command_prints_the_counts_once_and_names_the_command_that_trains(texts, capsys):
    cli.prepare(["data=text", "data.source=long.txt", "tokenizer=byte", "prepare.workers=1"])
    printed = capsys.readouterr().out
    assert "kept in    data/text-long.txt-byte-" in printed
    assert printed.count("data/text-long.txt-byte-") == printed.count("sequences occur in the training text") == 1
    assert "train data=text data.source=long.txt tokenizer=byte" in printed
