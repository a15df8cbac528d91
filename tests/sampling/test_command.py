"""scripts/sample.py's work, from the config to what appears on stdout and stderr."""

import io
import os
import sys
from pathlib import Path

import pytest
import torch

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.schema import ModelConfig, SampleConfig, TrainConfig
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from minigpt.sampling import command
from minigpt.sampling.native import decoder
from minigpt.sampling.native.library import NoNativeCode, find_compiler
from minigpt.sampling.write import write

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
LETTERS = "\n abcdefé"


@pytest.fixture
def checkpoint(monkeypatch):
    """A char model with a window of 12, loaded by name."""

    def load(path, which="best"):
        torch.manual_seed(3)
        tokenizer = build_tokenizer("char", alphabet=LETTERS)
        config = TrainConfig(model=ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=12))
        model = GPT(config.model, tokenizer.vocab_size)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        return LoadedCheckpoint(model, tokenizer, config, {}, Path(path) / which)

    monkeypatch.setattr(command, "load_checkpoint", load)
    return load("runs/x")


def run(capsys, **options):
    options = {"checkpoint": "runs/x", "max_new_tokens": 20, "device": "cpu", **options}
    assert command.sample(SampleConfig(**options)) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_one_text_is_the_prompt_and_its_continuation(checkpoint, capsys):
    out, err = run(capsys, prompt=["bad é"])
    expected = write(
        checkpoint.model.eval(),
        checkpoint.tokenizer,
        [checkpoint.tokenizer.encode("bad é")],
        SampleConfig(max_new_tokens=20),
    )
    assert out == f"bad é{expected[0].text}\n"
    assert "runs/x/best: on cpu in fp32" in err
    assert "20 tokens in" in err
    assert "tokens/s" in err
    assert run(capsys, prompt=["bad é"], stream=False)[0] == out
    assert run(capsys, prompt=["bad é"], use_cache=False)[0] == out
    assert run(capsys, prompt=["bad é"], seed=5)[0] != out


def test_several_texts_have_headlines_and_are_those_written_alone(checkpoint, capsys):
    out, _ = run(capsys, prompt=["a", "bed face"], num_samples=2)
    first, second = run(capsys, prompt=["a"])[0], run(capsys, prompt=["bed face"])[0]
    assert out.startswith(f"--- prompt 1 of 2, sample 1 of 2 ---\n{first}--- prompt 1 of 2, sample 2 of 2 ---\na")
    assert f"--- prompt 2 of 2, sample 1 of 2 ---\n{second}--- prompt 2 of 2, sample 2 of 2 ---\nbed face" in out


def test_a_stop_string_is_not_shown(checkpoint, capsys):
    whole, _ = run(capsys, prompt=["a"])
    stop = whole[7:9]
    out, err = run(capsys, prompt=["a"], stop=[stop])
    assert "1 ended by a stop string" in err
    assert out == "a" + whole[1 : whole.index(stop, 1)] + "\n"


def test_a_prompt_file_is_one_prompt_with_every_byte(checkpoint, capsys, tmp_path):
    file = tmp_path / "a,b=c.txt"
    file.write_bytes("é\n\nab\n".encode())
    out, _ = run(capsys, prompt_file=str(file))
    assert out.startswith("é\n\nab\n")
    assert out == run(capsys, prompt=["é\n\nab\n"])[0]
    file.write_bytes(b"a\xff")
    with pytest.raises(UserFault, match="UTF-8"):
        run(capsys, prompt_file=str(file))
    with pytest.raises(UserFault, match=r"prompt_file=.*can't be read.*Give a text file"):
        run(capsys, prompt_file=str(tmp_path / "missing"))


def test_what_the_user_may_not_expect_is_said(checkpoint, capsys):
    assert "an empty prompt starts from a newline" in run(capsys)[1]
    assert "an empty prompt starts from a newline" in run(capsys, prompt=["", "a"])[1]
    err = run(capsys, prompt=["abcabcabcabcabcabc"])[1]  # 18 tokens: 13 -> 6 are kept, ... 18 -> 11
    assert "prompt 1 has 18 tokens and the model's window 12: it reads the last 11" in err
    assert "note" not in run(capsys, prompt=["abcabcabcabc"])[1]


def test_of_a_long_prompt_only_what_the_model_reads_is_shown(checkpoint, capsys):
    out, err = run(capsys, prompt=["abcabcafedbabcabca"])
    assert out.startswith("... fedbabcabca")
    assert "it reads the last 11, and only they are shown" in err


