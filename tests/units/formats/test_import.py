"""Other programs' models: Hugging Face folders and nanoGPT's ckpt.pt give their logits, train on, and are checked."""

import hashlib
import json
import pickle
import re
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import processors

import minigpt
from minigpt.config.compose import compose
from minigpt.config.schema import ModelConfig
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE
from minigpt.data.tokenizers.scheme import END_OF_TEXT
from minigpt.faults import UserFault
from minigpt.formats.tokenizer_json import tokenizer_json
from minigpt.model.gpt import GPT
from tests.promises.test_safe import Payload
from tests.promises.test_tokenizers import MARKED_BPE, MARKS
from tests.units.formats.reference import CONFIGS, LLAMA, learned, logits, write_folder

TOKENS = torch.tensor([5, 100, 0, 7, 7, 63, 64, 3, 99, 12, 50, 2, 2, 81, 40, 33, 71, 18, 9, 1, 77, 90, 25])


def difference(folder, config, tensors):
    with torch.inference_mode():
        found = minigpt.load(folder).model(TOKENS[None])[0]
    expected = logits(config, tensors, TOKENS)
    assert found.shape == expected.shape == (23, 101)
    return float((found - expected).abs().max())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_gives_the_logits_of_its_architecture(tmp_path, name):
    config = CONFIGS[name]
    assert difference(tmp_path, config, write_folder(tmp_path, config)) <= 1e-5


def test_weights_in_bf16_and_in_several_files_are_read(tmp_path):
    tensors = write_folder(tmp_path, CONFIGS["qwen3"], dtype=torch.bfloat16)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {name: f"model-0000{1 + number % 3}-of-00003.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert difference(tmp_path, CONFIGS["qwen3"], tensors) <= 1e-5
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserFault, match="has no file 'model-00002-of-00003"):
        minigpt.load(tmp_path)
    for bad in ("../../secret.safetensors", "/etc/passwd", 5):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": bad}}))
        with pytest.raises(UserFault, match="has no file"):
            minigpt.load(tmp_path)


def test_names_and_buffers_of_older_files_are_known(tmp_path):
    tensors = write_folder(tmp_path, CONFIGS["gpt2"])
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 37, 37).tril(), "lm_head.weight": bare["wte.weight"].clone()}
    save_file(bare, tmp_path / "model.safetensors")
    assert difference(tmp_path, CONFIGS["gpt2"], tensors) <= 1e-5
    bare["lm_head.weight"][3, 3] += 1
    save_file(bare, tmp_path / "model.safetensors")
    with pytest.raises(UserFault, match=r"ties lm_head\.weight to the embedding, and the two differ"):
        minigpt.load(tmp_path)
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 37, 37, dtype=torch.uint8), "wte.weight": bare["wte.weight"].char()}
    save_file(bare, tmp_path / "model.safetensors")
    with pytest.raises(UserFault, match=r"holds wte\.weight as torch\.int8; wanted fp32"):  # the mask hides nothing
        minigpt.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("partial_rotary_factor", 0.5),
        ("rope_parameters", {"rope_type": "yarn", "factor": 2.0}),
        ("quantization_config", {"bits": 4}),
        ("hidden_act", "gelu"),
        ("model_type", "gemma3"),
        ("auto_map", {"AutoModel": "mine.Model"}),
    ],
)
def test_a_field_that_changes_results_is_refused_by_name(tmp_path, field, value):
    write_folder(tmp_path, LLAMA | {field: value, "use_cache": True, "torch_dtype": "float32"})
    names = {"hidden_act": "activation is 'gelu'", "rope_parameters": "rope_type': 'yarn'"}
    for use in (lambda: minigpt.load(tmp_path), lambda: compose("train", [f"init.from={tmp_path}"])):
        with pytest.raises(UserFault, match=names.get(field, field)):
            use()


def test_what_is_missing_or_left_over_is_named(tmp_path):
    tensors = write_folder(tmp_path, CONFIGS["qwen3"])
    for change, sentence in (
        ({"model.layers.1.self_attn.q_norm.weight": None}, "has no model.layers.1.self_attn.q_norm.weight"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(84)}, "holds 'model.layers.0.self_attn.q_proj.bias'"),
        ({"model.embed_tokens.weight": torch.zeros(128, 48)}, r"is \(128, 48\), and .* it must be \(101, 48\)"),
        ({"model.norm.weight": torch.full((48,), torch.nan)}, "non-finite"),
    ):
        changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(UserFault, match=sentence):
            minigpt.load(tmp_path)


def test_a_folder_without_a_tokenizer_loads_and_says_what_is_missing(tmp_path):
    write_folder(tmp_path, LLAMA)
    gpt = minigpt.load(tmp_path)
    assert "101 tokens" in repr(gpt)
    for use in (lambda: gpt.tokenizer.encode("a"), lambda: gpt.tokenizer.vocab_size, lambda: gpt.loss("abc")):
        with pytest.raises(UserFault, match=r"has no tokenizer\.json"):
            use()
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(UserFault, match="can't be used as a tokenizer"):
        minigpt.load(tmp_path).generate("a")


