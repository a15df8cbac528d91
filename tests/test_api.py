"""`import minigpt`: what it offers, that it offers what the commands do, and what each use imports."""

import json
import subprocess
import sys
from dataclasses import replace
from textwrap import indent

import pytest
import torch
from lightning.pytorch import Callback

import minigpt
from minigpt.config.compose import compose
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault
from minigpt.model.evaluate import evaluate
from minigpt.sampling.sample import sample
from minigpt.screen import show

HEAVY = {"torch", "lightning", "hydra", "torch._dynamo", "torch._inductor", "sympy", "matplotlib", "pandas", "wandb",
         "lm_eval"}  # fmt: skip


def modules_after(code: str, folder) -> set[str]:
    """The heavy modules that a fresh Python has loaded after some code, whose output is in folder/said."""
    code = f"import contextlib\nwith contextlib.redirect_stdout(open('said', 'w')):\n{indent(code, '    ')}"
    code += f"\nimport sys; print(*{HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


def test_import_loads_nothing_heavy(tmp_path):
    assert modules_after("import minigpt", tmp_path) == set()
    assert modules_after("import minigpt; minigpt.compose(['experiment=demo'])", tmp_path) == {"hydra"}
    spin = "import os, minigpt; assert os.environ['GOMP_SPINCOUNT']"
    assert modules_after(spin, tmp_path) == set()


def test_neither_a_sample_nor_a_score_loads_lightning_the_compiler_or_hydra(run, tmp_path):
    path = run("trainer.max_steps=2")
    code = f"import minigpt; gpt = minigpt.load({str(path)!r}); gpt.generate('a', max_new_tokens=2); gpt.loss('abc')\n"
    code += "import sys\nfrom minigpt.cli import main\n"
    text = tmp_path / "text.txt"
    for words in (["sample", "prompt=a", "max_new_tokens=2"], ["evaluate", f"file={text}", "device=cpu"]):
        code += f"sys.argv = {['minigpt', *words, f'checkpoint={path}']}\n"
        code += "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
    assert modules_after(code, tmp_path) == {"torch"}
    assert "nats per token" in (tmp_path / "said").read_text()


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="no attribute 'laod'; it offers TrainedGPT, compose, load, train"):
        minigpt.laod  # noqa: B018
    assert sorted(minigpt.__all__) == minigpt.__all__


def test_a_run_is_loaded_and_writes_what_the_command_writes(run, capfd):
    path = run("trainer.max_steps=4")
    gpt = minigpt.load(path)
    logits = gpt.model(torch.tensor([gpt.tokenizer.encode("abc")]))
    assert logits.shape == (1, 3, gpt.tokenizer.vocab_size)
    checkpoint = minigpt.load(gpt.path).model.state_dict()
    assert all(torch.equal(tensor, checkpoint[name]) for name, tensor in gpt.model.state_dict().items())
    keys = ["prompt=the", "max_new_tokens=20", "temperature=0.9", "seed=5", "top_k=7"]
    capfd.readouterr()
    sample(compose("sample", [f"checkpoint={path}", "device=cpu", *keys]))
    shown = capfd.readouterr().out
    written = gpt.generate("the", max_new_tokens=20, temperature=0.9, seed=5, top_k=7)
    show(f"the{written}\n")  # as the command shows it: without control characters
    assert capfd.readouterr().out == shown
    assert gpt.generate("the", max_new_tokens=20, seed=6) != written


def test_wrong_options_are_named(run):
    gpt = minigpt.load(run("trainer.max_steps=2"))
    with pytest.raises(UserFault, match="temperature must be at least 0"):
        gpt.generate("a", temperature=-1)
    with pytest.raises(TypeError, match="no option 'num_samples'"):
        gpt.generate("a", num_samples=3)
    with pytest.raises(UserFault, match="1 tokens; at least 2"):
        gpt.loss("a")


def test_the_loss_of_the_validation_text_is_the_one_that_training_measured(run):
    path = run("trainer.max_steps=4", "validate.every_steps=4", "trainer.precision=fp64")
    gpt = minigpt.load(path)
    prepared = prepare(gpt.config.data, gpt.config.tokenizer, say=lambda _: None)
    text = prepared.tokenizer.decode(prepared.val.tokens(0, len(prepared.val)))
    score = evaluate(
        gpt.model, prepared.val, block_size=gpt.model.config.block_size, batch=3, device="cpu", precision="fp32",
        token_bytes=lambda token: b"a",
    )  # fmt: skip
    assert gpt.loss(text) == pytest.approx(score.loss, rel=1e-6)
    row = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    assert gpt.loss(text) == pytest.approx(row["val/loss"], rel=1e-5)


def test_train_begins_and_continues_a_run_from_python(run, capfd):
    path = run("trainer.max_steps=2")
    arguments = minigpt.load(path).config
    longer = replace(
        arguments, run=replace(arguments.run, dir=str(path)), trainer=replace(arguments.trainer, max_steps=3)
    )
    assert minigpt.train(longer) == 0
    assert "step-000000003" in {folder.name for folder in (path / "checkpoints").iterdir()}


def test_what_a_config_starts_from_is_trained_first(monkeypatch):
    seen = []

    def trained(config, callbacks):
        seen.append((config.experiment, config.init.source, config.trainer.threads, config.seed, callbacks))
        return 0

    monkeypatch.setattr("minigpt.training.run.train", trained)
    words = ["experiment=chat_tiny", "data=stdlib", "trainer.threads=1", "seed=3", "run.dir=two"]
    callback = Callback()
    assert minigpt.train(minigpt.compose(words), [callback]) == 0
    first = ("chat_tiny_base", None, 1, 3, ())
    assert seen == [first, ("chat_tiny", "two-chat_tiny_base", 1, 3, [callback])]
