"""The interactive prompt."""

import io
import sys
from functools import partial

import pytest
import torch

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.schema import ModelConfig, SampleConfig, TrainConfig
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import CONTROL_PICTURES
from minigpt.model.gpt import GPT
from minigpt.sampling import command, interactive
from minigpt.sampling.command import write_texts
from minigpt.sampling.stream import show
from minigpt.sampling.write import write

CHAR = build_tokenizer("char", alphabet="\n abc/")


@pytest.fixture
def talk(monkeypatch, capsys, tmp_path):
    torch.manual_seed(2)
    config = TrainConfig(model=ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=9))
    model = GPT(config.model, CHAR.vocab_size).eval()
    loaded = LoadedCheckpoint(model, CHAR, config, {}, tmp_path)

    def talk(*lines, **options):
        """stdout and stderr after these lines and the end of the input."""
        config = SampleConfig(checkpoint=str(tmp_path), max_new_tokens=7, seed=10, interactive=True, **options)
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        interactive.converse(config, partial(write_texts, loaded, None))
        captured = capsys.readouterr()
        return captured.out, captured.err

    talk.text = lambda prompt, **options: (
        write(model, CHAR, [CHAR.encode(prompt)], SampleConfig(**{"max_new_tokens": 7, "seed": 10, **options}))[0].text
    )
    return talk


def test_a_line_is_continued_and_each_text_has_its_seed(talk):
    out, err = talk("abc", "abc")
    assert out == f"{talk.text('abc')}\n{talk.text('abc', seed=11)}\n"
    assert "seed 10\n" in err
    assert "seed 11\n" in err


def test_commands_set_the_options(talk):
    out, err = talk("/temp 0", "/len 4", "/seed 3", "/topk 2", "/topp 0.5", "/minp 0.1", "/penalty 1.5", "abc")
    options = {"temperature": 0, "max_new_tokens": 4, "seed": 3, "top_k": 2, "top_p": 0.5, "min_p": 0.1}
    assert out == talk.text("abc", **options, repetition_penalty=1.5) + "\n"
    assert "temperature = 0.0\nmax_new_tokens = 4\n" in err


def test_commands_that_cannot_be_followed_change_nothing(talk):
    out, err = talk("/temp hot", "/topp 2", "/len 2.5", "/temperatur 1", "/tem 1", "/max_new_tokens x", "abc")
    assert "temperature must be a number, got 'hot'" in err
    assert "top_p must be more than 0 and at most 1, got 2.0" in err
    assert "max_new_tokens must be a whole number, got '2.5'" in err
    assert "Did you mean /temp?" in err
    assert out == talk.text("abc") + "\n"


def test_a_setting_is_known_by_its_whole_name_too(talk):
    out, err = talk("/temperature 0", "/max_new_tokens 3", "/repetition_penalty 1.5", "abc")
    assert out == talk.text("abc", temperature=0, max_new_tokens=3, repetition_penalty=1.5) + "\n"
    assert "temperature = 0.0\nmax_new_tokens = 3\n" in err


def test_two_slashes_are_a_prompt_that_begins_with_one(talk):
    assert talk("//a")[0] == talk.text("/a") + "\n"


def test_help_and_quit(talk):
    out, err = talk("/help", "/quit", "abc")
    assert out == ""
    assert all(name in err for name in interactive.COMMANDS)


def test_a_fault_is_said_and_the_conversation_goes_on(talk):
    out, err = talk("xyz", "abc")
    assert "'x'" in err
    assert out == talk.text("abc") + "\n"


def test_an_empty_line_starts_from_nothing(talk):
    assert talk("")[0] == talk.text("\n") + "\n"


def test_ctrl_c_stops_the_text_then_leaves(talk, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "write", interrupted)
        assert "[stopped]" in talk("abc", "abc")[1]
    monkeypatch.setattr("builtins.input", interrupted)
    assert talk("abc")[0] == ""


def test_control_characters_do_not_reach_a_terminal(monkeypatch, capsys):
    show("a\x1b[2Jb\n")
    assert capsys.readouterr().out == "a\x1b[2Jb\n"  # a file gets what was written
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show("a\x1b[2Jb\r\t\n\x9b\x7f")
    assert capsys.readouterr().out == "a␛[2Jb␍\t\n\ufffd␡"
    assert not {ord("\n"), ord("\t")} & CONTROL_PICTURES.keys()


def test_a_terminal_without_a_character_gets_a_substitute(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    show("é!")
    assert terminal.buffer.getvalue() == b"?!"