def test_the_architecture_is_inherited_and_what_is_typed_is_checked(tmp_path):
    write_folder(tmp_path, CONFIGS["qwen3 tied"])
    config = compose("train", [f"init.from={tmp_path}", "tokenizer=byte", "model.block_size=16", "batch_tokens=64"])
    model = config.model
    assert (model.n_layer, model.n_kv_head, model.head_dim, model.n_hidden) == (2, 2, 14, 77)
    assert (model.norm, model.qk_norm, model.bias, model.tied) == ("rmsnorm", "rmsnorm", "attention", True)
    assert (model.rope_theta, model.block_size, config.tokenizer.name) == (500.0, 16, "byte")
    with pytest.raises(UserFault, match=r"model\.n_kv_head=3 does not fit .* whose weights have model\.n_kv_head=2"):
        compose("train", [f"init.from={tmp_path}", "model.n_kv_head=3"])


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_training_goes_on_from_a_folder_with_a_smaller_context(run, tmp_path, name):
    config = CONFIGS[name] | {"vocab_size": 300}
    write_folder(tmp_path / "theirs", config)
    own = [each for each in run.arguments() if not each.startswith("model")]
    arguments = [*own, f"init.from={tmp_path / 'theirs'}", "model.block_size=16", "trainer.max_steps=1"]
    from minigpt.training.run import train

    assert train(compose("train", arguments)) == 0
    gpt = minigpt.load(run.path)
    assert gpt.model.vocab_size == 257
    assert gpt.model.config.block_size == 16
    assert gpt.generate("how", max_new_tokens=3) is not None
    write_folder(tmp_path / "small", CONFIGS[name])
    small = [each for each in arguments if not each.startswith(("init.from", "run.dir"))]
    with pytest.raises(UserFault, match="its weights do not know the tokens of tokenizer=byte"):
        train(compose("train", [*small, f"init.from={tmp_path / 'small'}", f"run.dir={tmp_path / 'other'}"]))
    for made in (["tokenizer=bpe", "tokenizer.vocab_size=260"], ["tokenizer=char"]):
        with pytest.raises(UserFault, match="has no tokenizer, and its weights do not know the tokens of tokenizer="):
            train(compose("train", [*arguments, *made, f"run.dir={tmp_path / 'other'}"]))


# --- nanoGPT ---