def test_bytes_that_are_no_text_are_read_and_not_shown(checkpoint, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.tokenizer.__class__, "encode_bytes", lambda self, data: torch.tensor([3, 4, 5]))
    (tmp_path / "binary").write_bytes(b"\x89PNG\x00\xff")
    out, err = run(capsys, prompt_file=str(tmp_path / "binary"))
    assert out == run(capsys, prompt=["bcd"])[0].removeprefix("bcd")
    assert "prompt 1 is not UTF-8 text: its 6 bytes are read and not shown" in err


def test_ctrl_c_ends_the_line_first(checkpoint, capsys, monkeypatch):
    def interrupted(*_, on_text, **__):
        on_text("bad")
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(capsys, prompt=["a"])
    assert capsys.readouterr().out == "abad\n"


def test_a_terminal_that_lacks_characters_is_named(checkpoint, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True))
    assert command.sample(SampleConfig(checkpoint="runs/x", max_new_tokens=2, prompt=["a"], device="cpu")) == 0
    assert "this terminal writes latin-1, other characters become ?: set LC_ALL=C.UTF-8" in capfd.readouterr().err


def test_faults_are_the_users(checkpoint, capsys, monkeypatch):
    with pytest.raises(UserFault, match=r"'z'.*position 1"):
        run(capsys, prompt=["az"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserFault, match=r"device=cuda: this machine has none.*device=auto or cpu"):
        run(capsys, prompt=["a"], device="cuda")


def test_too_much_for_the_memory_is_said(checkpoint, capsys, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(command, "write", full)
    with pytest.raises(UserFault, match=r"1 prompts x num_samples=9 don't fit into memory"):
        run(capsys, prompt=["a"], num_samples=9)


@pytest.mark.parametrize("options", [{}, {"num_samples": 3}])
def test_a_reader_that_leaves_ends_it_quietly(checkpoint, monkeypatch, options, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed_pipe:
        monkeypatch.setattr(sys, "stdout", closed_pipe)
        assert command.sample(SampleConfig(checkpoint="runs/x", prompt=["a"], device="cpu", **options)) == 0
        monkeypatch.undo()
    assert "BrokenPipe" not in capfd.readouterr().err


def test_the_dtype_is_the_one_asked_for(checkpoint):
    for precision, dtype in command.DTYPES.items():
        loaded = command.load(SampleConfig(checkpoint="runs/x", precision=precision, device="cpu"))
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
        assert not loaded.model.training


@needs_compiler
def test_the_native_step_changes_no_text(checkpoint, capsys):
    for options in ({}, {"num_samples": 3}, {"precision": "int8"}, {"precision": "bf16"}):
        out, err = run(capsys, prompt=["bad é"], compile="on", **options)
        assert "not compiled" not in err
        if options.get("precision") != "bf16":
            assert out == run(capsys, prompt=["bad é"], compile="off", **options)[0]
    rounded = command.load(SampleConfig(checkpoint="runs/x", precision="int8", device="cpu"))
    weight = rounded.model.blocks[0].mlp.up.weight
    steps = weight / weight.abs().amax(dim=1, keepdim=True) * 127
    assert (steps - steps.round()).abs().max() < 1e-3


def test_where_there_is_no_native_step_the_text_is_the_same_and_the_reason_said(checkpoint, capsys, monkeypatch):
    def nothing():
        raise NoNativeCode("no C++ compiler found")

    usual = run(capsys, prompt=["bad é"])[0]
    monkeypatch.setattr(decoder, "library", nothing)
    out, err = run(capsys, prompt=["bad é"])
    assert out == usual
    assert "a token's step is not compiled: no C++ compiler found" in err
    with pytest.raises(UserFault, match=r"compile=on: no C\+\+ compiler found\. Use compile=auto"):
        run(capsys, prompt=["bad é"], compile="on")
    for options in ({"compile": "off"}, {"use_cache": False}):
        out, err = run(capsys, prompt=["bad é"], **options)
        assert out == usual
        assert "compile" not in err


def test_interactive_converses(checkpoint, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    out, err = run(capsys, checkpoint=str(tmp_path), interactive=True, prompt=["b"])
    assert f"a{out}" == run(capsys, prompt=["a"])[0]
    assert "prompt= and prompt_file= are not used" in err
