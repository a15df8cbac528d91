"""Other programs' models: Hugging Face folders and nanoGPT's ckpt.pt give their logits, train on, and are checked."""

import contextlib
import hashlib
import itertools
import json
import pickle
import random
import time
import zipfile
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import save_file

import minigpt
from minigpt.checkpoint.folder import list_checkpoints
from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.config.plain_pickle import Call, read_pickle
from minigpt.config.schema import ModelConfig
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE
from minigpt.data.tokenizers.scheme import END_OF_TEXT
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from tests.export.reference import CONFIGS, LLAMA, learned, logits, write_folder

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
        ("attn_logit_softcapping", 30.0),
        ("sliding_window_pattern", 6),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"bits": 4}),
        ("hidden_act", "gelu"),
        ("model_type", "gemma3"),
        ("auto_map", {"AutoModel": "mine.Model"}),
    ],
)
def test_a_field_that_changes_results_is_refused_by_name(tmp_path, field, value):
    write_folder(tmp_path, LLAMA | {field: value, "use_cache": True, "torch_dtype": "float32"})
    with pytest.raises(UserFault, match=field if field != "hidden_act" else "activation is 'gelu'"):
        minigpt.load(tmp_path)
    with pytest.raises(UserFault, match=field if field != "hidden_act" else "activation is 'gelu'"):
        compose("train", [f"init.from={tmp_path}"])


def test_no_value_of_a_wrong_kind_ends_in_a_traceback(tmp_path):
    write_folder(tmp_path, LLAMA)
    uses = (lambda: minigpt.load(tmp_path), lambda: compose("train", [f"init.from={tmp_path}", "tokenizer=byte"]))
    fields = [*LLAMA, "layer_types", "hidden_act", "rope_scaling", "head_dim", "tie_word_embeddings"]
    values = [[], {}, 5, "x", -1, 1e400, [5], None, True]
    wrong = []
    for field, value, use in itertools.product(fields, values, uses):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | {field: value}))
        try:
            use()
        except UserFault:
            pass
        except Exception as error:
            wrong.append(f"{field}={value!r}: {error!r}")
    assert not wrong


@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic"])
def test_another_scaling_of_the_rotation_is_refused_by_name(tmp_path, kind):
    write_folder(tmp_path, LLAMA | {"rope_scaling": {"type": kind, "factor": 2.0}, "rope_parameters": None})
    with pytest.raises(UserFault, match=f"rope_type='{kind}' is not known"):
        minigpt.load(tmp_path)


def test_what_is_missing_or_left_over_is_named(tmp_path):
    tensors = write_folder(tmp_path, CONFIGS["qwen3"])
    for change, sentence in (
        ({"model.layers.1.self_attn.q_norm.weight": None}, "has no model.layers.1.self_attn.q_norm.weight"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(84)}, "holds 'model.layers.0.self_attn.q_proj.bias'"),
        ({"model.embed_tokens.weight": torch.zeros(128, 48)}, r"is \(128, 48\) there, \(101, 48\) here"),
        ({"model.norm.weight": torch.full((48,), torch.nan)}, "non-finite"),
        ({"model.norm.weight": torch.ones(48, dtype=torch.int32)}, "as torch.int32"),
    ):
        changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(UserFault, match=sentence):
            minigpt.load(tmp_path)


def test_pickled_weights_are_not_read_and_damaged_files_named(tmp_path):
    write_folder(tmp_path, LLAMA)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x02" + bytes(100))
    with pytest.raises(UserFault, match="no usable safetensors file"):
        minigpt.load(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserFault, match="pickle, which could run any code"):
        minigpt.load(tmp_path)


def test_a_folder_without_a_tokenizer_loads_and_says_what_is_missing(tmp_path):
    write_folder(tmp_path, LLAMA)
    gpt = minigpt.load(tmp_path)
    for use in (lambda: gpt.tokenizer.encode("a"), lambda: gpt.tokenizer.vocab_size, lambda: gpt.loss("abc")):
        with pytest.raises(UserFault, match=r"has no tokenizer\.json"):
            use()
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(UserFault, match="is not a tokenizer"):
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


