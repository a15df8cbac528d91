"""The command line: groups, settings, literal text, help, and every fault in one list."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from minigpt.config import compose as compose_module
from minigpt.config.commands import CLASSES
from minigpt.config.compose import LITERAL, compose, train_arguments
from minigpt.config.convert import fitted, from_dict, settings, to_dict, values
from minigpt.config.files import config_folder, find_groups
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.faults import UserFault

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
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each test in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) in ([], ["here"]), "composing wrote something"


def faults_of(script: str, *arguments: str) -> list[str]:
    with pytest.raises(UserFault) as caught:
        compose(script, list(arguments))
    assert all("\n" not in fault and "Traceback" not in fault for fault in caught.value.faults)
    return list(caught.value.faults)


def fault_of(script: str, *arguments: str) -> str:
    (fault,) = faults_of(script, *arguments)
    return fault


# --- files ---


@pytest.mark.parametrize("script", CLASSES)
def test_no_argument_gives_the_defaults_of_the_schema(script, monkeypatch):
    """The default group files hold the schema's own defaults."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if every extra were installed
    (Path.cwd() / "here").touch()
    config = compose(script, NEEDED.get(script, []))
    changed = {key for key, value in values(config).items() if value != settings(CLASSES[script])[key].default}
    assert changed == {each.partition("=")[0] if "=" in each else "runs" for each in NEEDED.get(script, [])}


GROUPS = {group: list(files) for group, files in find_groups(TrainConfig).items()}
ROUNDS = range(max(map(len, GROUPS.values())))
MORE = {  # what a choice can't do without
    "text": ["data.source=here"],
    "chat": ["data.source=here"],
    "fsdp": ["trainer.devices=2"],
    "hsdp": ["trainer.devices=4", "trainer.shards=2"],
    "lora": ["init.from=here"],
    "grpo": ["init.from=here", "batch_tokens=8192"],
    "chat_grpo": ["init.from=here", "data=tasks"],
}


