"""The config files and what they compose to; help pages; notes; a first stage; inheritance of an architecture."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from minigpt.config.command_line import train_arguments
from minigpt.config.commands import CLASSES
from minigpt.config.compose import compose, first_stage
from minigpt.config.convert import read, settings, to_dict, values
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.config.yaml_files import CONFIGS, find_groups
from minigpt.faults import UserFault
from minigpt.sweep.settings import read_grid
from tests.promises.test_settings import fault_of

NEEDED = {  # what a command can't do without
    "sample": ["checkpoint=."],
    "compare": ["one", "other"],
    "evaluate": ["checkpoint=.", "file=here"],
    "report": ["run.dir=."],
    "export": ["checkpoint=.", "dir=new"],
    "chat": ["checkpoint=."],
    "serve": ["checkpoint=."],
    "look": ["checkpoint=.", "text=x"],
}


@pytest.fixture(autouse=True)
def _elsewhere(folder, monkeypatch: pytest.MonkeyPatch):
    """Each test in an empty folder, as if every extra were installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)


@pytest.mark.parametrize("command", CLASSES)
def test_no_argument_gives_the_defaults_of_the_schema(command):
    """The default group files hold the schema's own defaults."""
    Path("here").touch()
    config = compose(command, NEEDED.get(command, []))
    changed = {key for key, value in values(config).items() if value != settings(CLASSES[command])[key].default}
    assert changed == {word.partition("=")[0] if "=" in word else "runs" for word in NEEDED.get(command, [])}


GROUPS = {group: list(files) for group, files in find_groups(TrainConfig).items()}
MORE = {  # what a choice can't do without
    "text": ["data.source=here"],
    "chat": ["data.source=here"],
    "fsdp": ["trainer.devices=2"],
    "hsdp": ["trainer.devices=4", "trainer.shards=2"],
    "lora": ["init.from=here"],
    "grpo": ["init.from=here", "batch_tokens=8192"],
    "chat_grpo": ["init.from=here", "data=tasks"],
}


def test_every_choice_composes():
    """Each round composes one file of each group together, the next one of a group in the next round."""
    Path("here").touch()
    groups = {group: files for group, files in GROUPS.items() if group != "experiment"}
    composed, models = set(), []
    for number in range(max(map(len, groups.values()))):
        chosen = {group: files[number % len(files)] for group, files in groups.items()}
        if chosen["objective"] == "grpo":  # which is for no other data, and not for every tokenizer
            chosen |= {"data": "tasks", "tokenizer": "byte"}
        arguments = [f"{group}={choice}" for group, choice in chosen.items()]
        config = compose("train", arguments + [word for choice in chosen.values() for word in MORE.get(choice, [])])
        for group in chosen.keys() - {"model", "trainer"}:
            assert getattr(config, group).name == chosen[group], (group, chosen)
        models += [config.model] if config.model not in models else []
        composed |= set(chosen.items())
    assert composed == {(group, choice) for group, files in groups.items() for choice in files}
    assert len(models) == len(groups["model"]), "two files of models are the same"


@pytest.mark.parametrize("choice", GROUPS["experiment"])
def test_every_experiment_composes(choice):
    Path("here").touch()
    data = str(yaml.safe_load(find_groups(TrainConfig)["experiment"][choice].read_text()).get("data", ""))
    source = MORE["text"] if choice in ("text", "gpt2_124m") or {"text", "chat"} & {data} else []
    assert compose("train", [f"experiment={choice}", *source, *MORE.get(choice, [])]).experiment == choice


def test_a_model_group_says_all_about_the_model():
    """So that a model typed beside an experiment is that model."""
    whole = {key.partition(".")[2] for key, about in settings(TrainConfig).items() if key.startswith("model.")}
    for name, file in find_groups(TrainConfig)["model"].items():
        missing = {key for key in whole - yaml.safe_load(file.read_text()).keys() if not key.startswith("rope_")}
        assert missing == set(), name


def test_yaml_holds_values_only():
    files = sorted(CONFIGS.rglob("*.yaml"))
    assert len(files) >= 30
    assert not any(sign in file.read_text() for file in files for sign in ("_target_", "${", "!!"))
    assert {file.parent for file in files} <= {CONFIGS, *CONFIGS.iterdir()}


@pytest.mark.parametrize(
    ("experiment", "sizes", "batch", "steps", "dropout"),
    [("shakespeare_char_cpu", (4, 4, 128, 64), 12, 2000, 0.0), ("shakespeare_char", (6, 6, 384, 256), 64, 5000, 0.2)],
)
def test_nanogpt_presets(experiment, sizes, batch, steps, dropout):
    """The values of nanoGPT's config/train_shakespeare_char.py and its README's CPU command."""
    config = compose("train", [f"experiment={experiment}"])
    model, optimizer, schedule = config.model, config.optimizer, config.schedule
    assert (model.n_layer, model.n_head, model.n_embd, model.block_size) == sizes
    assert (model.dropout, model.bias, model.activation) == (dropout, False, "gelu")
    assert config.batch_tokens == batch * model.block_size
    assert (optimizer.lr, optimizer.beta1, optimizer.beta2) == (1e-3, 0.9, 0.99)
    assert (optimizer.weight_decay, optimizer.grad_clip, optimizer.eps) == (0.1, 1.0, 1e-8)
    assert (schedule.name, schedule.warmup_steps) == ("cosine", 100)
    assert schedule.final_lr_fraction * optimizer.lr == pytest.approx(1e-4)
    assert (config.trainer.max_steps, config.tokenizer.name, config.data.name) == (steps, "char", "shakespeare_char")


