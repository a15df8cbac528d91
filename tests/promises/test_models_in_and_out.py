"""A trained model goes to Hugging Face and llama.cpp and comes back, with a proof that it is the same model."""

import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import minigpt
from minigpt.cli import _dispatch as minigpt_command
from minigpt.config.compose import compose
from minigpt.config.schema import ModelConfig
from minigpt.data.chat.roles import CONTROL, with_roles
from minigpt.data.tokenizer import build_tokenizer, read_tokenizer_json
from minigpt.export import prove, prove_tokenizer
from minigpt.faults import StorageFailure, UserFault
from minigpt.formats.gguf import halve, interleave, modelfile
from minigpt.formats.huggingface import write_huggingface
from minigpt.formats.tokenizer_json import read_tokenizer, tokenizer_config
from minigpt.model.gpt import GPT
from minigpt.sampling.conversation import turn_of
from tests.units.formats.reference import CHAT_TEMPLATES, LLAMA, learned, write_chat_tokenizer, write_folder
from tests.units.model.spread import spread_gpt

MODERN = ["model.norm=rmsnorm", "model.attention=rotary", "model.activation=swiglu", "model.bias=none"]
SHAPES = {
    "gpt2": [],
    "gpt2 without biases": ["model.bias=false", "model.tied=false", "model.n_hidden=20", "tokenizer=char"],
    "llama": [*MODERN, "model.qk_norm=none", "model.n_kv_head=1", "model.bias=all", "model.rope_scaling=llama3"],
    "qwen2": [*MODERN, "model.qk_norm=none", "model.bias=qkv", "tokenizer=bpe", "tokenizer.vocab_size=270"],
    "qwen3": [*MODERN, "model.qk_norm=rmsnorm", "model.head_dim=6", "model.norm_eps=1e-6", "model.rope_theta=1e6"],
}


def export(*words: object) -> None:
    """As a user types it."""
    minigpt_command(["export", *map(str, words)])


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_comes_back_with_the_same_bytes(run, tmp_path, capsys, shape):
    run(*SHAPES[shape], "trainer.max_steps=2", "optimizer.lr=0.1")
    capsys.readouterr()
    export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}")
    reader, logits, tokens, wrote = capsys.readouterr().out.splitlines()
    assert reader == "Read back with minigpt's importer"
    assert logits.startswith("Logits  largest difference 0.0e+00")
    assert "0 differences in the ids of" in tokens
    assert "model.safetensors" in wrote
    ours, back = minigpt.load(run.path), minigpt.load(tmp_path / "out")
    assert back.tokenizer.hash == ours.tokenizer.hash
    weights = back.model.state_dict()
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(weights.pop(name)[: back.model.vocab_size], tensor[: back.model.vocab_size]), name
    assert all(name.endswith("bias") and not tensor.any() for name, tensor in weights.items())  # GPT-2's
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(part in card for part in (logits, tokens, "validation loss: ", ours.tokenizer.hash))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    if shape in ("gpt2", "qwen3"):  # others are stored with biases of zero
        assert f"{sum(tensor.numel() for tensor in stored.values()):,} parameters" in card
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1  # weights as readable as the rest


def test_a_chat_model_comes_back_with_its_roles(run, tmp_path):
    talks = [{"prompt": f"say {n}", "completion": f"it is {n}"} for n in range(90)]
    (run.folder / "talks.jsonl").write_text("\n".join(map(json.dumps, talks)))
    chat = ["data=chat", f"data.source={run.folder / 'talks.jsonl'}", "model.block_size=32", "batch_tokens=64"]
    run(*SHAPES["qwen3"], *chat, "trainer.max_steps=1")
    export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}")
    ours, back = minigpt.load(run.path).tokenizer, minigpt.load(tmp_path / "out").tokenizer
    assert (back.hash, back.eot, back.special) == (ours.hash, ours.eot, ours.special)
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    named = [config[f"{name}_token"] for name in ("bos", "eos", "pad")]
    assert named == ["<|endoftext|>", "<|end|>", "<|endoftext|>"]
    words = [each for each in run.arguments(*chat) if not each.startswith(("model", "tokenizer", "run.dir"))]
    assert minigpt_command(["train", *words, f"init.from={tmp_path / 'out'}", f"run.dir={tmp_path / 'next'}"]) == 0
    assert minigpt.load(tmp_path / "next").tokenizer.hash == ours.hash
    assert (tmp_path / "next" / "data.json").read_bytes() == (run.path / "data.json").read_bytes()


@pytest.mark.parametrize("first", [False, True])
def test_a_tokenizer_of_a_file_comes_back_as_it_was(tmp_path, first):
    (tmp_path / "tokenizer.json").write_text(json.dumps(learned(first=first)))
    config = compose("train", ["tokenizer=file", f"tokenizer.file={tmp_path / 'tokenizer.json'}"])
    tokenizer = read_tokenizer_json(tmp_path / "tokenizer.json")
    for number, each in enumerate((tokenizer, with_roles(tokenizer))):
        write_huggingface(tmp_path / f"out{number}", GPT(ModelConfig(n_embd=8, n_head=1), each.vocab_size), each)
        back = minigpt.load(tmp_path / f"out{number}").tokenizer
        assert "control tokens equal" in prove_tokenizer(each, back)
        assert back.eot == tokenizer.eot
    assert config.tokenizer.name == "file"


