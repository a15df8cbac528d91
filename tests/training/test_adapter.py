"""adapter=lora: what a run learns, saves and continues; what others read of it."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import minigpt
from minigpt.checkpoint.adapters import base_hash
from minigpt.checkpoint.folder import verify
from minigpt.checkpoint.load import load_checkpoint, load_with_adapter
from minigpt.config.commands import ServeConfig
from minigpt.config.compose import compose
from minigpt.evaluation.compare import open_run
from minigpt.export import export
from minigpt.faults import UserFault
from minigpt.serving.engine import load_models
from minigpt.training.step import LanguageModel
from minigpt.verify import compare_runs

BLOCK = ["model.attention=rotary", "model.activation=swiglu", "model.norm=rmsnorm", "model.bias=none"]
BLOCK += ["model.qk_norm=rmsnorm", "model.n_kv_head=1"]
LORA = [*BLOCK, "adapter=lora", "adapter.rank=2", "optimizer.lr=0.1", "trainer.max_steps=8", "model.dropout=0.1"]
EACH = ["checkpoint.every_steps=1", "checkpoint.keep_last=9"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run):
    """A run with Qwen's block, and one with an adapter over it that saves each step."""
    run = new_run(tmp_path_factory.mktemp("adapters"))
    run(*BLOCK, "optimizer.lr=0.05").rename(run.folder / "base")
    run(f"init.from={run.folder / 'base'}", *LORA, *EACH).rename(run.folder / "tuned")
    return run


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-?????????"))


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([[10, 40, 90, 33, 104]]))


