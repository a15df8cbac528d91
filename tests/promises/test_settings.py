"""Settings are typed: every fault of a command is named at once, with the closest name and what to type, exit code 2.

Nothing is imported, written or trained before all is right.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import minigpt
from minigpt.checkpoint.load import find_checkpoint
from minigpt.cli import _dispatch
from minigpt.config.commands import CLASSES
from minigpt.config.compose import compose
from minigpt.config.convert import read, settings, to_dict, values
from minigpt.config.run_names import default_run_dir
from minigpt.config.schema import RETIRED, SampleConfig, TrainConfig
from minigpt.faults import UserFault

pytestmark = pytest.mark.usefixtures("folder")


def faults_of(command: str, *arguments: str) -> list[str]:
    with pytest.raises(UserFault) as caught:
        compose(command, list(arguments))
    assert all("\n" not in fault for fault in caught.value.faults)
    return list(caught.value.faults)


def fault_of(command: str, *arguments: str) -> str:
    (fault,) = faults_of(command, *arguments)
    return fault


def test_all_faults_end_the_command_at_once_before_torch_is_loaded_and_leave_no_trace(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is loaded')\n")
    folder = tmp_path / "empty"
    folder.mkdir()
    words = ["train", "trainer.max_step=5", "optimizer.lr=abc", "model.n_head=3", "modle=gpt2"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(minigpt.__file__).parents[1]}"}
    command = [sys.executable, "-m", "minigpt", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "4 errors:",
        "- No setting 'trainer.max_step'. Did you mean 'trainer.max_steps'?",
        "- No setting 'modle'. Did you mean 'model'?",
        "- optimizer.lr must be a number, got 'abc'.",
        "- model.n_embd=128 is not a multiple of model.n_head=3. Use model.n_embd=126 or 129.",
    ]
    assert list(folder.iterdir()) == []


def test_the_api_names_the_same_faults():
    with pytest.raises(ValueError, match=r"Did you mean 'optimizer\.lr'"):
        minigpt.compose(["optimizer.lrr=1"])
    assert minigpt.compose(["experiment=demo", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["+trainer.max_stepz=5"], "No setting 'trainer.max_stepz'. Did you mean 'trainer.max_steps'?"),
        (["max_steps=5"], "No setting 'max_steps'. Did you mean 'trainer.max_steps'?"),
        (["optimizer.learning_rate=1"], "'optimizer.learning_rate'. Here it is optimizer.lr: peak learning rate."),
        (["min_p=0.1"], "No setting 'min_p' of the command train: it belongs to sample."),
        (["samples=3"], "'samples' is a group of settings. Set one of: samples.every_steps, "),
        (["experiment=shakespear"], "No experiment 'shakespear'. Did you mean experiment=shakespeare_char?"),
        (["seed=1,2"], "seed must be a whole number, got '1,2'."),
        (["~trainer.max_steps"], "'~trainer.max_steps' is not how a setting is written: key=value, no dashes."),
        (["--max_steps", "100"], "key=value, no dashes. Type trainer.max_steps=100"),
        (["--epochs", "3"], "Type trainer.epochs=3"),
        (["--experiment", "text"], "key=value, no dashes. Type experiment=text"),
        (["gpt2"], "key=value, no dashes. Did you mean model=gpt2 or tokenizer=gpt2?"),
        (["my texts/book.txt"], "Type experiment=text data.source='my texts/book.txt'"),
        (["batch=5"], "Here it is batch_tokens"),
        (["texts/book.txt"], "key=value, no dashes. Type experiment=text data.source=texts/book.txt"),
        (["hydra.run.dir=x"], "No setting 'hydra.run.dir'. Did you mean 'run.dir'?"),
        (["data.encoding=${oc.env:HOME}"], "data.encoding='${oc.env:HOME}' is not a text encoding"),
        (["trainer.max_steps=1e3"], "trainer.max_steps must be a whole number or null, got '1e3'."),
        (["model.tied=yes"], "model.tied must be true or false, got 'yes'."),
        (["model.bias=kqv"], "none, qkv, attention, all (did you mean qkv?), got 'kqv'."),
        (["trainer.device=gpu"], "(did you mean cuda?), got 'gpu'."),
        (["optimizer.lr=nan"], "optimizer.lr must be a finite number, got nan."),
        (["init.from=gpt2"], "Type init.from=openai-community/gpt2"),
        (["data=../"], "No data '../'. Type data.source=../. There are: "),
        (["--config-dir", "nowhere"], "--config-dir wants a folder with group folders in it, got 'nowhere'."),
    ],
)
def test_what_people_mistype_is_answered_with_what_to_type(arguments, says):
    assert says in fault_of("train", *arguments)


def test_a_run_in_place_of_a_setting_is_answered_with_its_own_command(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-000000002").mkdir(parents=True)
    (tmp_path / "run" / "command.txt").write_text("minigpt train experiment=text data.source=book.txt\n")
    own = "its own command continues it: minigpt train experiment=text data.source=book.txt"
    assert fault_of("train", str(tmp_path / "run")).endswith(own)


def test_an_unknown_choice_hides_no_other_fault_and_invents_none():
    faults = faults_of("train", "model=gtp2", "model.n_head=7", "trainer.devices=2", "seed=-1", "+x=1")
    assert faults[0] == "No setting 'x'."
    assert faults[1].startswith("No model 'gtp2'. Did you mean model=gpt2? There are: gpt-baby, gpt-micro,")
    assert faults[2].startswith("seed must be at least 0")
    assert faults[3].startswith("trainer.devices=2 needs")
    assert len(faults) == 4  # whether 7 heads divide the width depends on the model that was meant


def test_a_run_needs_no_key():
    assert fault_of("sample", "runs/X").startswith("checkpoint='runs/X' does not exist")
    assert compose("report", ["runs/X"]).run_dir == "runs/X"
    Path("runs/fables").mkdir(parents=True)
    Path("runs/newer").mkdir()
    os.utime("runs/fables", (1, 1))
    os.utime("runs/newer", (2, 2))
    assert fault_of("sample", "fable").endswith("Try checkpoint=runs/fables")
    with pytest.raises(UserFault, match=r"Did you mean runs/fables\?"):
        find_checkpoint("fables")
    second = fault_of("sample", "runs/fables", "Once upon a time")
    assert second.endswith("'Once upon a time' is a second checkpoint. Type prompt='Once upon a time'.")
    unquoted = fault_of("sample", "runs/fables", "prompt=To", "be", "or", "not")
    assert unquoted.endswith("'be or not' is a second checkpoint. Type prompt='To be or not'.")
    assert "Did you mean" not in fault_of("evaluate", "runs/fables", "file=runs")
    assert "Here it is file: a text" in fault_of("evaluate", "runs/fables", "data.source=a.txt")
    assert "Here it is dir: a new folder" in fault_of("export", "runs/fables", "out=x", "dir=y")
    second = fault_of("evaluate", "runs/fables", "runs/newer", f"file={__file__}")
    assert second.endswith("is a second checkpoint. Type file=runs/newer or versus=runs/newer.")
    assert fault_of("sample", "run/none").startswith("checkpoint='run/none' does not exist")
    assert fault_of("sample").startswith("checkpoint is missing: run, checkpoint or model; its key may be left out.")
    os.makedirs("runs/mine")
    assert fault_of("sample", "checkpoint=runs/none").endswith("Try checkpoint=runs/mine")


@pytest.mark.parametrize("key", RETIRED)
def test_what_is_retired_is_refused_by_name_with_what_to_do_instead(key):
    assert not any(key in settings(cls) for cls in CLASSES.values())
    owner = {"beside": "report", "prepare.part": "prepare", "prepare.slurm": "prepare", "sweep.storage": "sweep"}
    owner |= dict.fromkeys(("nanogpt", "huggingface", "curve_steps"), "benchmark")
    words = [key] if key == "draw-attention" else [owner.get(key, "train"), f"{key}=1"]
    with pytest.raises(UserFault) as caught:
        _dispatch(words)
    assert f"{key} is retired: {RETIRED[key]}." in caught.value.faults


def test_of_two_sources_the_last_counts_and_the_screen_says_so(capsys):
    Path("a.txt").write_text("a text")
    config = compose("train", ["experiment=text", "data.source=missing.txt", "data.source=a.txt"])
    assert config.data.source == "a.txt"
    assert "the last one counts. Both: data.source=missing.txt,a.txt." in capsys.readouterr().err


def test_of_a_list_the_screen_says_what_trains_for_each_value(capsys):
    fault_of("train", "optimizer.lr=1e-3,3e-3", f"data.source={__file__}", "budget=1min,2min")
    assert capsys.readouterr().err.count("add -m") == 1


def test_a_typed_group_beside_an_experiment_is_that_group_and_the_screen_says_what_it_replaces(capsys):
    config = compose("train", ["experiment=demo", "optimizer=muon", "optimizer.lr=0.5"])
    alone = compose("train", ["optimizer=muon"])
    assert (config.optimizer.matrix_lr, config.optimizer.grad_clip) == (0.03, 1.0)
    assert config.optimizer.matrix_lr == alone.optimizer.matrix_lr
    assert config.optimizer.lr == 0.5  # a typed setting comes last
    err = capsys.readouterr().err
    assert "Note: optimizer=muon replaces settings of experiment=demo: " in err
    assert "optimizer.matrix_lr=0.03 (not 0.015), " in err
    assert "optimizer.lr" not in err
    model = compose("train", ["experiment=demo", "model=gpt-nano", "optimizer=adamw", "trainer=cpu"])
    assert model.model == compose("train", ["model=gpt-nano"]).model
    assert model.optimizer.lr == 1e-3
    assert model.trainer.max_steps == 320  # trainer=cpu does not say how long
    capsys.readouterr()
    compose("train", ["experiment=demo"])
    compose("train", ["model=qwen3-nano"])
    assert "replaces" not in capsys.readouterr().err


def test_values_come_from_defaults_then_groups_then_the_experiment_then_the_command_line():
    words = ["optimizer.lr=5e-4", "model.n_layer=5", "+experiment=shakespeare_char", "++seed=1", "seed=2"]
    config = compose("train", words)
    assert (config.optimizer.lr, config.model.n_layer, config.model.n_embd, config.seed) == (5e-4, 5, 384, 2)
    assert config.experiment == "shakespeare_char"


TEXTS = ["To be, or not to be", "don't", "a=b", "é", "<|endoftext|>", "two\nlines", " space", "123", "null", ""]
TEXTS += ["${oc.env:HOME}", "~/my notes/a,b.txt", "[1, 2]", '{"a": 1}', "back\\slash", "--help", "${", "true"]


def test_free_text_reaches_the_program_unchanged(monkeypatch):
    monkeypatch.setattr("minigpt.config.compose.find_faults", lambda config: [])  # such files need not exist
    literal = [key for key, setting in settings(TrainConfig).items() if setting.literal]
    for text in TEXTS:
        train = compose("train", [*(f"{key}={text}" for key in literal), "data=text", "seed=3"])
        assert {values(train)[key] for key in literal} == {text}
        sample = compose("sample", [f"prompt={text}", f"+prompt={text}x", f"prompt_file={text}", f"checkpoint={text}"])
        assert (sample.prompt, sample.prompt_file, sample.checkpoint) == ([text, text + "x"], text, text)
        assert read(SampleConfig, to_dict(sample))[0] == sample


def test_a_run_is_named_after_its_text_and_what_changes_the_weights(tmp_path):
    os.makedirs("texts")
    spelled = [["texts"], ["texts/"], ["./texts"], ["texts", "seed=1337", "trainer.device=cpu", "logger=wandb"]]
    names = {default_run_dir(compose("train", ["data=text", f"data.source={a}", *more])) for a, *more in spelled}
    assert len(names) == 1
    assert re.fullmatch(r"runs/texts-4x128-[0-9a-f]{6}", names.pop())
    assert default_run_dir(compose("train", ["seed=2"])) != default_run_dir(compose("train", []))


def test_cfg_job_prints_yaml_that_reads_back(capsys):
    with pytest.raises(SystemExit) as end:
        compose("train", ["--cfg", "job", "experiment=demo", "run.dir=${x}: é", "samples.prompt=null"])
    assert end.value.code == 0
    config = read(TrainConfig, yaml.safe_load(capsys.readouterr().out))[0]
    assert config == compose("train", ["experiment=demo", "run.dir=${x}: é", "samples.prompt=null"])


def test_help_shows_the_values_of_the_chosen_experiment(capsys, monkeypatch):
    monkeypatch.setattr("minigpt.config.compose.typed", lambda command: f"minigpt {command}")
    for words, shown in (
        (["--help"], "  trainer.max_steps=2000 "),
        (["experiment=demo", "-h"], "  trainer.max_steps=320 "),
    ):
        with pytest.raises(SystemExit) as end:
            compose("train", words)
        page = capsys.readouterr().out
        assert end.value.code == 0
        assert shown in page
        assert len(re.findall(r"\n  \S+=", page.partition("\nSettings")[2])) == 20
        assert max(map(len, page.splitlines())) <= 100
