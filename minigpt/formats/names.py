"""Other programs' names for the tensors of a model. Where we stack tensors by rows, they have several names."""

import re
from collections.abc import Mapping

GPT2_NAMES = {  # Hugging Face's gpt2, and nanoGPT
    "block": "transformer.h.{}.",
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "output": "lm_head",
}
LLAMA_NAMES = {  # and Qwen
    "block": "model.layers.{}.",
    "token_embedding": "model.embed_tokens",
    "norm_1": "input_layernorm",
    "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.out": "self_attn.o_proj",
    "norm_2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "final_norm": "model.norm",
    "output": "lm_head",
}
# GPT-2's matrices in Hugging Face's files are the transposes of ours.
TRANSPOSED = ("attention.qkv.weight", "attention.out.weight", "mlp.up.weight", "mlp.down.weight")


def other_names(name: str, names: Mapping[str, str]) -> list[str]:
    """Return the names that another program gives to one of our tensors, or to its stacked parts."""
    match = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+)\.(weight|bias)", re.sub(r"qk_norm\.([qk])_", r"\1_norm.", name))
    assert match is not None
    number, part, kind = match.groups()
    prefix = names["block"].format(number) if number else ""
    return [f"{prefix}{word}.{kind}" for word in names[part].split()]