def test_only_the_adapter_learns_and_is_saved_beside_the_model_as_it_was(place):
    checkpoint = verify(newest(place.folder / "tuned")) and newest(place.folder / "tuned")
    names = ("model.safetensors", "adapter_model.safetensors", "optimizer.safetensors")
    model, adapter, averages = (load_file(checkpoint / name) for name in names)
    below = load_file(newest(place.folder / "base") / "model.safetensors")
    assert all(torch.equal(tensor, below[name]) for name, tensor in model.items())
    assert model.keys() == below.keys()
    assert {shape for name, tensor in averages.items() if (shape := tuple(tensor.shape))} == {
        tuple(tensor.shape) for tensor in adapter.values()
    }
    assert len(averages) == 3 * len(adapter)  # step and two averages of each
    assert all(name.startswith("base_model.model.model.layers.0.") for name in adapter)
    rows = [json.loads(line) for line in (place.folder / "tuned" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val/loss"] < rows[1]["val/loss"] - 0.1


def test_from_any_saved_step_the_run_ends_with_the_same_bytes(place):
    tuned = place.folder / "tuned"
    for step in (1, 4, 7):
        shutil.copytree(tuned, place.path)
        for later in range(step + 1, 9):
            shutil.rmtree(place.path / "checkpoints" / f"step-{later:09d}")
        place(f"init.from={place.folder / 'base'}", *LORA, *EACH)
        assert compare_runs(tuned, place.path)[1] == [], f"from step {step}"
        shutil.rmtree(place.path)


def test_cut_in_the_middle_of_a_step_and_without_its_base_the_run_ends_with_the_same_bytes(place, monkeypatch):
    class Cut(BaseException):
        pass

    def training_step(self, batch, batch_idx):
        if batch_idx == 4:
            raise Cut
        return real(self, batch, batch_idx)

    real, base = LanguageModel.training_step, place.folder / "base"
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", training_step)
        with pytest.raises(Cut):
            place(f"init.from={base}", *LORA, "checkpoint.every_steps=3")
    base.rename(place.folder / "elsewhere")
    place(f"init.from={base}", *LORA, *EACH)
    (place.folder / "elsewhere").rename(base)
    assert compare_runs(place.folder / "tuned", place.path)[1] == []
    with pytest.raises(UserFault, match=r"adapter.rank: 2 -> 3"):
        place(f"init.from={base}", *LORA, "adapter.rank=3", "trainer.max_steps=9")
    shutil.rmtree(place.path)


@pytest.mark.parametrize("more", [[], ["adapter=lora"]], ids=["whole", "adapter"])
def test_a_run_whose_base_with_a_learned_tokenizer_is_gone_goes_on(new_run, tmp_path, monkeypatch, capsys, more):
    run, bpe = new_run(tmp_path), ["tokenizer=bpe", "tokenizer.vocab_size=270"]
    run(*bpe, "trainer.max_steps=1").rename(tmp_path / "base")
    settings = [*bpe, *more, f"init.from={tmp_path / 'base'}"]
    straight = run(*settings, "trainer.max_steps=2", "checkpoint.every_steps=1").rename(tmp_path / "straight")
    shutil.copytree(straight, run.path)
    shutil.rmtree(newest(run.path))
    (tmp_path / "base").rename(tmp_path / "gone")
    run(*settings, "trainer.max_steps=2", "checkpoint.every_steps=1")
    assert compare_runs(straight, run.path)[1] == []
    typed = ["data=text", f"data.source={tmp_path / 'text.txt'}", *more, f"init.from={tmp_path / 'base'}"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserFault, match="does not exist"):
        compose("train", typed)
    monkeypatch.setattr("minigpt.config.check.default_run_dir", lambda config: str(run.path))
    assert compose("train", typed).model.n_layer > 1  # without run.dir= the architecture can't be known
    assert compose("train", [*typed, f"run.dir={run.path}"]).model.n_layer == 1
    assert f"Note: run.dir='{run.path}' brings model.n_layer=1" in capsys.readouterr().err


def test_a_run_with_an_adapter_is_read_merged_everywhere(place):
    base, tuned = place.folder / "base", place.folder / "tuned"
    alone, over = load_checkpoint(tuned), load_with_adapter(str(tuned), "best", [load_checkpoint(base)])
    assert torch.equal(logits(alone.model), logits(over.model))
    assert (logits(alone.model) - logits(load_checkpoint(base).model)).abs().max() > 0.05
    best = min(json.loads(line).get("val/loss", 9) for line in (tuned / "metrics.jsonl").read_text().splitlines())
    text = (place.folder / "text.txt").read_text()
    assert minigpt.load(tuned).loss(text[len(text) * 9 // 10 :]) == pytest.approx(best, rel=0.05)
    assert len({open_run(str(each), "latest").weights_sha256 for each in (base, tuned)}) == 2
    place(f"init.from={tuned}", *BLOCK, "trainer.max_steps=1", "optimizer.lr=1e-12")
    assert (logits(load_checkpoint(place.path).model) - logits(alone.model)).abs().max() < 1e-6
    shutil.rmtree(place.path)


def test_an_adapter_is_refused_on_another_base_and_where_there_is_none(place, tmp_path):
    base, tuned = place.folder / "base", place.folder / "tuned"
    with pytest.raises(UserFault, match=r"lies on another model: .* Give as checkpoint="):
        load_with_adapter(str(tuned), "best", [load_checkpoint(tuned)])
    for nothing in (base, base.parent, place.folder / "text.txt"):
        with pytest.raises(UserFault, match=r"adapter=.* holds no adapter"):
            load_with_adapter(str(nothing), "best", [load_checkpoint(base)])
    found = load_with_adapter(str(tuned), "best", [load_checkpoint(tuned), load_checkpoint(base)])
    assert torch.equal(logits(found.model), logits(load_checkpoint(tuned).model))
    copy = shutil.copytree(newest(tuned), tmp_path / "copy")
    (copy / "adapter_model.safetensors").unlink()
    with pytest.raises(UserFault, match="adapter_model"):
        load_checkpoint(copy)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_server_lists_a_base_and_its_adapters(place, precision):
    base, tuned = place.folder / "base", place.folder / "tuned"
    options = {"device": "cpu", "compile": "off", "rows": 2, "precision": precision}
    config = ServeConfig(checkpoint=[str(base)], adapter=[str(tuned), str(tuned)], **options)
    served = load_models(config)
    assert [each.name for each in served] == ["base", "tuned", "tuned-2"]
    models = [each.loaded.model for each in served]
    alone = load_checkpoint(tuned).model
    assert torch.equal(logits(models[1]), logits(alone.bfloat16() if precision == "bf16" else alone))
    assert models[1].token_embedding.weight is models[0].token_embedding.weight


def test_an_adapter_that_learned_conversations_is_put_on_a_model_without_their_tokens(place, tmp_path):
    talks = [{"prompt": f"{n}", "completion": "b"} for n in range(200)]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in talks))
    base, source = place.folder / "base", f"data.source={tmp_path / 'talks.jsonl'}"
    talking = place(f"init.from={base}", *LORA, "data=chat", source, "trainer.max_steps=2").rename(tmp_path / "talks")
    loaded = load_checkpoint(base)
    over = load_with_adapter(str(talking), "best", [loaded])
    assert over.tokenizer.vocab_size == loaded.tokenizer.vocab_size + 4
    assert torch.equal(logits(over.model), logits(load_checkpoint(talking).model))
    assert over.model.final_norm.weight is loaded.model.final_norm.weight
    folder = folder_of_peft(place, tmp_path, talking)
    with pytest.raises(UserFault, match=r"control tokens that the model lacks.* Give as adapter= the run"):
        load_with_adapter(str(folder), "best", [loaded])
    export(compose("export", [f"checkpoint={base}", f"dir={tmp_path / 'hf'}"]), lambda line: None)
    with pytest.raises(UserFault, match="control tokens that the model lacks"):
        load_with_adapter(str(folder), "best", [load_checkpoint(tmp_path / "hf")])
    file = folder / "adapter_model.safetensors"  # as earlier versions wrote it, the model alone is compared
    save_file(load_file(file), file, metadata={"base_sha256": base_hash(loaded.model)})
    assert load_with_adapter(str(folder), "best", [loaded]).tokenizer.hash == loaded.tokenizer.hash


def folder_of_peft(place, tmp_path, run: Path | None = None, **changes) -> Path:
    """Only the two files that peft needs, without our manifest."""
    folder = tmp_path / "peft"
    folder.mkdir()
    origin = newest(run or place.folder / "tuned")
    config = json.loads((origin / "adapter_config.json").read_text()) | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shutil.copy(origin / "adapter_model.safetensors", folder)
    return folder


def test_a_folder_of_peft_is_put_on_with_its_own_scale(place, tmp_path):
    loaded = load_checkpoint(place.folder / "base")
    tuned = load_checkpoint(place.folder / "tuned", "latest")
    folder = folder_of_peft(place, tmp_path, use_rslora=True, lora_alpha=16 / 2**0.5)
    assert (logits(load_with_adapter(str(folder), "best", [loaded]).model) - logits(tuned.model)).abs().max() < 1e-5
    tensors = load_file(folder / "adapter_model.safetensors")
    for label in ({"base_sha256": "\x1b[2J"}, None):  # what is no hash, and none, as peft writes it
        save_file(tensors, folder / "adapter_model.safetensors", metadata=label)
        assert (logits(load_with_adapter(str(folder), "best", [loaded]).model) - logits(tuned.model)).abs().max() < 1e-5
    with pytest.raises(UserFault, match="doesn't say on which model"):
        load_with_adapter(str(folder), "best", [loaded, loaded])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"r": 0}, "r=0"),
        ({"r": 3}, "the model needs"),
        ({"lora_alpha": None}, "lora_alpha=null"),
        ({"use_dora": True}, "use_dora=true is not known"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern="),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save="),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"bias": "all"}, "bias='all'"),
    ],
)
def test_what_is_no_plain_lora_is_refused_by_name(place, tmp_path, changes, says):
    folder = folder_of_peft(place, tmp_path, **changes)
    with pytest.raises(UserFault, match=says):
        load_with_adapter(str(folder), "best", [load_checkpoint(place.folder / "base")])


