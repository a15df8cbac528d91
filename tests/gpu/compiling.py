"""Compile the loss of a model for a GPU that is not there: Dynamo, Inductor and Triton, down to machine code.

    .venv-gpu/python tests/gpu/compiling.py "model=gpt2 key=value ..." ...

The last line is JSON, for each list of settings: its Triton kernels and its calls of libraries, forward and backward,
and whether each Triton kernel was assembled for this card. A break in the graph is an error.
"""

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
import torch._inductor.config
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime.runtime_utils import cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode

from minigpt.attention.masks import Documents
from minigpt.config.compose import compose
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, plain_loss

MICRO_BATCH, VOCABULARY = 4, 50257
KERNEL = re.compile(r"^ +(?:\w+ = )?triton_\w+\.run\(", re.MULTILINE)
LIBRARY = re.compile(r"^ +(?:\w+ = )?(?:extern_kernels|torch\.ops)\.\w.*?\(", re.MULTILINE)


class Compiled(Exception):
    """Both graphs are compiled, and the first would run now."""


def kernels(words: str) -> dict[str, Any]:
    """Return the numbers of kernels of a model's loss and its gradients."""
    config = compose("train", ["data=stdlib", "batch_tokens=524288", "model.n_layer=2", *words.split()])
    codes: list[str] = []
    torch._dynamo.reset()
    with (
        mock.patch.object(torch._functorch.config, "force_non_lazy_backward_lowering", True),
        mock.patch.object(torch._inductor.config, "compile_threads", 1),
        mock.patch.object(GraphLowering, "save_output_code", staticmethod(codes.append)),
        mock.patch.object(CompiledFxGraph, "__call__", side_effect=Compiled),
        FakeTensorMode(allow_non_fake_inputs=True),
        contextlib.suppress(Compiled),
    ):
        with torch.device("cuda"):
            gpt = GPT(config.model, VOCABULARY, kernel="fused")
            tokens = torch.zeros(MICRO_BATCH, config.model.block_size, dtype=torch.long)
            documents = Documents(tokens, torch.zeros(65, dtype=torch.int32))
            given = (torch.ones(tokens.shape), documents) if config.data.mask_documents else ()
        chunk = config.trainer.loss_chunk if isinstance(config.trainer.loss_chunk, int) else 0
        loss = plain_loss(config.data.mask_documents, chunk)
        with autocast("cuda", "bf16"):
            torch.compile(loss, dynamic=False, fullgraph=True)(gpt, tokens, tokens, *given)
    assert len(codes) == 2, f"{len(codes)} graphs"
    arch = 10 * (card := torch.cuda.get_device_capability())[0] + card[1]
    assembled = {
        file.stem
        for file in Path(cache_dir()).rglob("triton_*.json")
        if json.loads(file.read_text())["target"]["arch"] == arch and file.with_suffix(".cubin").exists()
    }
    named = set(re.findall(r"^def (triton_\w+)\(", "\n".join(codes), re.MULTILINE))
    return {
        "kernels": [sum(len(pattern.findall(code)) for code in codes) for pattern in (KERNEL, LIBRARY)],
        "machine code": bool(named) and named <= assembled,
    }


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    print(json.dumps({words: kernels(words) for words in sys.argv[1:]}))
