"""What people get wrong, end to end: one sentence with the way out, exit code 2 before step 1, nothing created."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.training.run import train

ROOT = Path(__file__).parents[1]
WORDS = b"how much wood would a woodchuck chuck\n" * 40
TINY = [
    "data=text", "model=gpt-nano", "model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.block_size=8",
    "batch_tokens=64", "trainer.max_steps=2", "trainer.device=cpu", "trainer.threads=1", "trainer.precision=fp32",
    "samples.every_steps=0", "schedule.warmup_steps=1",
]  # fmt: skip


def run_script(name: str, arguments: list[str], monkeypatch, capfd) -> tuple[int, str]:
    """A script's exit code and stderr, as at a terminal."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    spec = importlib.util.spec_from_file_location("__main__", ROOT / "scripts" / name)
    with pytest.raises(SystemExit) as end:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return int(end.value.code or 0), capfd.readouterr().err


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


# What the text is, further settings, and what the sentence must say: the value, what is wanted, the remedy.
TEXT: dict[str, tuple[bytes | None, list[str], list[str]]] = {
    "an empty file": (b"", [], ["text.txt", "empty", "wanted text"]),
    "no file": (None, [], ["does not exist", "Give an existing file"]),
    "only white space": (b" \n\t" * 99, [], ["nothing but white space (297 bytes"]),
    "one character": (b"a", [], ["split has no text", "Use more text"]),
    "fewer tokens than a window": (b"twelve bytes", ["model.block_size=64"], ["train split", "64", "block_size"]),
    "a validation split of one token": (b"0123456789", ["data.val_fraction=0.1"], ["val split", "1 token"]),
    "no UTF-8": (b"caf\xe9 " * 50, ["tokenizer=char"], ["byte 0xE9 at offset 3", "data.encoding=latin-1"]),
    "a character the alphabet lacks": (
        WORDS,
        ["tokenizer=char", "samples.prompt=woöd"],
        ["'ö' (U+00F6) at position 2"],
    ),
    "a vocabulary of nothing": (WORDS, ["tokenizer=bpe", "tokenizer.vocab_size=5"], ["at least 257", "vocab_size=5"]),
    "no encoding": (WORDS, ["data.encoding=klingon"], ["klingon", "utf-8"]),
}


@pytest.mark.parametrize("case", TEXT)
def test_a_text_that_can_not_be_trained_on(case, tmp_path, monkeypatch, capfd):
    text, more, says = TEXT[case]
    if text is not None:
        (tmp_path / "text.txt").write_bytes(text)
    where = [f"data.source={tmp_path}/text.txt", f"data.dir={tmp_path}/data", f"run.dir={tmp_path}/run"]
    code, said = run_script("train.py", [*TINY, "tokenizer=byte", *where, *more], monkeypatch, capfd)
    assert code == 2, said
    for part in says:
        assert part in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A char run whose block is 8."""
    place = tmp_path_factory.mktemp("made")
    (place / "text.txt").write_bytes(WORDS)
    assert train(compose("train", [*TINY, "tokenizer=char", *keys(place)])) == 0
    return place


def keys(place: Path) -> list[str]:
    return [f"data.source={place}/text.txt", f"data.dir={place}/data", f"run.dir={place}/run"]


CONTINUED: dict[str, tuple[list[str], list[str]]] = {
    "another model": (["model.n_layer=2"], ["model.n_layer: 1 -> 2", "run.dir=NEW_DIR"]),
    "another seed": (["seed=5"], ["seed: 1337 -> 5"]),
    "another batch": (["batch_tokens=128"], ["batch_tokens: 64 -> 128"]),
    "another tokenizer": (["tokenizer=byte"], ["tokenizer.name: 'char' -> 'byte'"]),
    "weights of another shape": (
        ["run.dir=TMP/new", "init.from=TMP/run", "model.n_embd=32"], ["model.n_embd=32 does not fit", "=16"],
    ),
    "weights with other positions": (
        ["run.dir=TMP/new", "init.from=TMP/run", "model.block_size=16"], ["model.block_size=16 does not fit", "=8"],
    ),
    "weights of another tokenizer": (
        ["run.dir=TMP/new", "init.from=TMP/run", "tokenizer=byte"], ["char", "byte", "tokenizer"],
    ),
    "weights of another alphabet": (
        ["run.dir=TMP/new", "init.from=TMP/run", "data.source=TMP/other.txt"], ["char", "tokenizer"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTINUED)
def test_a_checkpoint_that_does_not_fit(case, made, tmp_path, monkeypatch, capfd):
    more, says = CONTINUED[case]
    place = tmp_path / "copy"
    shutil.copytree(made, place)
    (place / "other.txt").write_bytes(WORDS.replace(b"w", b"v"))
    checkpoints = files(place / "run")
    rows = (place / "run/metrics.jsonl").read_bytes()
    more = [each.replace("TMP", str(place)) for each in more]
    settings = [*TINY, "tokenizer=char", *keys(place), "trainer.max_steps=4", *more]
    code, said = run_script("train.py", settings, monkeypatch, capfd)
    assert code == 2, said
    for part in says:
        assert part in said
    assert files(place / "run") == checkpoints
    assert (place / "run/metrics.jsonl").read_bytes() == rows
    assert not (place / "new").exists()


def test_a_run_begun_from_weights_has_their_architecture(made, tmp_path):
    """U8: every setting of the model and the tokenizer had to be typed again."""
    rest = [each for each in TINY if not each.startswith("model")]
    where = [f"data.source={made}/text.txt", f"data.dir={tmp_path}/data", f"run.dir={tmp_path}/run"]
    assert train(compose("train", [*rest, *where, f"init.from={made}/run"])) == 0


SAMPLE: dict[str, tuple[list[str], list[str]]] = {
    "a negative temperature": (["temperature=-1"], ["temperature must be at least 0", "-1"]),
    "a character the alphabet lacks": (["prompt=woöd"], ["'ö' (U+00F6) at position 2", "tokenizer=bpe"]),
    "a lone surrogate": (["prompt=wo\udcffod"], ["lone surrogate U+DCFF at character 2"]),
    "an empty stop": (['stop=["a", ""]'], ["stop holds an empty string"]),
}


@pytest.mark.parametrize("case", SAMPLE)
def test_a_text_that_can_not_be_written(case, made, monkeypatch, capfd):
    more, says = SAMPLE[case]
    before = files(made)
    code, said = run_script("sample.py", [f"checkpoint={made}/run", "device=cpu", *more], monkeypatch, capfd)
    assert code == 2, said
    for part in says:
        assert part in said
    assert files(made) == before


@pytest.mark.parametrize(
    ("more", "note"),
    [
        (["prompt=wood", "temperature=0"], ""),
        (["prompt=wood", "top_k=999"], "top_k=999 is more than the vocabulary"),
        (["prompt=wood", "top_k=0"], ""),
        (["prompt=" + "wood" * 20], "it reads the last"),
        (["prompt=" + "wood" * 250_000], "it reads the last"),  # a megabyte
        (["prompt="], "an empty prompt starts from a newline"),
        (["prompt= "], ""),
        ([], "an empty prompt starts from a newline"),
    ],
)
def test_what_is_odd_but_allowed_is_done_and_said(more, note, made, monkeypatch, capfd):
    settings = [f"checkpoint={made}/run", "device=cpu", "max_new_tokens=5", *more]
    code, said = run_script("sample.py", settings, monkeypatch, capfd)
    assert code == 0, said
    assert note in said
    assert "5 tokens in" in said