# --- a folder of one's own ---


def write_own(folder: Path, **texts: str) -> list[str]:
    for name, text in texts.items():
        group, _, choice = name.partition("__")
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / f"{choice}.yaml").write_text(text)
    return ["--config-dir", str(folder)]


PACKAGE = "# @package _global_\n"


def test_a_folder_of_ones_own(tmp_path):
    folder, mine = tmp_path / "it's, my ~configs=x", f"{PACKAGE}defaults:\n  - override /model: tiny\nseed: 5\n"
    own = write_own(folder, model__tiny="n_layer: 1\n", experiment__mine=f"{mine}trainer:\n  compile: off\n")
    config = compose("train", [*own, "experiment=mine"])
    assert (config.seed, config.model.n_layer, config.experiment, config.trainer.compile) == (5, 1, "mine", "off")
    assert compose("train", [f"--config-dir={folder}", "model=tiny"]).model.n_layer == 1
    write_own(folder, experiment__bad=f"{PACKAGE}model: {{n_layers: 2}}\n_target_: os.system\n")
    with pytest.raises(UserFault) as caught:
        compose("train", [*own, "experiment=bad"])
    assert "No setting 'model.n_layers'. Did you mean 'model.n_layer'?" in caught.value.faults
    assert any(fault.startswith("No setting '_target_'.") for fault in caught.value.faults)
    for text in ("a: [", "defaults:\n  - override /model: none\n", "\x00", "- 1\n", "model: 3", "seed: ${oc.env:HOME}"):
        write_own(folder, experiment__bad=PACKAGE + text)
        assert fault_of("train", *own, "experiment=bad")
    write_own(folder, experiment__bad="seed: 5\nmodel: {n_layer: 3}\n")
    assert "must begin with the line # @package _global_." in fault_of("train", *own, "experiment=bad")
    write_own(folder, model__gpt2="n_layer: 1\n")
    assert "has a file model/gpt2.yaml, as minigpt has. Rename it." in fault_of("train", *own, "model=gpt2")


def test_a_password_in_an_address_stands_in_no_fault(tmp_path, capsys):
    address = f"https://me:hunter2@example.org/{'long/' * 20}text.txt"
    told = fault_of("train", f"model.n_layer=[{address}]") + fault_of("train", "--data.source", address)
    own = write_own(tmp_path / "own", experiment__mine=f"{PACKAGE}trainer: {{max_steps: '{address}'}}\n")
    told += fault_of("train", *own, "experiment=mine")
    assert told.count("https://<redacted>@example.org/") == 4
    assert "hunter2" not in told + capsys.readouterr().err


# --- pages ---


@pytest.mark.parametrize("command", CLASSES)
def test_help_names_everything(command, capsys, monkeypatch):
    monkeypatch.setattr("minigpt.config.compose.typed", lambda command: f".venv/bin/minigpt {command}")
    with pytest.raises(SystemExit) as end:
        compose(command, ["trainer.max_step=1", "--help", "all"])
    assert end.value.code == 0
    page = capsys.readouterr().out
    for key, setting in settings(CLASSES[command]).items():
        assert f"\n  {key}=" in page
        assert setting.meaning, f"{key} has no meaning in schema.py"
    groups = find_groups(CLASSES[command]) if (CONFIGS / f"{command}.yaml").is_file() else {}
    assert all(choice in page for choices in groups.values() for choice in choices)
    assert "75 stopped by a signal" in " ".join(page.split())
    with pytest.raises(SystemExit):
        compose(command, ["--help"])
    short = capsys.readouterr().out.splitlines()
    assert len(short) <= 110
    assert max(map(len, [*short, *page.splitlines()])) <= 100


def test_examples_of_the_help_page_compose(monkeypatch):
    monkeypatch.setattr("minigpt.config.compose.find_faults", lambda config: [])
    for command, cls in CLASSES.items():
        lines = [line.strip() for line in cls.__doc__.splitlines() if line.strip().startswith("minigpt ")]
        assert lines
        for line in lines:
            program, name, *words = shlex.split(line)
            assert (program, name) == ("minigpt", command)
            compose(command, words)


@pytest.mark.parametrize("command", ["sweep", "verify-resume", "benchmark"])
def test_a_command_that_trains_takes_the_settings_of_train_too(command, tmp_path):
    shared = ["experiment=demo", "--config-dir", str(tmp_path), "+seed=3", "optimizer.lr=0.5"]
    own = {"sweep": ["search=lr", "+trials=3", "seeds=2"], "verify-resume": ["kills=2"], "benchmark": ["rounds=1"]}
    config = compose(command, [*own[command], *shared])
    assert (config.seed, config.optimizer.lr, config.experiment) == (3, 0.5, "demo")
    assert train_arguments(command, [*own[command], *shared]) == shared


