"""minigpt export with a core install: what is written is read back with our importer, whatever is installed here."""

import importlib.util
import json
import re

import pytest
import torch
from safetensors import SafetensorError

import minigpt
from minigpt.checkpoint.load import load_checkpoint
from minigpt.compare.command import compare
from minigpt.config.compose import compose
from minigpt.data.chat.roles import CONTROL, with_roles
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.data.tokenizers.scheme import SINGLE_BYTES
from minigpt.export.command import export
from minigpt.export.gguf import modelfile
from minigpt.export.tokenizer_json import TEMPLATE, merges_of, tokenizer_json
from minigpt.faults import StorageFailure, UserFault
from tests.export.reference import CONFIGS, learned, write_folder

MODERN = ["model.norm=rmsnorm", "model.attention=rotary", "model.activation=swiglu", "model.bias=none"]
SHAPES = {
    "gpt2": [],
    "gpt2 without biases": ["model.bias=false", "model.tied=false", "model.n_hidden=20", "tokenizer=char"],
    "llama": [*MODERN, "model.qk_norm=none", "model.n_kv_head=1", "model.bias=all", "model.rope_scaling=llama3"],
    "qwen2": [*MODERN, "model.qk_norm=none", "model.bias=qkv", "tokenizer=bpe", "tokenizer.vocab_size=270"],
    "qwen3": [*MODERN, "model.qk_norm=rmsnorm", "model.head_dim=6", "model.norm_eps=1e-6", "model.rope_theta=1e6"],
}


@pytest.fixture(autouse=True)
def _no_transformers(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "transformers" else real(name))


@pytest.fixture(autouse=True)
def _few_strings(monkeypatch):
    """test_faults.py compares tokenizers over all of them."""
    monkeypatch.setattr("minigpt.export.proof.STRINGS", 500)


def exported(run, tmp_path, *settings: str) -> list[str]:
    run(*settings, "trainer.max_steps=2", "optimizer.lr=0.1")
    lines: list[str] = []
    export(compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'out'}"]), lines.append)
    return lines


@pytest.mark.parametrize("shape", SHAPES)
def test_ours_comes_back_with_the_same_bytes(run, tmp_path, shape):
    lines = exported(run, tmp_path, *SHAPES[shape])
    assert "minigpt's own importer (transformers is not installed)" in lines[0]
    assert "largest difference" in lines[1]
    assert "of the validation text" in lines[1]
    assert "0 differences in ids and 0 in text" in lines[3]
    ours, back = minigpt.load(run.path), minigpt.load(tmp_path / "out")
    assert back.tokenizer.hash == ours.tokenizer.hash
    weights = back.model.state_dict()
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(weights.pop(name)[: back.model.vocab_size], tensor[: back.model.vocab_size]), name
    assert all(name.endswith("bias") and not tensor.any() for name, tensor in weights.items())  # GPT-2's
    card = (tmp_path / "out" / "README.md").read_text()
    assert json.loads((run.path / "data.json").read_text())["fingerprint"] in card
    assert "validation loss: " in card
    assert lines[1] in card


@pytest.mark.parametrize("first", [False, True])
def test_a_tokenizer_of_a_file_comes_back_as_it_was(run, tmp_path, first):
    (tmp_path / "tokenizer.json").write_text(json.dumps(learned(first=first)))
    (run.folder / "text.txt").write_text("how much wood would a woodchuck chuck\n" * 150)
    file = f"tokenizer.file={tmp_path / 'tokenizer.json'}"
    exported(run, tmp_path, *SHAPES["qwen3"], "tokenizer=file", file, "data.val_fraction=0.5")
    assert minigpt.load(tmp_path / "out").tokenizer.hash == minigpt.load(run.path).tokenizer.hash
    lines: list[str] = []
    compare(compose("compare", [str(run.path), str(tmp_path / "out"), "device=cpu"]), lines.append)
    assert [line for line in lines if "equal" in line]


def test_an_export_overwrites_nothing_and_leaves_nothing_half_written(run, tmp_path, monkeypatch):
    exported(run, tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UserFault, match="is there already, and an export overwrites nothing"):
        compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'out'}"])
    config = compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'other'}"])
    config.dir = str(tmp_path / "out")
    with pytest.raises(UserFault, match="is there already"):
        export(config)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before

    config.dir = str(tmp_path / "other")
    monkeypatch.setattr("minigpt.export.command.prove", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.raises(RuntimeError):
        export(config)
    assert sorted(path.name for path in tmp_path.iterdir() if "oth" in path.name or "tmp" in path.name) == []


def test_a_full_disk_is_a_sentence(run, tmp_path, monkeypatch):
    run("trainer.max_steps=1")

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("minigpt.export.huggingface.save_file", full)
    with pytest.raises(StorageFailure, match=r"can't be written: .*No space left on device"):
        export(compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'out'}"]))
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["model.attention=rotary"], "model.norm=layernorm, model.qk_norm=auto, model.activation=gelu_tanh"),
        (["model.attention=linear"], "model.attention=linear"),
        (["model.n_kv_head=1"], "model.n_kv_head=1"),
        ([*MODERN, "model.qk_norm=rmsnorm", "model.bias=all"], "model.bias=all"),
        ([*MODERN, "model.qk_norm=layernorm"], "model.qk_norm=layernorm"),
    ],
)
def test_a_shape_that_no_architecture_has_is_refused_by_its_settings(run, tmp_path, settings, named):
    with pytest.raises(UserFault, match=named.replace(".", r"\.")):
        exported(run, tmp_path, *settings)
    assert not (tmp_path / "out").exists()


