"""`import minigpt` does what the commands do, and imports only what each use needs."""

import io
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
import torch
from lightning.pytorch import Callback

import minigpt
from minigpt import demo as demo_module
from minigpt.config.compose import compose
from minigpt.demo import demo
from minigpt.faults import FINISHED, STOPPED, UserFault
from minigpt.sampling.sample import sample
from minigpt.screen import show

HEAVY = {"torch", "lightning", "hydra", "torch._dynamo", "torch._inductor", "sympy", "matplotlib", "wandb", "lm_eval"}


def modules_after(code: str, folder) -> set[str]:
    """The heavy modules that a fresh Python has loaded after some code."""
    code = f"import contextlib\nwith contextlib.redirect_stdout(open('said', 'w')):\n{indent(code, '    ')}"
    code += f"\nimport sys; print(*{HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_each_use_imports_what_it_needs(run, tmp_path):
    assert modules_after("import minigpt", tmp_path) == set()
    assert modules_after("import minigpt; minigpt.compose(['experiment=demo'])", tmp_path) == {"hydra"}
    path, text = run("trainer.max_steps=2"), tmp_path / "text.txt"
    code = f"import minigpt; gpt = minigpt.load({str(path)!r}); gpt.generate('a', max_new_tokens=2); gpt.loss('abc')\n"
    code += "import sys\nfrom minigpt.cli import main\n"
    for words in (["sample", "prompt=a", "max_new_tokens=2"], ["evaluate", f"file={text}", "device=cpu"]):
        code += f"sys.argv = {['minigpt', *words, f'checkpoint={path}']}\n"
        code += "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
    assert modules_after(code, tmp_path) == {"torch"}


def test_a_run_is_loaded_and_writes_what_the_command_writes(run, capfd):
    path = run("trainer.max_steps=4", "validate.every_steps=4")
    gpt = minigpt.load(path)
    assert gpt.model(torch.tensor([gpt.tokenizer.encode("abc")])).shape == (1, 3, gpt.tokenizer.vocab_size)
    assert minigpt.load(gpt.path).path == gpt.path
    keys = ["prompt=the", "max_new_tokens=20", "temperature=0.9", "seed=5", "top_k=7"]
    capfd.readouterr()
    sample(compose("sample", [f"checkpoint={path}", "device=cpu", *keys]))
    written = capfd.readouterr().out
    show(f"the{gpt.generate('the', max_new_tokens=20, temperature=0.9, seed=5, top_k=7)}\n")
    assert capfd.readouterr().out == written
    assert gpt.loss("how much wood would a woodchuck chuck if " * 4) == pytest.approx(run.rows()[-1]["val/loss"], 0.05)


@pytest.mark.report
def test_a_run_shows_itself(run):
    path = run("trainer.max_steps=2", "samples.every_steps=2", "samples.max_new_tokens=4")
    result = minigpt.Run(path)
    assert result.metrics[-1]["step"] == 2
    assert result.best == result.load().path
    assert repr(result.load()).endswith(" tokens)")
    assert "data:image/png;base64,iVBOR" in result._repr_html_()


def test_progress_in_a_notebook_is_one_line_that_updates(run, monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("minigpt.training.output.MOVE_SECONDS", 0)
    run("trainer.max_steps=3", "validate.every_steps=3")
    shown = [line.rpartition("\r")[2] for line in stream.getvalue().splitlines(keepends=True)]
    assert stream.getvalue().count("step 1/3") == stream.getvalue().count("step 2/3") == 1
    assert not any("step 1/3" in line or "step 2/3" in line for line in shown)  # the next line took its place
    assert any(line.startswith("step 3/3") and line.endswith("\n") for line in shown)
    assert "\x1b" not in stream.getvalue()


def test_wrong_names_and_options_are_named(run):
    with pytest.raises(AttributeError, match="no attribute 'laod'; it offers Run, TrainedGPT, compose, load, train"):
        minigpt.laod  # noqa: B018
    assert {"load", "train", "compose"} <= set(dir(minigpt))
    gpt = minigpt.load(run("trainer.max_steps=2"))
    with pytest.raises(UserFault, match="temperature must be at least 0"):
        gpt.generate("a", temperature=-1)
    with pytest.raises(TypeError, match="no option 'num_samples'; it takes max_new_tokens, "):
        gpt.generate("a", num_samples=3)
    with pytest.raises(UserFault, match="1 tokens; at least 2"):
        gpt.loss("a")


def test_what_a_config_starts_from_is_trained_first(monkeypatch):
    seen, codes = [], iter([STOPPED, FINISHED, FINISHED])

    def trained(config, callbacks):
        seen.append((config.experiment, config.init.source, config.seed, callbacks))
        return next(codes)

    monkeypatch.setattr("minigpt.training.run.train", trained)
    words = ["experiment=chat_tiny", "data=stdlib", "seed=3", "run.dir=two"]
    callback, first = Callback(), ("chat_tiny_base", None, 3, ())
    assert minigpt.train(words, [callback]).code == STOPPED
    assert seen == [first]
    result = minigpt.train(minigpt.compose(" ".join(words)), [callback])
    assert (result.dir, result.code, result.best) == (Path("two"), FINISHED, None)
    assert seen[1:] == [first, ("chat_tiny", "two-chat_tiny_base", 3, [callback])]


def test_the_demo_shows_a_sample_of_a_finished_run_and_what_to_type(monkeypatch, run, capsys):
    monkeypatch.setattr(demo_module, "sample", lambda config: print(f"[sample {config.checkpoint} {config.prompt}]"))
    path = run("trainer.max_steps=2")
    config = compose("train", ["experiment=demo", f"run.dir={path}"])
    monkeypatch.setattr(demo_module, "train", lambda _: STOPPED)
    capsys.readouterr()
    assert (demo(config), capsys.readouterr().out) == (STOPPED, "")
    monkeypatch.setattr(demo_module, "train", lambda _: FINISHED)
    assert demo(config) == FINISHED
    shown = capsys.readouterr().out
    parts = (rf"[sample {path} ['\ndef']]", "loss.png", "Now you", "repetition_penalty=1.15")
    assert [shown.index(part) for part in parts] == sorted(shown.index(part) for part in parts)
