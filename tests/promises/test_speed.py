"""How fast it is, measured: `minigpt benchmark` prints tokens/s and MFU; benchmarks/ compares with the peers."""

import importlib
import re

import pytest

from benchmarks import peers
from minigpt.benchmark.measure import benchmark
from minigpt.benchmark.presets import read_benchmark
from minigpt.cli import _dispatch as minigpt_command
from minigpt.faults import STOPPED, UserFault

SMALL = ["model.n_layer=1", "model.n_embd=16", "model.n_head=2", "trainer.threads=1", "trainer.compile=off"]


def test_the_benchmark_prints_tokens_per_second_and_mfu(capsys, monkeypatch):
    monkeypatch.setattr("minigpt.benchmark.measure.MIN_SECONDS", 0.01)
    monkeypatch.setattr("minigpt.benchmark.measure.peak_flops", lambda _, kind: None if kind == "fp32" else 1e12)
    monkeypatch.setattr("minigpt.training.finish.keep_baselines", lambda job: None)
    minigpt_command(["benchmark", *SMALL, "steps=10", "rounds=1", "new_tokens=3", "trainer.device=cpu"])
    shown = capsys.readouterr().out
    for part in ("training, c0", "sampling, c0"):
        head = shown.split(part)[1].splitlines()[1]
        assert head.split() == ["ms/step", "tokens/s", "MFU"]
    assert len(re.findall(r"(?:fp32|bf16|int8), batch (?:1|8|32) .* \d+\.\d\d%", shown)) == 9
    row = shown.split("training, c0")[1].splitlines()[2].replace(",", "")
    milliseconds, speed, use = re.search(r"(\S+) \(.*\) +(\d+) +(\S+)%$", row).groups()
    assert float(speed) == pytest.approx(768e3 / float(milliseconds), rel=0.01)
    assert 0 < float(use) < 200


def test_a_stopped_benchmark_ends_without_a_table(monkeypatch, capsys):
    monkeypatch.setattr("minigpt.benchmark.measure.train", lambda config: STOPPED)
    with pytest.raises(KeyboardInterrupt):
        minigpt_command(["benchmark", *SMALL, "trainer.device=cpu"])
    assert "training, c0" not in capsys.readouterr().out


def test_what_the_benchmark_gives_itself_is_refused_by_name():
    for word in ("data.source=x", "run.dir=x", "trainer.max_steps=3", "trainer.epochs=1", "trainer.devices=2"):
        with pytest.raises(UserFault, match=f"{word}: a benchmark makes its text"):
            read_benchmark([word])
    with pytest.raises(UserFault, match=r"benchmarks/peers\.py"):
        read_benchmark(["nanogpt=x"])


def test_the_last_line_of_peers_holds_the_ratio_to_nanogpt(capsys):
    line = peers.describe({"minigpt": [10.0, 20.0], "nanoGPT": [30.0, 40.0]}, "training c0")
    assert line == "training c0, times as long: nanoGPT 2.5 (2 to 3)"  # in each round
    line = peers.describe({"minigpt fp32, batch 1": [1.0], "nanoGPT fp32, batch 1": [8.0]}, "sampling c0")
    assert "nanoGPT fp32, batch 1 8 (8 to 8)" in line
    with pytest.raises(UserFault, match="git clone https"):
        peers.main(["nanogpt=/nowhere"])


def test_a_job_of_peers_prepares_the_text_and_chooses_as_a_training_does(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be " * 400)
    words = ["data=text", f"data.source={tmp_path / 'text.txt'}", f"data.dir={tmp_path / 'data'}", "tokenizer=char"]
    choices = peers.chosen([*SMALL, "model.block_size=16", "batch_tokens=64", *words])
    assert (choices["micro_batch"], choices["threads"]) == (4, 1)


@pytest.mark.parametrize("name", ["fit_law", "peers", "scaling", "serving"])
def test_the_scripts_of_benchmarks_start(name, capsys):
    module = importlib.import_module(f"benchmarks.{name}")
    if hasattr(module, "main") and name != "serving":
        assert module.main(["--help"]) == 0
        assert f"python benchmarks/{name}.py" in capsys.readouterr().out


def test_a_training_of_nanogpt_is_timed_by_its_lines(tmp_path):
    lines = [f"iter {step}: loss 1.0, time 1ms" for step in (0, 5, 10, 20, 30)]
    program = ["import time", *(f"print({line!r}); time.sleep(0.01)" for line in lines)]
    (tmp_path / "train.py").write_text("\n".join(program))
    assert peers.run_nanogpt(tmp_path, [peers.sys.executable, "-u", "train.py"], 1) > 0
    (tmp_path / "train.py").write_text("raise SystemExit('no CUDA')")
    with pytest.raises(UserFault, match="ended with exit code 1: no CUDA"):
        peers.run_nanogpt(tmp_path, [peers.sys.executable, "-u", "train.py"], 1)


def test_the_preset_for_gpus_is_gpt2_on_a_gpu_with_its_own_choices(monkeypatch, capsys):
    config, words = read_benchmark(["preset=gpu"])
    assert "trainer.device=cuda" in words
    assert (config.model.n_embd, config.trainer.precision, config.trainer.compile) == (768, "auto", "auto")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserFault, match="this machine has none"):
        benchmark(config, words)
    assert capsys.readouterr().out == ""  # the GPU is in use before its name is printed
