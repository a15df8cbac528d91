"""An adapter of ours beside peft itself, both ways. `make test-extras` installs it; else these are skipped."""

import pytest
import torch
from safetensors.torch import load_file

from minigpt.checkpoint.load import load_checkpoint, load_with_adapter
from minigpt.config.compose import compose
from minigpt.export import export
from tests.promises.test_models_in_and_out import SHAPES

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-extras")
peft = pytest.importorskip("peft", reason="peft is not installed: make test-extras")
TOKENS = torch.tensor([[5, 100, 0, 7, 7, 63, 64, 3]])


def exported(run, tmp_path, *settings: str):
    """A run, and what transformers reads of its export."""
    base = run(*settings, "trainer.max_steps=4", "optimizer.lr=0.05").rename(tmp_path / "base")
    export(compose("export", [f"checkpoint={base}", f"dir={tmp_path / 'hf'}"]), lambda line: None)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    return base, model.eval()


@torch.inference_mode()
def difference(ours, theirs) -> float:
    return float((ours(TOKENS) - theirs(TOKENS).logits).abs().max())


@pytest.mark.parametrize("targets", ["all", "qkv", "down,out"])
@pytest.mark.parametrize("shape", ["gpt2", "gpt2 without biases", "llama", "qwen2", "qwen3"])
def test_peft_puts_our_adapter_on_our_export(run, tmp_path, shape, targets):
    settings = [*SHAPES[shape], *(["tokenizer=byte"] if shape != "qwen2" else [])]
    base, model = exported(run, tmp_path, *settings)
    lora = ["adapter=lora", "adapter.rank=3", f"adapter.targets={targets}", "optimizer.lr=0.1"]
    tuned = run(*settings, f"init.from={base}", *lora)
    ours, checkpoint = load_checkpoint(tuned, "latest"), max((tuned / "checkpoints").glob("step-?????????"))
    assert difference(ours.model, model) > 1e-2
    theirs = peft.PeftModel.from_pretrained(model, str(checkpoint))
    names = {name.replace(".default", "") for name, _ in theirs.named_parameters() if ".lora_" in name}
    assert names == load_file(checkpoint / "adapter_model.safetensors").keys()
    assert difference(ours.model, theirs) <= 1e-5
    assert difference(ours.model, theirs.merge_and_unload()) <= 1e-5
    base_again = load_checkpoint(tmp_path / "hf")  # it has the base's hash
    over = load_with_adapter(str(checkpoint), "best", [base_again])
    assert difference(over.model, model) <= 1e-5


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize(
    ("shape", "targets"), [("gpt2", ["c_attn", "c_proj"]), ("qwen3", ["q_proj", "v_proj", "up_proj"])]
)
def test_we_put_an_adapter_of_peft_on(run, tmp_path, shape, targets, rslora):
    base, model = exported(run, tmp_path, *SHAPES[shape])
    config = peft.LoraConfig(r=5, lora_alpha=9, target_modules=targets, use_rslora=rslora, init_lora_weights=False)
    torch.manual_seed(1)
    theirs = peft.get_peft_model(model, config).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    ours = load_with_adapter(str(tmp_path / "adapter"), "best", [load_checkpoint(base)])
    assert difference(load_checkpoint(base).model, theirs) > 1e-2
    assert difference(ours.model, theirs) <= 1e-5
