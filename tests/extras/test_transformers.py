"""What we read and write beside transformers itself. `make test-extras` installs it; else these are skipped."""

import json

import pytest
import torch

import minigpt
from minigpt.config.compose import compose
from minigpt.export import export
from minigpt.formats.tokenizer_json import read_tokenizer
from minigpt.sampling.conversation import turn_of
from tests.promises.test_models_in_and_out import SHAPES
from tests.units.formats.reference import CHAT_TEMPLATES, CONFIGS, logits, write_chat_tokenizer, write_folder

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-extras")
TOKENS = torch.tensor([[5, 100, 0, 7, 7, 63, 64, 3, 99, 12, 50, 2, 2, 81, 40, 33, 71, 18, 9, 1, 77, 90, 25]])
MESSAGES = [
    {"role": "system", "content": " be  brief\n"},
    {"role": "user", "content": "wöuld chuck {{ 1 }}"},
    {"role": "assistant", "content": "how much "},
    {"role": "user", "content": "wood\n"},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_gives_the_logits_of_transformers(tmp_path, name, dtype):
    """And so does the reference that the core tests compare with."""
    tensors = write_folder(tmp_path, CONFIGS[name], dtype=dtype)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    with torch.inference_mode():
        expected = theirs.eval()(TOKENS).logits
        found = minigpt.load(tmp_path).model(TOKENS)
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-5
    assert float((logits(CONFIGS[name], tensors, TOKENS[0]) - expected[0]).abs().max()) <= 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_is_loaded_by_transformers(run, tmp_path, shape):
    run(*SHAPES[shape], "trainer.max_steps=2", "optimizer.lr=0.1")
    export(compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'out'}"]), lambda line: None)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    tokens = TOKENS[:, :8] % minigpt.load(run.path).model.vocab_size
    with torch.inference_mode():
        assert float((model.eval()(tokens).logits - minigpt.load(run.path).model(tokens)).abs().max()) <= 1e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = minigpt.load(run.path)
    text = "how much wood could a woodchuck chuck"
    assert tokenizer(text)["input_ids"] == ours.tokenizer.encode(text)
    assert tokenizer.eos_token_id == ours.tokenizer.eot


def test_the_chat_template_gives_the_tokens_that_we_read(run, tmp_path):
    rows = [json.dumps({"prompt": f"say {n}", "completion": f"it is {n}"}) for n in range(90)]
    (run.folder / "text.txt").with_suffix(".jsonl").write_text("\n".join(rows))
    run(*SHAPES["qwen3"], "data=chat", f"data.source={run.folder / 'text.jsonl'}", "trainer.max_steps=1")
    export(compose("export", [f"checkpoint={run.path}", f"dir={tmp_path / 'out'}"]), lambda line: None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert theirs == turn_of(minigpt.load(run.path).tokenizer, MESSAGES).tokens
    assert tokenizer.eos_token == "<|end|>"


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("name", CHAT_TEMPLATES)
def test_messages_for_another_programs_model_become_the_tokens_of_its_own_template(tmp_path, name, as_file):
    path = write_chat_tokenizer(tmp_path, CHAT_TEMPLATES[name], as_file=as_file)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for talk in (MESSAGES, MESSAGES[1:2]):
        turn = turn_of(read_tokenizer(path), talk)
        assert turn.tokens == theirs.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
        assert {7, theirs.convert_tokens_to_ids("<|im_end|>")} < turn.ends


def test_what_transformers_saved_is_read(tmp_path):
    """With its shards and its own config.json, which leaves fields out."""
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 101}
    config = transformers.Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=10)
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    with torch.inference_mode():
        assert float((minigpt.load(tmp_path).model(TOKENS) - theirs(TOKENS).logits).abs().max()) <= 1e-5
