"""A checkpoint writes text: the same seed gives the same text alone and in company, cached or not, and in C++."""

import io
import sys

import pytest

import minigpt
from minigpt.cli import _dispatch
from minigpt.faults import UserFault
from minigpt.sampling import interactive, sample
from minigpt.sampling.native import decoder
from minigpt.sampling.native.library import NoNativeCode, find_compiler
from minigpt.screen import show

LEARNED = ["model.n_embd=32", "model.block_size=24", "batch_tokens=240", "trainer.max_steps=40", "optimizer.lr=1e-2"]


@pytest.fixture(scope="module")
def checkpoint(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("sampled"))(*LEARNED)


@pytest.fixture
def written(checkpoint, capsys):
    """stdout and stderr of `minigpt sample` with these words."""

    def run(*words):
        plain = [f"checkpoint={checkpoint}", "max_new_tokens=30", "device=cpu", *words]
        assert _dispatch(["sample", *plain]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_a_seed_gives_the_same_text_streamed_whole_uncached_alone_and_in_company(written, checkpoint):
    out, err = written("prompt=how much")
    assert out == f"how much{minigpt.load(checkpoint).generate('how much', max_new_tokens=30)}\n"
    assert "on cpu in fp32" in err
    assert "30 tokens in" in err
    for way in ("stream=false", "use_cache=false", "seed=1337"):
        assert written("prompt=how much", way)[0] == out
    assert written("prompt=how much", "seed=5")[0] != out
    together, _ = written("prompt=wood", "prompt=how much", "num_samples=2")
    assert f"--- prompt 2 of 2, sample 1 of 2 ---\n{out}--- prompt 2 of 2, sample 2 of 2 ---\nhow much" in together
    equal, _ = written("prompt=wood", "prompt=wood", "temperature=1.5")
    first, second = equal.split("--- prompt 2 of 2, sample 1 of 1 ---\n")
    assert second not in first


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_the_native_step_writes_what_torch_writes(written):
    for words in ((), (f"num_samples={decoder.MAX_ROWS + 1}",), ("precision=int8",)):
        out, err = written("prompt=wood", "compile=on", *words)
        assert "not compiled" not in err
        assert out == written("prompt=wood", "compile=off", *words)[0]
    assert written("prompt=wood", "compile=on", "precision=bf16")[0]


def test_without_a_compiler_the_text_is_the_same_and_the_reason_is_given(written, monkeypatch):
    def nothing():
        raise NoNativeCode("no C++ compiler found")

    usual = written("prompt=wood")[0]
    monkeypatch.setattr(decoder, "library", nothing)
    out, err = written("prompt=wood")
    assert out == usual
    assert "a token's step is not compiled: no C++ compiler found" in err
    with pytest.raises(UserFault, match=r"compile=on: no C\+\+ compiler found\. Use compile=auto"):
        written("prompt=wood", "compile=on")


def test_a_stop_string_ends_the_text_before_it(written):
    whole, _ = written("prompt=wood")
    stop = whole[9:12]
    out, err = written("prompt=wood", f'stop=["{stop}"]')
    assert out == whole[: whole.index(stop, 4)] + "\n"
    assert "1 ended by a stop string" in err


def test_a_prompt_file_is_one_prompt_with_every_byte(written, tmp_path):
    (tmp_path / "a,b=c.txt").write_bytes("é\n\nab\n".encode())
    assert written(f"prompt_file={tmp_path / 'a,b=c.txt'}")[0] == written("prompt=é\n\nab\n")[0]
    (tmp_path / "binary").write_bytes(b"\x89PNG\x00\xff")
    assert written(f"prompt_file={tmp_path / 'binary'}")[0].startswith("\ufffdPNG\x00\ufffd")


def test_a_prompt_that_the_window_can_not_hold_is_noted(written):
    out, err = written(f"prompt={'a' * 24}xyzxyz")  # 30 tokens: 25 -> 12 are kept, ... 30 -> 17
    assert out.startswith("aaaaaaaaaaaaaaaaaaaaaaaaxyzxyz")
    assert "prompt 1 has 30 tokens and the model's window 24: it reads the last 17" in err
    assert "an empty prompt starts from <|endoftext|> and a newline" in written()[1]


@pytest.fixture
def typed(written, monkeypatch):
    """stdout and stderr of `minigpt sample interactive=true` after these lines."""

    def run(*lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return written("interactive=true", "seed=10")

    return run


def test_each_typed_line_is_continued_with_the_next_seed(typed, written):
    out, err = typed("wood", "", "wood")
    alone = [written(f"prompt={prompt}", f"seed={seed}")[0] for seed, prompt in ((10, "wood"), (11, ""), (12, "wood"))]
    assert out == "".join(text.removeprefix("wood") for text in alone)
    assert "seed 12\n" in err


def test_a_typed_byte_that_is_no_utf_8_is_a_replacement_character(written, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"wood\xff\n"), encoding="utf-8"))
    out = written("interactive=true", "seed=10")[0]
    assert out == written("prompt=wood\ufffd", "seed=10")[0].removeprefix("wood\ufffd")


def test_commands_set_the_options_and_wrong_ones_change_nothing(typed, written):
    out, err = typed(
        "/temperature 0", "/max_new_tokens 4", "/top_k 2", "/repetition_penalty 1.5", "/help", "wood", "/quit", "wood"
    )
    options = ("temperature=0", "max_new_tokens=4", "top_k=2", "repetition_penalty=1.5")
    assert out == written("prompt=wood", *options)[0].removeprefix("wood")
    assert "temperature = 0.0\nmax_new_tokens = 4\n" in err
    assert all(f"/{name}" in err for name in interactive.NAMES)
    out, err = typed("/temperature hot", "/top_p 2", "/max_new_tokens 2.5", "/tem 1", "wood", "//a")
    assert "temperature must be a number, got 'hot'" in err
    assert "top_p must be more than 0 and at most 1, got 2.0" in err
    assert "max_new_tokens must be a whole number, got '2.5'" in err
    assert "no command /tem." in err
    wood, slash = written("prompt=wood", "seed=10")[0], written("prompt=/a", "seed=11")[0]
    assert out == wood.removeprefix("wood") + slash.removeprefix("/a")


def test_ctrl_c_stops_the_text_then_leaves(typed, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sample, "write", interrupted)
        assert "[stopped]" in typed("wood", "wood")[1]
    monkeypatch.setattr("builtins.input", interrupted)
    assert typed("wood")[0] == ""


def test_control_characters_do_not_reach_a_terminal(monkeypatch, capsys):
    show("a\x1b[2Jb\n")
    assert capsys.readouterr().out == "a\x1b[2Jb\n"  # a file gets what was written
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show("a\x1b[2Jb\r\t\n\x9b\x7f")
    assert capsys.readouterr().out == "a␛[2Jb\t\n\ufffd␡"  # the line end of a text from Windows