def test_the_same_architecture_in_other_words_fits(tmp_path):
    config = {key: value for key, value in LLAMA.items() if key != "head_dim"}
    write_folder(tmp_path, config | {"num_key_value_heads": 6, "intermediate_size": 128})
    same = ["model.bias=false", "model.n_kv_head=0", "model.head_dim=8", "model.n_hidden=0"]
    typed = [f"init.from={tmp_path}", "tokenizer=byte", "model.block_size=16", "batch_tokens=64"]
    assert compose("train", [*typed, *same]).model.n_hidden == 0
    for other in ("model.bias=qkv", "model.n_kv_head=3", "model.head_dim=16", "model.n_hidden=160"):
        with pytest.raises(UserFault, match=f"{other[:10]}.* does not fit"):
            compose("train", [*typed, other])


def test_keys_and_values_of_other_shapes_are_not_stacked(tmp_path):
    tensors = write_folder(tmp_path, LLAMA)
    query, key = (f"model.layers.0.self_attn.{each}_proj.weight" for each in "qk")
    tensors[query], tensors[key] = tensors[key], tensors[query]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserFault, match=r"k_proj\.weight and .*v_proj\.weight are not of the same shape"):
        minigpt.load(tmp_path)


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
    with pytest.raises(UserFault, match="know 101 tokens, and this data has a byte tokenizer of 257"):
        train(compose("train", [*small, f"init.from={tmp_path / 'small'}", f"run.dir={tmp_path / 'other'}"]))


# --- nanoGPT ---


def write_nanogpt(path: Path, *, bias: bool = True, compiled: bool = False) -> GPT:
    """A ckpt.pt as nanoGPT's train.py saves it; return a model of ours with the same weights."""
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
    return model.eval()


@pytest.mark.parametrize(("bias", "compiled"), [(True, False), (False, True)])
def test_nanogpts_checkpoint_gives_its_logits_and_its_text(tmp_path, bias, compiled):
    model = write_nanogpt(tmp_path / "ckpt.pt", bias=bias, compiled=compiled)
    characters = [chr(33 + number) for number in range(65)]
    gpt = minigpt.load(tmp_path / "ckpt.pt")
    with torch.inference_mode():
        assert torch.equal(gpt.model(TOKENS[None, :19] % 65), model(TOKENS[None, :19] % 65))
    with pytest.raises(UserFault, match=r"copy nanoGPT's data/\.\.\./meta\.pkl beside it"):
        gpt.tokenizer.encode("a")
    meta = {"vocab_size": 65, "itos": dict(enumerate(characters)), "stoi": {c: n for n, c in enumerate(characters)}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta))
    gpt = minigpt.load(tmp_path / "ckpt.pt")
    assert gpt.tokenizer.encode("!#a") == [0, 2, 64]
    assert len(gpt.generate("!", max_new_tokens=5)) == 5
    config = compose("train", [f"init.from={tmp_path / 'ckpt.pt'}", "batch_tokens=190"])
    assert (config.model.n_embd, config.model.bias, config.model.activation) == (24, bias, "gelu")


