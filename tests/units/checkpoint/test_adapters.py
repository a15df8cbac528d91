"""Adapters in peft's layout: what is put on a model, and what is refused by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minigpt.checkpoint.load import load_checkpoint, load_with_adapter
from minigpt.faults import UserFault
from tests.promises.test_lora_and_grpo import BLOCK, SAVES, newest
from tests.promises.test_lora_and_grpo import LORA as TUNED

QWEN = ["model.qk_norm=rmsnorm", "model.n_kv_head=1"]
LORA = [*TUNED, *QWEN]


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run):
    """A run with Qwen's block, and one with an adapter over it that saves each step."""
    run = new_run(tmp_path_factory.mktemp("adapters"))
    run(*BLOCK, *QWEN, "optimizer.lr=0.05").rename(run.folder / "base")
    run(f"init.from={run.folder / 'base'}", *LORA, *SAVES).rename(run.folder / "tuned")
    return run


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([[10, 40, 90, 33, 104]]))


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
    with pytest.raises(UserFault, match=r"control tokens whose .* Give as adapter= the run"):
        load_with_adapter(str(folder_of_peft(talking, tmp_path)), "best", [loaded])
    again = place(f"init.from={talking}", *LORA, "data=chat", source, "trainer.max_steps=2").rename(tmp_path / "again")
    with_roles = load_with_adapter(str(folder_of_peft(again, again)), "best", [load_checkpoint(talking)])
    assert (logits(with_roles.model) - logits(load_checkpoint(again).model)).abs().max() < 1e-5


def folder_of_peft(run, tmp_path, **changes) -> Path:
    """Only the two files that peft needs, without our manifest."""
    folder = tmp_path / "peft"
    folder.mkdir()
    origin = newest(run)
    config = json.loads((origin / "adapter_config.json").read_text()) | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shutil.copy(origin / "adapter_model.safetensors", folder)
    return folder


def test_a_folder_of_peft_is_put_on_with_its_own_scale(place, tmp_path):
    loaded = load_checkpoint(place.folder / "base")
    tuned = load_checkpoint(place.folder / "tuned", "latest")
    folder = folder_of_peft(place.folder / "tuned", tmp_path, use_rslora=True, lora_alpha=16 / 2**0.5)
    assert (logits(load_with_adapter(str(folder), "best", [loaded]).model) - logits(tuned.model)).abs().max() < 1e-5
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(tensors, folder / "adapter_model.safetensors")  # without a hash, as peft writes it
    assert (logits(load_with_adapter(str(folder), "best", [loaded]).model) - logits(tuned.model)).abs().max() < 1e-5
    with pytest.raises(UserFault, match="of no model it names"):
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
    folder = folder_of_peft(place.folder / "tuned", tmp_path, **changes)
    with pytest.raises(UserFault, match=says):
        load_with_adapter(str(folder), "best", [load_checkpoint(place.folder / "base")])


@pytest.mark.parametrize("fault", ["pickle", "nan", "strange", "half", "garbage"])
def test_tensors_that_are_no_adapter_are_refused(place, tmp_path, fault):
    folder = folder_of_peft(place.folder / "tuned", tmp_path)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    if fault == "pickle":
        file.rename(folder / "adapter_model.bin")
    elif fault == "garbage":
        file.write_bytes(b"garbage" * 9)
    else:
        tensors |= {"nan": {name: tensors[name] * torch.nan}, "strange": {"other.weight": torch.ones(2)}}.get(fault, {})
        save_file({each: tensor for each, tensor in tensors.items() if fault != "half" or each != name}, file)
    with pytest.raises(UserFault, match=r"could run any code|not finite|holds|needs|no usable"):
        load_with_adapter(str(folder), "best", [load_checkpoint(place.folder / "base")])