@pytest.mark.parametrize(("settings", "named"), [([], "model.attention=linear"), (MODERN, "model.qk_norm=layernorm")])
def test_a_shape_that_no_architecture_has_is_refused_by_its_settings(run, tmp_path, settings, named):
    run(*settings, named, "trainer.max_steps=1")
    with pytest.raises(UserFault, match=named.replace(".", r"\.")):
        export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_chat_model_that_was_imported_and_tuned_keeps_its_template_and_ends(run, tmp_path, capsys):
    theirs = read_tokenizer(write_chat_tokenizer(tmp_path, CHAT_TEMPLATES["llama3"]))
    write_folder(tmp_path, LLAMA | {"vocab_size": theirs.vocab_size})
    words = ["data=text", f"data.source={run.folder / 'text.txt'}", f"data.dir={run.folder}", f"run.dir={run.path}"]
    settings = ["model.block_size=16", "batch_tokens=64", "trainer.max_steps=2", "trainer.device=cpu"]
    settings += ["checkpoint.every_steps=1"]
    minigpt_command(["train", f"init.from={tmp_path}", *words, *settings])
    export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}")
    assert "control tokens equal" in capsys.readouterr().out
    messages = [{"role": "user", "content": "wood"}, {"role": "assistant", "content": "chuck"}]
    wanted = turn_of(theirs, [*messages, messages[0]])
    for path in (run.path, tmp_path / "out"):
        assert turn_of(minigpt.load(path).tokenizer, [*messages, messages[0]]) == wanted
    newest = max(run.path.glob("checkpoints/step-*"))
    (newest / "tokenizer.json").write_text("damaged")  # set aside: the run continues from the one before
    minigpt_command(["train", f"init.from={tmp_path}", *words, *settings])
    assert turn_of(minigpt.load(run.path).tokenizer, [*messages, messages[0]]) == wanted
    ends = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [theirs.special["<|im_end|>"], 7, theirs.eot]
    config = tmp_path / "out" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_bos_token": True}))
    begun = read_tokenizer(config.with_name("tokenizer.json"))
    assert begun.start == [theirs.special["<|bos|>"]] != theirs.start
    with pytest.raises(RuntimeError, match="control tokens DIFFER"):
        prove_tokenizer(theirs, begun)
    assert tokenizer_config(begun, 16)["add_bos_token"]


def test_an_export_overwrites_nothing_and_leaves_nothing_half_written(run, tmp_path, monkeypatch):
    run("trainer.max_steps=1")
    (tmp_path / "there").mkdir()
    with pytest.raises(UserFault, match="is there already, and an export overwrites nothing"):
        export(f"checkpoint={run.path}", f"dir={tmp_path / 'there'}")
    with pytest.raises(UserFault, match=r"type=q8_0 is for GGUF files\. Add format=gguf"):
        export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}", "type=q8_0")
    with monkeypatch.context() as patched:
        patched.setattr("minigpt.export.prove", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no")))
        with pytest.raises(RuntimeError):
            export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}")

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("minigpt.formats.huggingface.save_file", full)
    with pytest.raises(StorageFailure, match=r"can't be written: .*No space left on device"):
        export(f"checkpoint={run.path}", f"dir={tmp_path / 'out'}")
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


# --- the proof can fail ---


def change_config(folder, **values):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_weights(folder, change):
    tensors = {name: change(name, tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def merges_swapped(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    merges = content["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]
    (folder / "tokenizer.json").write_text(json.dumps(content))


FAULTS = {
    "heads interleaved": lambda out: change_weights(out, lambda name, w: interleave(w, 8) if "_proj" in name else w),
    "c_proj as it is": lambda out: change_weights(
        out, lambda name, w: w.T if name.endswith("attn.c_proj.weight") else w
    ),
    "theta missing": lambda out: change_config(out, rope_theta=None, rope_parameters=None),
    "another epsilon": lambda out: change_config(out, rms_norm_eps=1e-3),
    "tie omitted": lambda out: change_config(out, tie_word_embeddings=None),
    "merges swapped": merges_swapped,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_what_was_written_is_caught(tmp_path, fault):
    text = "how much wood would a woodchuck chuck if a woodchuck could chuck wood " * 9
    tokenizer = build_tokenizer("bpe", vocab_size=300, train=[[text.encode()]])
    modern = {"norm": "rmsnorm", "attention": "rotary", "activation": "swiglu", "norm_eps": 1e-6, "rope_theta": 1e6}
    shape = {} if "c_proj" in fault else modern | {"qk_norm": "rmsnorm", "bias": "none"}
    gpt = spread_gpt(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_embd=32, block_size=64, **shape)
    write_huggingface(tmp_path / "out", gpt, tokenizer)

    def proof():
        back = minigpt.load(tmp_path / "out")
        prove("our importer", gpt, back.model, tolerance=5e-5)
        prove_tokenizer(tokenizer, back.tokenizer)

    proof()
    FAULTS[fault](tmp_path / "out")
    with pytest.raises((RuntimeError, UserFault)):
        proof()


def test_llama_cpps_order_of_rows_is_undone():
    rows = torch.arange(24.0).view(12, 2)
    assert torch.equal(halve(interleave(rows, 6), 6), rows)
    assert not torch.equal(interleave(rows, 6), rows)


def test_ollama_stops_at_every_role():
    plain = build_tokenizer("byte")
    assert modelfile("m.gguf", plain, 8) == 'FROM ./m.gguf\nTEMPLATE """{{ .Prompt }}"""\nPARAMETER num_ctx 8\n'
    lines = modelfile("m.gguf", with_roles(plain), 8).splitlines()
    assert lines[2:] == ["PARAMETER num_ctx 8", *(f'PARAMETER stop "{name}"' for name in CONTROL)]
