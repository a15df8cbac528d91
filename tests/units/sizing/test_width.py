"""Width transfer: with the law's rates, a step changes what a model computes by as much at every width from 128 on.

Up to there the rates are the same for all.

The coordinate check of Yang et al. 2022, "Tensor Programs V" (muP), appendix D.1, at tiny sizes.
"""

from dataclasses import replace

import torch

from minigpt.config.compose import compose
from minigpt.model.gpt import GPT
from minigpt.model.loss import next_token_loss
from minigpt.sizing.dial import SETTINGS
from minigpt.sizing.law import Text, candidates
from minigpt.training.optimizer import build_optimizer

VOCABULARY, STEPS = 256, 3


def changes(width: int, layers: int) -> list[float]:
    """RMS of the change that STEPS updates make: after the first block, after the last one, of the logits."""
    text = Text(10_000_000, 1.7, 1.5, 2.0)
    size = replace(next(size for size in candidates(text) if size.n_embd == width), n_layer=layers, block_size=64)
    law = ("n_layer", "n_embd", "n_head", "n_kv_head", "head_dim", "n_hidden", "block_size", "lr")
    arguments = [f"{SETTINGS[name]}={getattr(size, name)}" for name in law]
    config = compose("train", ["experiment=text", "data=stdlib", "model.tied=true", *arguments])
    torch.manual_seed(0)
    gpt = GPT(config.model, VOCABULARY)
    optimizer = build_optimizer(config.optimizer, gpt)
    optimizer.found_inf = torch.zeros(())
    tokens = torch.randint(VOCABULARY, (4, 49), generator=torch.Generator().manual_seed(1))
    outputs: list[torch.Tensor] = []
    for module in (gpt.blocks[0], gpt.blocks[-1], gpt):
        module.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))

    def look() -> list[torch.Tensor]:
        outputs.clear()
        with torch.no_grad():
            gpt(tokens[:, :-1])
        return list(outputs)

    before = look()
    for _ in range(STEPS):
        optimizer.zero_grad()
        next_token_loss(gpt, tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
    return [(now - old).square().mean().sqrt().item() for now, old in zip(look(), before, strict=True)]


def test_a_step_changes_as_much_at_every_width_and_depth():
    of_shapes = [changes(width, layers) for width, layers in ((128, 2), (128, 4), (512, 2))]
    for of_one_place in zip(*of_shapes, strict=True):
        assert max(of_one_place) < 2 * min(of_one_place)