def test_a_pickle_is_read_and_never_run(tmp_path):
    marker = tmp_path / "ran"
    plain = {"a": [1, -2, 300, 1 << 70, 2.5, None, True], "b": ("x", {}), 3: {"é": ()}}
    for protocol in range(2, 6):
        assert read_pickle(pickle.dumps(plain, protocol), "it") == plain

    class Payload:
        def __reduce__(self):
            return Path.touch, (marker,)

    for protocol in range(2, 6):
        found = read_pickle(pickle.dumps({"itos": Payload()}, protocol), "it")["itos"]
        assert isinstance(found, Call)
        for name in ("meta.pkl", "ckpt.pt"):
            write_nanogpt(tmp_path / "ckpt.pt")
            (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": Payload()}, protocol))
            if name == "ckpt.pt":
                torch.save({"model_args": {"n_layer": Payload()}, "model": {}}, tmp_path / name)
            with pytest.raises(UserFault):
                minigpt.load(tmp_path / "ckpt.pt").tokenizer.encode("a")
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b".", b"\x80\x04.", b"(((", b"\x80\x02}q\x00(X\xff", b"\x80\x02NNs.", b"Q."])
def test_what_is_no_pickle_is_said_to_be_none(content):
    with pytest.raises(UserFault, match="no pickle of plain values"):
        read_pickle(content, "it")


def test_lying_sizes_in_a_checkpoint_of_nanogpt_are_refused(tmp_path):
    write_nanogpt(tmp_path / "ckpt.pt")
    content = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    content["model_args"]["n_layer"] = 9000
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(UserFault, match=r"has no transformer\.h\.2"):
        minigpt.load(tmp_path / "ckpt.pt")


def rewritten(path: Path, pickled: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> None:
    """Write a ckpt.pt anew, with another pickle or compressed."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, pickled if pickled is not None and name.endswith("data.pkl") else content)


def doubled(times: int) -> bytes:
    """A pickle's tuple of 2 ** times numbers, in a few bytes."""
    return b"K\x01" + b"q\x00h\x00\x86" * times


def test_a_checkpoint_of_nanogpt_costs_no_more_than_its_bytes(tmp_path):
    path = tmp_path / "ckpt.pt"
    write_nanogpt(path)
    rewritten(path, bytes(100_000_000), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1_000_000
    began = time.process_time()
    with pytest.raises(UserFault, match=r"is not nanoGPT's ckpt\.pt"):
        minigpt.load(path)
    for pickled in (
        b"\x80\x02}(U\x0amodel_args}U\x07n_layer" + doubled(40) + b"sU\x05model}u.",
        b"\x80\x02}(U\x0amodel_args}U\x05model}" + doubled(40) + b"K\x01su.",
    ):
        write_nanogpt(path)
        rewritten(path, pickled)
        with pytest.raises(UserFault, match=r"model_args are not nanoGPT's|a key that is no text"):
            minigpt.load(path)
    write_nanogpt(path)
    content = torch.load(path, weights_only=True)
    content["model"]["transformer.wte.weight"] = torch.zeros(1).as_strided((300_000, 200_000), (0, 0))
    torch.save(content, path)
    with pytest.raises(UserFault, match="its weights can't be read"):
        minigpt.load(path)
    assert time.process_time() - began < 2


def test_any_mutant_of_a_checkpoint_is_the_model_or_a_sentence(tmp_path):
    path, dice = tmp_path / "ckpt.pt", random.Random(1)
    write_nanogpt(path)
    whole = path.read_bytes()
    for _ in range(100):
        mutant = bytearray(whole)
        for _ in range(dice.choice([1, 1, 3])):  # most of the names and sizes are at both ends
            place = dice.choice([dice.randrange(len(whole)), -dice.randrange(1, 1500), dice.randrange(3000)])
            mutant[place] = dice.randrange(256)
        path.write_bytes(mutant[: dice.choice([None, None, None, dice.randrange(len(whole))])])
        with contextlib.suppress(UserFault):
            minigpt.load(path)
    write_nanogpt(path)
    for itos in ({0: "a", "x": "b"}, {0: "\ud800", 1: "?"}, {0: "a", 1: "a"}, {0: "ab"}, {"itos": 5}):
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": itos}))
        with pytest.raises(UserFault, match=r"meta\.pkl"):
            minigpt.load(path).tokenizer.encode("a")


def test_our_own_checkpoints_are_none_of_these(run):
    checkpoint = list_checkpoints(run("trainer.max_steps=1") / "checkpoints")[0]
    (checkpoint / "MANIFEST.json").unlink()
    with pytest.raises(UserFault, match="no checkpoint in it"):
        load_checkpoint(checkpoint)


# --- tokenizers of folders ---


def pieces(merges: list[list[str]], end: int, **changes: object) -> dict:
    """A tokenizer.json in our own order of bytes."""
    ids = dict(CHARACTER_TO_BYTE)
    for first, second in merges:
        ids.setdefault(first + second, len(ids))
    added = learned()["added_tokens"][0] | {"id": end}
    model = learned()["model"] | {"vocab": ids | {END_OF_TEXT: end}, "merges": merges} | changes
    return learned() | {"model": model, "added_tokens": [added]}


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
        (lambda: pieces([], 256), "bpe"),
    ],
)
def test_a_folders_tokenizer_gives_the_ids_of_its_file(tmp_path, content, name):
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content()))
    ours = minigpt.load(folder(tmp_path, content())).tokenizer
    assert (ours.name, ours.eot) == (name, theirs.token_to_id(END_OF_TEXT))
    for text in ("how much wood", "abc ab  chuck", "é 中 🙂"):
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: pieces([["a", "b"], ["b", "c"], ["a", "bc"]], 259), "in another way than its merges say"),
        (lambda: pieces([["a", "b"]], 257, dropout=0.5), "its dropout=0.5 changes tokens"),
        (lambda: {"model": {"type": "Unigram"}}, "is not a tokenizer.json in Hugging Face's format"),
        (lambda: learned(model=[]), "is not a tokenizer.json in Hugging Face's format"),
    ],
)
def test_a_tokenizer_that_gives_other_ids_here_is_refused(run, tmp_path, content, reason):
    place = folder(tmp_path / "theirs", content())
    with pytest.raises(UserFault, match=reason):
        minigpt.load(place).tokenizer.encode("abc")
    from minigpt.training.run import train

    own = [each for each in run.arguments() if not each.startswith(("model", "tokenizer"))]
    with pytest.raises(UserFault, match=reason):
        train(compose("train", [*own, f"init.from={place}", "model.block_size=16"]))
    assert not (run.path / "checkpoints").exists()