def write_nanogpt(path: Path, *, bias: bool = True, compiled: bool = False) -> dict[str, torch.Tensor]:
    """A ckpt.pt as nanoGPT's train.py saves it; return its weights with GPT-2's names and layout."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 19, "bias": bias}
    model = GPT(ModelConfig(**sizes, activation="gelu"), 65)
    names = {"token_embedding": "wte", "position_embedding": "wpe", "final_norm": "ln_f", "blocks": "h"}
    names |= {"norm_1": "ln_1", "norm_2": "ln_2", "attention": "attn", "qkv": "c_attn", "up": "c_fc", "down": "c_proj"}
    state = {}
    for name, tensor in model.state_dict().items():
        with torch.no_grad():
            tensor += torch.randn_like(tensor) * 0.1
        theirs = ".".join(names.get(part, part) for part in name.replace("attention.out", "attn.c_proj").split("."))
        state["transformer." + theirs] = tensor[:65] if name == "token_embedding.weight" else tensor
    state["lm_head.weight"] = state["transformer.wte.weight"]
    prefix = "_orig_mod." if compiled else ""
    checkpoint = {
        "model": {prefix + name: tensor for name, tensor in state.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(5.0)}}, "param_groups": [{"lr": 6e-4, "betas": (0.9, 0.95)}]},
        "model_args": sizes | {"vocab_size": 65, "dropout": 0.2},
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.47),
        "config": {"out_dir": "out", "compile": True, "init_from": "scratch"},
    }
    torch.save(checkpoint, path)
    turned = re.compile(r".*(attn|mlp)\.c_\w+\.weight")
    return {name: tensor.T if turned.match(name) else tensor for name, tensor in state.items()}


@pytest.mark.parametrize(("bias", "compiled"), [(True, False), (False, True)])
def test_nanogpts_checkpoint_gives_its_logits_and_its_text(tmp_path, bias, compiled):
    weights = write_nanogpt(tmp_path / "ckpt.pt", bias=bias, compiled=compiled)
    characters = [chr(33 + number) for number in range(65)]
    gpt = minigpt.load(tmp_path / "ckpt.pt")
    sizes = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "activation_function": "gelu"}
    with torch.inference_mode():
        found, wanted = gpt.model(TOKENS[None, :19] % 65)[0], logits(sizes, weights, TOKENS[:19] % 65)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    with pytest.raises(UserFault, match=r"copy nanoGPT's data/\.\.\./meta\.pkl beside it"):
        gpt.tokenizer.encode("a")
    meta = {"vocab_size": 65, "itos": dict(enumerate(characters)), "stoi": {c: n for n, c in enumerate(characters)}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta))
    gpt = minigpt.load(tmp_path / "ckpt.pt")
    assert gpt.tokenizer.encode("!#a") == [0, 2, 64]
    assert len(gpt.generate("!", max_new_tokens=5)) == 5
    config = compose("train", [f"init.from={tmp_path / 'ckpt.pt'}", "batch_tokens=190"])
    assert (config.model.n_embd, config.model.bias, config.model.activation) == (24, bias, "gelu")


@pytest.mark.parametrize("protocol", [2, 5])
def test_a_pickle_is_read_and_never_run(tmp_path, protocol):
    marker = tmp_path / "ran"
    write_nanogpt(tmp_path / "ckpt.pt")
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": {0: "a"}, "more": Payload(marker)}, protocol))
    with pytest.raises(UserFault, match=r"is not nanoGPT's meta\.pkl"):
        minigpt.load(tmp_path / "ckpt.pt").tokenizer.encode("a")
    content = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    torch.save(content | {"config": Payload(marker)}, tmp_path / "ckpt.pt")
    with pytest.raises(UserFault, match=r"is not nanoGPT's ckpt\.pt"):
        minigpt.load(tmp_path / "ckpt.pt")
    assert not marker.exists()


def test_a_wrong_meta_pkl_and_a_damaged_checkpoint_are_named(tmp_path):
    path = tmp_path / "ckpt.pt"
    write_nanogpt(path)
    for itos in ({0: "a", "x": "b"}, {0: "\ud800", 1: "?"}, {0: "a", 1: "a"}, {0: "ab"}, {"itos": 5}):
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": itos}))
        with pytest.raises(UserFault, match=r"meta\.pkl"):
            minigpt.load(path).tokenizer.encode("a")
    content = torch.load(path, weights_only=True)
    content["model_args"]["n_layer"] = 9
    torch.save(content, path)
    with pytest.raises(UserFault, match=r"has no transformer\.h\.2"):
        minigpt.load(path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UserFault, match="is a file"):
        minigpt.load(path)


# --- tokenizers of folders ---


def pieces(merges: list[list[str]], end: int, **changes: object) -> dict:
    """A tokenizer.json in our own order of bytes."""
    ids = dict(CHARACTER_TO_BYTE)
    for first, second in merges:
        ids.setdefault(first + second, len(ids))
    added = learned()["added_tokens"][0] | {"id": end}
    model = learned()["model"] | {"vocab": ids | {END_OF_TEXT: end}, "merges": merges} | changes
    return learned() | {"model": model, "added_tokens": [added]}


PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BEGINS = processors.TemplateProcessing(f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 257)])
BEGIN = json.loads(BEGINS.__getstate__())


def folder(place: Path, content: dict) -> Path:
    write_folder(place, LLAMA | {"vocab_size": 400})
    (place / "tokenizer.json").write_text(json.dumps(content))
    return place


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (lambda: learned(first=True), "file"),
        (lambda: learned(), "file"),
        (lambda: pieces([["a", "b"]], 257), "bpe"),
        (lambda: pieces([["a", "b"]], 319), "file"),
        (lambda: tokenizer_json(MARKED_BPE), "bpe"),
        (lambda: pieces([], 256), "bpe"),
        (lambda: pieces([["b", "c"], ["a", "bc"], ["a", "b"]], 259), "bpe"),
        (lambda: pieces([["a", "b"]], 257) | {"pre_tokenizer": PREFIX}, "file"),
        (lambda: pieces([["a", "b"]], 257) | {"post_processor": BEGIN}, "file"),
        (lambda: pieces([["a", "b"], ["b", "c"], ["a", "bc"]], 259), "file"),  # merged in another order than numbered
    ],
)
def test_a_folders_tokenizer_gives_the_ids_of_its_file(tmp_path, content, name):
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content()))
    ours = minigpt.load(folder(tmp_path, content())).tokenizer
    assert (ours.name, ours.eot) == (name, theirs.token_to_id(END_OF_TEXT))
    for text in ("how much wood", "abc ab  chuck", "é 中 🙂", MARKS):
        assert [*ours.start, *ours.encode(text)] == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text


def test_gpt2_is_known_by_its_merges_alone(tmp_path, monkeypatch):
    merges = learned()["model"]["merges"]
    file = "\n".join(["#version: 0.2", *map(" ".join, merges), ""])
    monkeypatch.setattr("minigpt.imported_models.VOCAB_SHA256", hashlib.sha256(file.encode()).hexdigest())
    assert minigpt.load(folder(tmp_path, learned())).tokenizer.name == "gpt2"