def test_commands_whose_trainings_are_alike_take_no_budget(tmp_path):
    (tmp_path / "text.txt").write_text("how much wood")
    words = (f"data.source={tmp_path / 'text.txt'}", "budget=1min")
    sentence = "budget=1min sizes each training by itself, and verify-resume and sweeps need trainings of one size"
    assert sentence in fault_of("verify-resume", *words)
    assert sentence in fault_of("sweep", "search=lr", *words)
    with pytest.raises(UserFault, match="Give the settings that minigpt train budget=1min prints"):
        read_grid(["budget=1min,2min", words[0]], [])


def test_words_are_items_of_the_setting_that_takes_them(tmp_path):
    (tmp_path / "here").touch()
    runs = ["runs/A", "runs/lr=1e-3", "vs", "here", "runs=literally"]
    config = compose("compare", [*runs, "which=latest", "data.dir=~/x, y"])
    assert (config.runs, config.which, config.data_dir) == ([*runs[:4], "literally"], "latest", "~/x, y")
    missing = "runs is missing: runs or checkpoints, and `vs`. Type them after the command: RUN RUN"
    assert fault_of("compare", "which=latest") == missing


# --- starting weights ---


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "base/checkpoints/step-000000002"
    folder.mkdir(parents=True)
    model = {"n_layer": 3, "n_head": 6, "n_embd": 48, "block_size": 32, "attention": "rotary", "dropout": 0.2}
    tokenizer = {"name": "char", "dropout": 0.1}
    stored = to_dict(read(TrainConfig, {"model": model, "tokenizer": tokenizer, "batch_tokens": 64})[0])
    (folder / "config.json").write_text(json.dumps(stored))
    return tmp_path / "base"


def test_a_run_takes_architecture_and_tokenizer_of_its_weights(run, capsys):
    config = compose("train", [f"init.from={run}"])
    assert (config.model.n_layer, config.model.n_head, config.model.n_embd) == (3, 6, 48)
    assert (config.model.block_size, config.tokenizer.name) == (32, "char")
    assert (config.model.dropout, config.tokenizer.dropout, config.batch_tokens) == (0, 0, 4096)  # their own business
    assert "brings model.n_layer=3, model.n_head=6" in capsys.readouterr().err
    config = compose("train", ["experiment=shakespeare_char", f"init.from={run}", "model.dropout=0.3"])
    assert (config.model.n_layer, config.model.dropout, config.trainer.max_steps) == (3, 0.3, 5000)
    config = compose("train", ["experiment=text", "data=stdlib", f"init.from={run}"])
    assert config.model.init == "normal"  # whatever the experiment's is: these weights began so


def test_what_is_typed_beside_starting_weights_is_checked(run):
    fault = fault_of("train", f"init.from={run}", "model.n_layer=3", "model.n_head=4", "model.block_size=64")
    told = f"model.n_head=4 does not fit init.from='{run}', whose weights have model.n_head=6. "
    assert fault == told + "Leave it out: it is taken from there."
    with pytest.raises(UserFault, match=r"model\.n_embd=768 does not fit"):
        compose("train", [f"init.from={run}", "model=gpt2"])


def test_a_folder_that_says_nothing_gives_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"n_layer": "many"}}')
    assert compose("train", [f"init.from={tmp_path}"]).model == ModelConfig()
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in fault_of("train", f"init.from={tmp_path}")


def first_of(*words: str) -> TrainConfig | None:
    return first_stage(compose("train", list(words)))


def test_a_first_stage_has_the_model_of_the_second(tmp_path):
    first = first_of("experiment=chat_tiny", "model.block_size=256", "seed=5", "trainer.threads=1")
    assert (first.experiment, first.seed, first.trainer.threads) == ("chat_tiny_base", 5, 1)
    with pytest.raises(UserFault) as fault:
        first_of("experiment=chat_tiny", "model.n_layer=5", "tokenizer=gpt2")
    assert fault.value.faults[0] == (
        "model.n_layer=5 does not fit init.experiment='chat_tiny_base', whose weights have model.n_layer=4. "
        "Leave it out: it is taken from there."
    )
    assert "tokenizer.name='gpt2' does not fit" in fault.value.faults[1]
    mine, third = (f"{PACKAGE}init: {{experiment: {name}}}\n" for name in ("base", "mine"))
    own = write_own(tmp_path / "own", experiment__base=PACKAGE, experiment__mine=mine, experiment__third=third)
    assert first_of("experiment=mine", *own).experiment == "base"
    with pytest.raises(UserFault, match=r"starts from init\.experiment=base itself"):
        first_of("experiment=third", *own)
    with pytest.raises(UserFault, match=r"init\.experiment='nothing' is no experiment"):
        compose("train", ["init.experiment=nothing"])