def test_weights_keep_the_tokenizer_of_their_folder(run, tmp_path):
    place = folder(tmp_path / "theirs", learned(first=True))
    own = [each for each in run.arguments() if not each.startswith(("model", "tokenizer"))]
    from minigpt.training.run import train

    assert train(compose("train", [*own, f"init.from={place}", "model.block_size=16", "trainer.max_steps=1"])) == 0
    assert minigpt.load(run.path).tokenizer.hash == minigpt.load(place).tokenizer.hash


def test_a_file_larger_than_any_that_is_read_is_named(tmp_path):
    place = folder(tmp_path, learned())
    with open(place / "tokenizer.json", "ab") as file:
        file.truncate(600 << 20)  # sparse
    with pytest.raises(UserFault, match=r"tokenizer\.json is 629,145,600 bytes; at most"):
        compose("train", [f"init.from={place}"])
    with pytest.raises(UserFault, match=r"tokenizer\.json is 629,145,600 bytes; at most"):
        minigpt.load(place).tokenizer.encode("a")
    labels = {"id2label": {str(number): f"LABEL_{number}" for number in range(300_000)}}
    (place / "config.json").write_text(json.dumps(LLAMA | labels))
    with pytest.raises(UserFault, match=r"config\.json is .* bytes; at most"):
        minigpt.load(place)


def test_gpt2_is_known_by_its_merges_alone(tmp_path, monkeypatch):
    merges = learned()["model"]["merges"]
    listed = "\n".join(map(" ".join, merges))
    monkeypatch.setattr(
        "minigpt.config.foreign.VOCAB_SHA256", hashlib.sha256(f"#version: 0.2\n{listed}\n".encode()).hexdigest()
    )
    assert minigpt.load(folder(tmp_path, learned())).tokenizer.name == "gpt2"