def test_without_the_validation_text_a_text_from_the_seed_is_used(run, tmp_path):
    run("trainer.max_steps=1")
    for path in (run.folder / "data").rglob("prepared.json"):
        path.unlink()
    lines: list[str] = []
    export(compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'out'}"]), lines.append)
    assert "of a text made from the seed 1337 (the validation text is not there)" in lines[1]
    assert "0 differences in ids" in lines[3]


def test_a_folder_that_was_exported_trains_on(run, tmp_path):
    exported(run, tmp_path, *SHAPES["qwen2"])
    own = [each for each in run.arguments() if not each.startswith(("model", "tokenizer", "run.dir"))]
    config = compose("train", [*own, f"init.from={tmp_path / 'out'}", f"run.dir={tmp_path / 'next'}"])
    assert (config.tokenizer.name, config.tokenizer.vocab_size) == ("bpe", 270)
    from minigpt.training.run import train

    assert train(config) == 0
    assert load_checkpoint(tmp_path / "next").tokenizer.hash == load_checkpoint(run.path).tokenizer.hash


def test_a_folder_is_compared_on_the_text_of_the_run_beside_it(run, tmp_path):
    exported(run, tmp_path, "data.val_fraction=0.5")
    lines: list[str] = []
    for paths in ([run.path, tmp_path / "out"], [tmp_path / "out", run.path]):
        compare(compose("compare", [*map(str, paths), "device=cpu"]), lines.append)
    assert len([line for line in lines if "they are equal" in line or "they are all but equal" in line]) == 2
    write_folder(tmp_path / "theirs", CONFIGS["gpt2"])
    with pytest.raises(UserFault, match="none of the runs beside it has its tokenizer"):
        compare(compose("compare", [str(run.path), str(tmp_path / "theirs")]))


def test_merges_are_recovered_from_the_ranks():
    text = ["how much wood would a woodchuck chuck " * 3, "if a woodchuck could chuck wood, déjà vu 123"]
    tokenizer = build_tokenizer("bpe", vocab_size=320, train=[[part.encode()] for part in text * 4])
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size - 1)]
    merges, whole = merges_of({token: rank for rank, token in enumerate(tokens)})
    assert [first + second for first, second in merges] == tokens[256:]
    assert not whole
    with pytest.raises(UserFault, match="no merge of two others"):
        tokenizer_json(Tokenizer("bpe", [*SINGLE_BYTES, b"abc"]))


@pytest.mark.parametrize(
    ("message", "says"),
    [({"role": "tool", "content": "x"}, "roles are"), ({"role": "user", "content": None}, "is one text")],
)
def test_the_template_refuses_what_we_do(message, says):
    jinja2 = pytest.importorskip("jinja2")

    def refuse(sentence):
        raise ValueError(sentence)

    with pytest.raises(ValueError, match=says):
        jinja2.Template(TEMPLATE).render(messages=[message], raise_exception=refuse)


def test_ollama_gets_messages_by_the_template_of_the_others():
    jinja2 = pytest.importorskip("jinja2")
    plain = build_tokenizer("byte")
    assert modelfile("m.gguf", plain, 8) == 'FROM ./m.gguf\nTEMPLATE """{{ .Prompt }}"""\nPARAMETER num_ctx 8\n'
    first, template, *parameters = modelfile("m.gguf", with_roles(plain), 8).splitlines()
    assert first == "FROM ./m.gguf"
    assert parameters == ["PARAMETER num_ctx 8", *(f'PARAMETER stop "{name}"' for name in CONTROL)]
    same = {  # actions of Go's templates in Jinja
        "range $i, $_ := .Messages": "{% for each in messages %}",
        "$last := eq (len (slice $.Messages $i)) 1": "{% set last = loop.last %}",
        'if eq .Role "system" "developer"': "{% if each.role in ('system', 'developer') %}",
        'else if eq .Role "user"': "{% elif each.role == 'user' %}",
        'else if eq .Role "assistant"': "{% elif each.role == 'assistant' %}",
        "if not $last": "{% if not last %}",
        'if and $last (ne .Role "assistant")': "{% if last and each.role != 'assistant' %}",
        ".Content": "{{ each.content }}",
    }
    text = template.removeprefix('TEMPLATE """').removesuffix('"""')
    actions = re.split(r"\{\{ (.*?) \}\}", text)
    ends = []
    for place, action in enumerate(actions):
        if place % 2 and action == "end":
            actions[place] = ends.pop()
        elif place % 2:
            ends += {"range": ["{% endfor %}"], "if": ["{% endif %}"]}.get(action.split()[0], [])
            actions[place] = same[action]
    roles = ["system", "user", "assistant", "user", "developer", "user"]
    for count in (1, 2, 4, 6):
        talk = {"messages": [{"role": role, "content": f" {role}\n"} for role in roles[:count]]}
        wanted = jinja2.Template(TEMPLATE).render(**talk, add_generation_prompt=True)
        assert jinja2.Template("".join(actions)).render(**talk) == wanted
    going_on = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert jinja2.Template("".join(actions)).render(messages=going_on) == "<|user|>a<|assistant|>b"