@pytest.mark.parametrize("fault", ["missing", "pickle", "nan", "stranger", "half", "garbage"])
def test_tensors_that_are_no_adapter_are_refused(place, tmp_path, fault):
    folder = folder_of_peft(place, tmp_path)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    if fault == "missing":
        file.unlink()
    elif fault == "pickle":
        file.rename(folder / "adapter_model.bin")
    elif fault == "garbage":
        file.write_bytes(b"garbage" * 9)
    else:
        tensors |= {"nan": {name: tensors[name] * torch.nan}, "stranger": {"other.weight": torch.ones(2)}}.get(
            fault, {}
        )
        save_file({each: tensor for each, tensor in tensors.items() if fault != "half" or each != name}, file)
    with pytest.raises(UserFault, match=r"can't be read|could run any code|not finite|no place for|needs|no usable"):
        load_with_adapter(str(folder), "best", [load_checkpoint(place.folder / "base")])


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["adapter=lora"], "init.from=RUN_OR_FOLDER"),
        (["adapter.rank=4"], "is for adapter=lora"),
        (["adapter=lora", "init.from=here", "trainer=fsdp", "trainer.devices=2"], "Use trainer=ddp"),
        (["adapter=lora", "init.from=here", "adapter.targets=q,v", "model=gpt2"], "some of qkv,out,up,down"),
        (["adapter=lora", "init.from=here", "adapter.targets=head"], "has no matrix 'head'"),
    ],
)
def test_settings_that_make_no_adapter_are_refused(tmp_path, monkeypatch, typed, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    with pytest.raises(UserFault, match=says):
        compose("train", typed)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_no_mutant_of_an_adapter_ends_in_a_traceback(place, tmp_path, name):
    folder, loaded = folder_of_peft(place, tmp_path), load_checkpoint(place.folder / "base")
    content, drawn, said = (folder / name).read_bytes(), random.Random(8), list[str]()
    words = [b"[", b"{", b"null", b"-1", b"1e999", b'"', b"true", b"\x00", b"\xff", b"9" * 30]
    for _ in range(150):
        first = drawn.randrange(min(len(content), 2500))
        cut = drawn.choice([0, 1, 3, 40])
        (folder / name).write_bytes(content[:first] + drawn.choice(words) + content[first + cut :])
        try:
            load_with_adapter(str(folder), "best", [loaded])
        except UserFault as fault:
            said.append(str(fault))
    assert len(said) > 50
    assert all(each.isprintable() for each in said)
