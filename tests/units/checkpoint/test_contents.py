"""Tensors in and out of safetensors, and optimizers that continue where they stood."""

import pytest
import torch

from minigpt.checkpoint import contents
from minigpt.checkpoint.load import resize_vocabulary
from minigpt.config.schema import ModelConfig, OptimizerConfig
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from minigpt.training.optimizer import build_optimizer

SMALL = ModelConfig(n_layer=2, n_head=2, n_embd=12, block_size=8)


def stepped(name, seed=0):
    torch.manual_seed(seed)
    gpt = GPT(SMALL, 70)
    optimizer = build_optimizer(OptimizerConfig(name=name), gpt)
    gpt(torch.zeros(1, 8, dtype=torch.int64)).square().mean().backward()
    optimizer.step()
    return optimizer


def test_tensors_and_their_label_come_back(tmp_path):
    tensors = {"b": torch.randn(3, 5), "a": torch.tensor(2.0), "half": torch.randn(7).bfloat16()}
    file = tmp_path / "file.safetensors"
    file.write_bytes(contents.pack_tensors(tensors, {"one": "1", "two": "2"}))
    assert contents.read_label(file) == {"one": "1", "two": "2"}
    read = contents.read_tensors(file)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_equal_tensors_and_labels_give_equal_bytes():
    """safetensors would write several keys of metadata in an order that changes from call to call."""
    label = {str(number): "x" for number in range(9)}
    assert len({contents.pack_tensors({"b": torch.ones(3), "a": torch.zeros(2)}, label) for _ in range(20)}) == 1


def test_copies_stay_while_training_goes_on():
    tensor, memory = torch.ones(3), {}
    copies = contents.copy_tensors({"a": tensor}, memory)
    tensor += 1
    assert copies["a"].tolist() == [1, 1, 1]
    assert contents.copy_tensors({"a": tensor}, memory)["a"] is copies["a"]  # the same memory
    assert copies["a"].tolist() == [2, 2, 2]
    assert contents.copy_tensors({"a": tensor}, None) == {}


def test_averages_of_another_optimizer_or_with_nan_are_refused():
    averages = contents.optimizer_tensors(stepped("muon"))
    with pytest.raises(UserFault, match="is not of this model and optimizer"):
        contents.restore_optimizer(averages, stepped("adamw"))
    averages["0.momentum"] = averages["0.momentum"] * torch.nan
    with pytest.raises(UserFault, match="non-finite average"):
        contents.restore_optimizer(averages, stepped("muon"))


def test_new_tokens_begin_like_the_known_ones():
    """Of their mean and deviation: frozen rows that are smaller would never be the likeliest token."""
    gpt = GPT(SMALL, 400)
    weights = {name: tensor.clone() for name, tensor in GPT(SMALL, 66).state_dict().items()}
    known = torch.randn(66, 12) * torch.arange(1, 13) + 3
    weights["token_embedding.weight"][:66] = known
    table = resize_vocabulary(weights, gpt, known=66)["token_embedding.weight"]
    assert torch.equal(table[:66], known)
    torch.testing.assert_close(table[66:400].mean(0), known.mean(0), rtol=0.5, atol=1.0)
    torch.testing.assert_close(table[66:400].std(0), known.std(0), rtol=0.3, atol=0)