def test_every_choice_composes(monkeypatch):
    """Each round composes one file of each group together, the next one of a group in the next round."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if every extra were installed
    Path("here").touch()
    groups = {group: files for group, files in GROUPS.items() if group != "experiment"}
    composed, models = set(), []
    for number in ROUNDS:
        chosen = {group: files[number % len(files)] for group, files in groups.items()}
        if chosen["objective"] == "grpo":  # which goes with no other data, and not with every tokenizer
            chosen |= {"data": "tasks", "tokenizer": "byte"}
        arguments = [f"{group}={choice}" for group, choice in chosen.items()]
        arguments += [each for choice in chosen.values() for each in MORE.get(choice, [])]
        config = compose("train", arguments)
        for group in chosen.keys() - {"model", "trainer"}:
            assert getattr(config, group).name == chosen[group], (group, chosen)
        models += [config.model] if config.model not in models else []
        of_prepare = {(group, chosen[group]) for group in ("data", "tokenizer")}
        if of_prepare - composed:
            prepared = compose("prepare", [each for each in arguments if each.startswith(("data", "tokenizer"))])
            assert (prepared.data, prepared.tokenizer) == (config.data, config.tokenizer)
        composed |= set(chosen.items())
    assert composed == {(group, choice) for group, files in groups.items() for choice in files}
    assert len(models) == len(groups["model"]), "two files of models are the same"


@pytest.mark.parametrize("choice", GROUPS["experiment"])
def test_every_experiment_composes(choice, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    Path("here").touch()
    data = str(yaml.safe_load(find_groups(TrainConfig)["experiment"][choice].read_text()).get("data", ""))
    source = MORE["text"] if choice in ("text", "gpt2_124m") or {"text", "chat"} & {data} else []
    if choice == "gpt2_124m":
        assert fault_of("train", f"experiment={choice}") == "data=text needs your text. Add data.source=FILE_OR_DIR."
    assert compose("train", [f"experiment={choice}", *source, *MORE.get(choice, [])]).experiment == choice


def test_yaml_holds_values_only():
    files = sorted(config_folder().rglob("*.yaml"))
    assert len(files) >= 30
    for file in files:
        text = file.read_text()
        assert "_target_" not in text
        assert "${" not in text
        assert "!!" not in text
        assert file.parent == config_folder() or file.parent.parent == config_folder()


@pytest.mark.parametrize(
    ("choice", "sizes"),
    [
        ("gpt2", (12, 12, 768)),
        ("gpt2-medium", (24, 16, 1024)),
        ("gpt2-large", (36, 20, 1280)),
        ("gpt2-xl", (48, 25, 1600)),
    ],
)
def test_gpt2_sizes(choice, sizes):
    model = compose("train", [f"model={choice}"]).model
    assert (model.n_layer, model.n_head, model.n_embd) == sizes
    assert (model.block_size, model.bias, model.activation, model.dropout) == (1024, True, "gelu_tanh", 0.0)
    assert model.checkpoint_activations == (choice in ("gpt2-large", "gpt2-xl"))


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
    assert config.data.val_fraction == 0.1


def test_command_line_beats_experiment_beats_group():
    config = compose("train", ["optimizer.lr=5e-4", "model.n_layer=5", "experiment=shakespeare_char", "model=gpt2"])
    assert (config.optimizer.lr, config.model.n_layer, config.model.n_embd) == (5e-4, 5, 384)
    assert config.model.block_size == 256  # the experiment's, over model=gpt2


def test_users_own_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("it's, my ~configs=x")
    (folder / "experiment").mkdir()
    (folder / "model").mkdir()
    (folder / "model" / "tiny.yaml").write_text("n_layer: 1\n")
    (folder / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: tiny\nseed: 5\ntrainer:\n  compile: off\n"
    )
    config = compose("train", ["--config-dir", str(folder), "experiment=mine"])
    assert (config.seed, config.model.n_layer, config.experiment) == (5, 1, "mine")
    assert config.trainer.compile == "off"
    assert compose("train", [f"--config-dir={folder}", "model=tiny"]).model.n_layer == 1
    (folder / "experiment" / "bad.yaml").write_text("# @package _global_\nmodel: {n_layers: 2}\n_target_: os.system\n")
    faults = faults_of("train", "--config-dir", str(folder), "experiment=bad")
    assert len(faults) == 2
    assert "No setting 'model.n_layers'. Did you mean 'model.n_layer'?" in faults
    assert any(fault.startswith("No setting '_target_'.") for fault in faults)
    for text in ("a: [", "defaults:\n  - override /model: none\n", "\x00", "- 1\n", "model: 3"):
        (folder / "experiment" / "bad.yaml").write_text("# @package _global_\n" + text)
        assert faults_of("train", "--config-dir", str(folder), "experiment=bad")
    (folder / "model" / "gpt2.yaml").write_text("n_layer: 1\n")
    assert "has the name of minigpt's own model=gpt2" in fault_of("train", "--config-dir", str(folder), "model=tiny")


def test_a_folder_of_other_files_is_not_searched_for_config_files(tmp_path_factory, monkeypatch):
    mine, others = tmp_path_factory.mktemp("mine"), tmp_path_factory.mktemp("others")
    (mine / "data").symlink_to(others)
    for number in range(100):
        (others / f"{number}.csv").touch()
    monkeypatch.setattr("minigpt.config.files.MAX_FILES", 99)
    wrong = "data is no group of config files: it holds more than 99 files"
    assert wrong in fault_of("train", f"--config-dir={mine}")


# --- literal text ---

TEXTS = [
    "To be, or not to be",
    "Hi!",
    "don't",
    "a=b",
    "é",
    "def f(x):",
    "<|endoftext|>",
    "two\nlines",
    " leading space",
    "123",
    "null",
    "${oc.env:HOME}",
    "~/my notes/a,b.txt",
    "",
    "[1, 2]",
    '{"a": 1}',
    '"quoted"',
    "back\\slash",
    "--help",
    "${",
    "true",
]


def test_free_text_reaches_us_unchanged(monkeypatch):
    monkeypatch.setattr(compose_module, "find_faults", lambda config: [])  # such files need not exist
    literal = [key for key in LITERAL if key in settings(TrainConfig)]
    for text in TEXTS:
        train = compose("train", [*(f"{key}={text}" for key in literal), "data=text", "seed=3"])
        found = train.data.source, train.data.dir, train.run.dir, train.init.source, train.samples.prompt
        assert found == (text,) * 5
        sample = compose("sample", [f"prompt={text}", f"+prompt={text}x", f"prompt_file={text}", f"checkpoint={text}"])
        assert sample.prompt == [text, text + "x"]
        assert (sample.prompt_file, sample.checkpoint) == (text, text)
        assert from_dict(SampleConfig, to_dict(sample)) == sample


def test_stop_is_a_json_list():
    stop = compose("sample", ["checkpoint=.", r'stop=["\n\n", "a,b", "don\u0027t", "${x}"]']).stop
    assert stop == ["\n\n", "a,b", "don't", "${x}"]
    for wrong in ("END", "[END]", "['END']", '{"a": 1}', "[1]", "", "null"):
        assert fault_of("sample", "checkpoint=.", f"stop={wrong}").startswith("stop must be a JSON list of strings")


# --- faults ---


def test_three_faults_of_three_kinds_at_once():
    faults = faults_of("train", "trainer.max_step=5", "optimizer.lr=abc", "model.n_embd=100", "model.n_head=12")
    assert faults[0] == "No setting 'trainer.max_step'. Did you mean 'trainer.max_steps'?"
    assert faults[1] == "optimizer.lr must be a number, got 'abc'."
    assert faults[2].startswith("model.n_embd=100 is not a multiple of model.n_head=12")
    assert len(faults) == 3


def test_an_unknown_choice_hides_no_other_fault_and_invents_none():
    faults = faults_of("train", "model=gtp2", "model.n_head=7", "trainer.devices=2", "seed=-1", "+x=1")
    assert faults[0] == "No setting 'x'."
    assert faults[1].startswith("No model 'gtp2'. Did you mean model=gpt2? There are: gpt-baby, gpt-micro,")
    assert faults[2].startswith("seed must be at least 0")
    assert faults[3].startswith("trainer.devices=2 needs")
    assert len(faults) == 4  # whether 7 heads divide the width depends on the model that was meant


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["+trainer.max_stepz=5"], "No setting 'trainer.max_stepz'. Did you mean 'trainer.max_steps'?"),
        (["++trainer.max_stepz=5"], "No setting 'trainer.max_stepz'. Did you mean 'trainer.max_steps'?"),
        (["max_steps=5"], "No setting 'max_steps'. Did you mean 'trainer.max_steps'?"),
        (["modle=gpt2"], "No setting 'modle'. Did you mean 'model'?"),
        (["learning_rate=1"], "No setting 'learning_rate'. Here it is optimizer.lr: peak learning rate."),
        (["batch_size=12"], "No setting 'batch_size'. Here it is batch_tokens: tokens per step"),
        (["min_p=0.1"], "No setting 'min_p' of the command train: it belongs to sample."),
        (["data.workers=2"], "data.workers is not a setting any more: batches are made in the training process"),
        (["samples=3"], "'samples' is a group of settings. Set one of: samples.every_steps, "),
        (["init.source=x"], "No setting 'init.source'."),
        (["experiment=shakespear"], "No experiment 'shakespear'. Did you mean experiment=shakespeare_char?"),
        (["model=gpt2,gpt-nano"], "No model 'gpt2,gpt-nano'. Several are trained one after the other with -m: "),
        (["model="], "No model ''. There are: "),
        (["model=../train"], "No model '../train'."),
        (["seed=1,2"], "seed takes one value, got '1,2'. Several are trained one after the other with -m: "),
        (["-m", "seed=1"], "-m is for trainings alone, not with --cfg."),
        (["--multirun"], "--multirun is for trainings alone"),
        (["~trainer.max_steps"], "'~trainer.max_steps' is not how a setting is written: key=value, no dashes."),
        (["~model=gpt2"], "'~model gpt2' is not how a setting is written"),
        (["--max_steps", "100"], "'--max_steps 100' is not how a setting is written: key=value, no dashes. "),
        (["--max-steps=100"], "Did you mean trainer.max_steps=100?"),
        (["--learning"], "minigpt train --help."),
        (
            ["gpt2"],
            "'gpt2' is not how a setting is written: key=value, no dashes. Did you mean model=gpt2 or tokenizer=gpt2?",
        ),
        (["seed"], "Did you mean seed=VALUE?"),
        ([""], "'' is not how a setting is written"),
        (["="], "No setting ''."),
        (["hydra.run.dir=x"], "No setting 'hydra.run.dir'. Did you mean 'run.dir'?"),
        (["data.encoding=${oc.env:HOME}"], "data.encoding='${oc.env:HOME}': ${...} is not evaluated."),
        (["trainer.max_steps=1e3"], "trainer.max_steps must be a whole number (write 1000) or null, got '1e3'."),
        (["model.tied=yes"], "model.tied must be true or false, got 'yes'."),
        (
            ["model.bias=kqv"],
            "model.bias must be one of true, false, none, qkv, attention, all (did you mean qkv?), got",
        ),
        (["trainer.device=gpu"], "trainer.device must be one of auto, cuda, mps, cpu"),
        (["--cfg"], "Type --cfg job, got ''."),
        (["--cfg", "hydra"], "Type --cfg job, got 'hydra'."),
        (["--config-dir", "nowhere"], "--config-dir wants a folder with group folders in it, got 'nowhere'."),
        (["--config-dir"], "--config-dir wants a folder"),
    ],
)
def test_what_people_mistype(arguments, says):
    assert says in fault_of("train", *arguments)


PIECES = [*"=+~-.,/@:'\"[{\n\0 é", "\udcff", "${x}", "--", "model", "seed", "prompt", "null", "1e400"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), max_size=4))
@limits(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_command_line_ends_in_a_traceback(arguments):
    """Only in a config, or in faults of one line each."""
    for script in CLASSES:
        try:
            compose(script, arguments)
            faults = []
        except UserFault as found:
            faults = list(found.faults)
        assert all(len(each.splitlines()) == 1 for each in faults)


def test_last_value_wins_and_plus_is_allowed():
    config = compose("train", ["seed=1", "+seed=2", "++model=gpt2", "+experiment=demo", "trainer.max_tokens=none"])
    assert (config.seed, config.experiment, config.trainer.max_tokens) == (2, "demo", None)


BAD_TEXTS = {"word": "abc", "negative": "-1", "huge": "1" + "0" * 400, "nan": "NaN", "infinite": "inf", "empty": ""}


WITH_VALUES = [command for command in CLASSES if command != "runs"]  # which takes nothing but folders


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_bad_values_of_every_number_switch_and_word(kind):
    """All settings at once: each refused by name, in one list, whatever the value."""
    for script in WITH_VALUES:
        kinds = {key: setting.kind for key, setting in settings(CLASSES[script]).items()}
        free = [key for key in kinds if key in LITERAL or kinds[key] in (str, str | None) or kinds[key] == list[str]]
        keys = [key for key in kinds if key not in free]
        faults = faults_of(script, *(f"{key}={BAD_TEXTS[kind]}" for key in keys))
        refused = [fault.partition(" must be ")[0] for fault in faults if "must be" in fault]
        assert sorted(refused) == sorted(keys), script


def test_null_is_refused_where_the_type_has_no_null():
    for script in WITH_VALUES:
        kinds = {key: setting.kind for key, setting in settings(CLASSES[script]).items()}
        keys = [key for key in kinds if key not in LITERAL and key != "experiment" and kinds[key] is not str]
        refused = [key for key in keys if fitted(kinds[key], None)[1]]
        faults = faults_of(script, *(f"{key}=null" for key in keys))
        assert {fault.partition(" must be ")[0] for fault in faults if " must be " in fault} == set(refused), script


@pytest.mark.parametrize("script", CLASSES)
def test_empty_text_is_refused_or_means_nothing(script):
    """Every text setting alone: no traceback, and an empty path is never taken for the working folder."""
    for key, setting in settings(CLASSES[script]).items():
        if setting.kind in (str, str | None):
            try:
                compose(script, [*NEEDED.get(script, []), f"{key}="])
                accepted = True
            except UserFault:
                accepted = False
            empty = ("samples.prompt", "logger.group", "data.include", "data.exclude", "job.name", "job.partition")
            assert accepted == (key in (*empty, "job.account", "job.setup", "system")), key


# --- pages ---


@pytest.mark.parametrize("script", CLASSES)
def test_help_names_everything(script, capsys):
    for flag in ("--help", "-h"):
        with pytest.raises(SystemExit) as end:
            compose(script, ["trainer.max_step=1", flag])
        assert end.value.code == 0
    page = capsys.readouterr().out
    for key in settings(CLASSES[script]):
        (line, *_) = (line for line in page.splitlines() if line.startswith(f"  {key}="))
        assert len(line.rpartition(") ")[2]) > 3, f"{key} has no meaning in schema.py"
    groups = find_groups(CLASSES[script]) if (config_folder() / f"{script}.yaml").is_file() else {}
    for group, choices in groups.items():
        assert all(choice in page for choice in choices), group
    assert "75 stopped by a signal" in page
    assert script in page
    assert max(map(len, page.splitlines())) <= 160


def test_examples_of_the_help_page_compose(monkeypatch):
    import shlex

    monkeypatch.setattr(compose_module, "find_faults", lambda config: [])
    for command, cls in CLASSES.items():
        lines = [line.strip() for line in cls.__doc__.splitlines() if line.strip().startswith("minigpt ")]
        assert lines
        for line in lines:
            program, name, *ours = shlex.split(line)
            assert (program, name) == ("minigpt", command)
            compose(command, ours)
            compose("train", train_arguments(command, ours) if issubclass(cls, TrainConfig) else [])


@pytest.mark.parametrize("script", ["sweep", "verify-resume", "benchmark"])
def test_a_command_that_trains_takes_the_settings_of_train_too(script, tmp_path, capsys):
    shared = ["experiment=demo", "--config-dir", str(tmp_path), "+seed=3", "optimizer.lr=0.5"]
    own = {"sweep": ["search=lr", "+trials=3", "seeds=2"], "verify-resume": ["kills=2"], "benchmark": ["rounds=1"]}
    config = compose(script, [*own[script], *shared])
    assert (config.seed, config.optimizer.lr, config.experiment) == (3, 0.5, "demo")
    assert train_arguments(script, [*own[script], *shared]) == shared
    assert faults_of(script, "trainer.max_step=5", "model.n_head=3") == [
        "No setting 'trainer.max_step'. Did you mean 'trainer.max_steps'?",
        "model.n_embd=128 is not a multiple of model.n_head=3. Use model.n_embd=126 or 129.",
    ]
    with pytest.raises(SystemExit):
        compose(script, ["--help"])
    page = capsys.readouterr().out
    assert page.index(own[script][-1].partition("=")[0] + "=") < page.index("  seed=1337")


def test_words_are_items_of_the_setting_that_takes_them(tmp_path):
    (tmp_path / "here").touch()
    runs = ["runs/A", "runs/lr=1e-3", "vs", "here", "runs=literally"]
    config = compose("compare", [*runs, "which=latest", "data.dir=~/x, y"])
    assert (config.runs, config.which, config.data.dir) == ([*runs[:4], "literally"], "latest", "~/x, y")
    assert faults_of("compare", "which=last", "wich=best", "--device", "cpu") == [
        "No setting 'wich'. Did you mean 'which'?",
        "'--device cpu' is not how a setting is written: key=value, no dashes. Did you mean device=cpu?",
        "which must be one of best, latest (did you mean latest?), got 'last'.",
        "runs is missing: runs or checkpoints, and `vs`. Give runs=...",
    ]
    assert fault_of("report") == "run.dir is missing: the folder, like runs/demo-1a2b3c4d. Give run.dir=..."


def test_cfg_job_prints_yaml_that_reads_back(capsys):
    with pytest.raises(SystemExit) as end:
        compose("train", ["--cfg", "job", "experiment=demo", "run.dir=${x}: é", "samples.prompt=null"])
    assert end.value.code == 0
    config = from_dict(TrainConfig, yaml.safe_load(capsys.readouterr().out))
    assert config == compose("train", ["experiment=demo", "run.dir=${x}: é", "samples.prompt=null"])


def test_notes_go_to_stderr(capsys):
    compose("train", ["trainer.max_steps=20"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Note: schedule.warmup_steps=100 is longer")


def test_a_note_lists_what_an_experiment_replaces_in_a_group_typed_beside_it(tmp_path, capsys):
    (tmp_path / "here" / "experiment").mkdir(parents=True)
    values = "model: {n_layer: 3, n_kv_head: 1, n_hidden: 7, activation: relu_squared}"
    file = f"# @package _global_\ndefaults:\n  - override /model: gpt2\n{values}\n"
    (tmp_path / "here" / "experiment" / "mine.yaml").write_text(file)
    mine = [f"--config-dir={tmp_path / 'here'}", "experiment=mine"]
    qwen = [*mine, "model=qwen3-nano", "model.n_layer=5", "model.n_hidden=64"]
    note = "Note: experiment=mine replaces these settings of model=qwen3-nano: model.n_kv_head=1 (not 2), "
    note += "model.activation='relu_squared' (not 'swiglu'). Type a setting to choose its value yourself.\n"

    config = compose("train", qwen)
    assert (config.model.norm, config.model.activation, config.model.n_layer) == ("rmsnorm", "relu_squared", 5)
    assert capsys.readouterr().err == note
    assert "model.n_embd" in fault_of("train", *qwen, "model.n_embd=0")
    assert capsys.readouterr().err == note  # it may be the reason for the fault
    compose("train", [*mine, "model=gpt-nano", "model.n_hidden=64"])  # whose file has no n_kv_head: the default counts
    assert "model.n_kv_head=1 (not 0)" in capsys.readouterr().err

    assert "No model 'qwen9'" in fault_of("train", *mine, "model=qwen9", "tokenizer=byte")
    compose("train", [*qwen, "model.n_kv_head=2", "model.activation=swiglu"])
    compose("train", mine)
    compose("train", ["model=qwen3-nano"])
    assert "replaces" not in capsys.readouterr().err


def test_an_experiment_without_its_first_line_is_told_of_it(tmp_path):
    (tmp_path / "here" / "experiment").mkdir(parents=True)
    (tmp_path / "here" / "experiment" / "mine.yaml").write_text("seed: 5\nmodel: {n_layer: 3}\n")
    fault = fault_of("train", f"--config-dir={tmp_path / 'here'}", "experiment=mine")
    told = "experiment='mine': its file, or one in its defaults, must begin with the line # @package _global_."
    assert fault == told


def test_a_password_in_an_address_stands_in_no_note_and_no_fault(tmp_path, capsys):
    address = f"https://me:hunter2@example.org/{'long/' * 20}text.txt"
    (tmp_path / "here" / "experiment").mkdir(parents=True)
    file = f"# @package _global_\ndata: {{name: text, source: '{address}'}}\n"
    (tmp_path / "here" / "experiment" / "mine.yaml").write_text(file)
    compose("train", [f"--config-dir={tmp_path / 'here'}", "experiment=mine", "data=stdlib"])
    said = capsys.readouterr().err + fault_of("train", f"model.n_layer=[{address}]")
    said += fault_of("train", "--data.source", address)
    (tmp_path / "here" / "experiment" / "mine.yaml").write_text(file.replace("long/", "${x}/"))
    said += fault_of("train", f"--config-dir={tmp_path / 'here'}", "experiment=mine")
    assert said.count("https://<redacted>@example.org/") == 5
    assert "hunter2" not in said


def test_a_second_adapter_of_a_command_that_takes_one_is_refused(tmp_path):
    for command in ("sample", "chat"):
        with pytest.raises(UserFault, match=rf"adapter='a' and adapter=.*: {command} takes one\. minigpt serve lists"):
            compose(command, ["checkpoint=.", "adapter=a", f"adapter={tmp_path}"])
