"""How often the CPU waits for the device while a text is written, counted on a stand-in for a device.

The stand-in computes on the CPU and says that it is elsewhere: what crosses to it or back is seen.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from minigpt.attention import functional, layers
from minigpt.config.schema import ModelConfig, SampleConfig
from minigpt.model.gpt import GPT
from minigpt.sampling.generate import generate
from minigpt.sampling.write import gpt_forward

V = 23
ELSEWHERE = torch.device("meta")  # of the kinds of devices the only one that needs no driver
aten = torch.ops.aten


class Remote(torch.Tensor):
    """A tensor that lies elsewhere."""

    @staticmethod
    def __new__(cls, local):
        options = {"dtype": local.dtype, "strides": local.stride(), "device": ELSEWHERE}
        return torch.Tensor._make_wrapper_subclass(cls, local.shape, **options)

    def __init__(self, local):
        self.local = local

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} outside of StandIn")


class StandIn(TorchDispatchMode):
    """Runs what is asked of the device, and counts what the CPU waits for and what is sent."""

    def __init__(self):
        super().__init__()
        self.waits, self.sent, self.made = Counter(), Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        found = [arg for arg in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(arg, torch.Tensor)]
        remote = any(isinstance(arg, Remote) for arg in found)
        mixed = remote and not all(isinstance(arg, Remote) or arg.dim() == 0 for arg in found)
        device = kwargs.get("device")
        goes = device is not None and torch.device(device).type == ELSEWHERE.type
        name = str(function)
        comes = function in (aten._local_scalar_dense.default, aten.nonzero.default) and remote
        comes |= remote and device is not None and not goes
        if function is aten.lift_fresh.default and found[0].device == ELSEWHERE:  # torch.tensor(..., device=)
            self.sent["blocking"] += 1
        elif comes or (remote and function is aten.copy_.default and not isinstance(args[0], Remote)):
            self.waits[name] += 1
        elif function in (aten._to_copy.default, aten.copy_.default) and found and not remote and goes:
            self.sent["unblocked" if kwargs.get("non_blocking") else "blocking"] += 1
        elif mixed:
            self.sent[name] += 1
        elif goes:
            self.made[name] += 1
        if goes:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda arg: arg.local if isinstance(arg, Remote) else arg, (args, kwargs))
        out = function(*args, **kwargs)
        if comes or not (remote or goes):
            return out
        return tree_map(lambda each: Remote(each) if isinstance(each, torch.Tensor) else each, out)


@pytest.fixture(autouse=True)
def constants_through_the_stand_in(monkeypatch):
    """They are made once per size and kept, outside of every mode; here each is made where it is asked for."""
    for module, name in ((functional, "causal_bias"), (layers, "kept_causal_mask"), (layers, "angles_from_zero")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)


def remote_gpt(**options):
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=3, n_head=2, n_embd=16, block_size=32, **options), V, kernel="explicit").eval()
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = Remote(parameter.detach() + 0.2 * torch.randn_like(parameter))
    return model


def local_gpt(model):
    twin = GPT(model.config, V, kernel="explicit").eval()
    twin.load_state_dict({name: tensor.local for name, tensor in model.named_parameters()})
    return twin


def write(model, prompts, new_tokens, **options):
    """The samples, and what was counted between the first token and the last."""
    config = SampleConfig(max_new_tokens=new_tokens, seed=3, **options)
    stand_in, at_first = StandIn(), {}

    def on_token(index, token):
        if not at_first:
            at_first.update(waits=stand_in.waits.total(), sent=Counter(stand_in.sent), made=Counter(stand_in.made))
        return False

    with stand_in:
        samples = generate(
            gpt_forward(model), prompts, config, block_size=32, new_cache=model.new_cache,
            on_token=on_token,
        )  # fmt: skip
    waits = stand_in.waits.total() - at_first["waits"]
    return [sample.tokens for sample in samples], waits, stand_in.sent - at_first["sent"], stand_in.waits


ONE, THREE = [[1, 2, 3]], [[1, 2, 3], [4], [5, 6]]
FILTERS = {"repetition_penalty": 1.3, "top_k": 7, "top_p": 0.9, "min_p": 0.01}


@pytest.mark.parametrize(
    ("attention", "prompts", "options"),  # linear switches autocast off, which knows no meta
    [
        ("softmax", ONE, {}),
        ("softmax", THREE, FILTERS),
        ("softmax", THREE, {"temperature": 0.0}),
        ("rotary", THREE, {}),
        ("rotary", ONE, FILTERS),
        ("rotary", ONE, {"temperature": 0.0}),
    ],
)
def test_the_device_is_waited_for_once_per_token_and_nothing_blocks_on_the_way_there(attention, prompts, options):
    model = remote_gpt(attention=attention)
    tokens, waits, sent, _ = write(model, prompts, 9, **options)
    assert waits == 8
    assert not sent.keys() - {"unblocked"}
    assert sent["unblocked"] <= 2 * 8  # the tokens, and the random numbers
    assert tokens == [
        sample.tokens
        for sample in generate(
            gpt_forward(local_gpt(model)),
            prompts,
            SampleConfig(max_new_tokens=9, seed=3, **options),
            block_size=32,
            new_cache=local_gpt(model).new_cache,
        )
    ]


def test_the_counter_sees_a_wait_and_a_blocking_copy():
    with StandIn() as counted:
        there = torch.ones(2, 3, device=ELSEWHERE)
        assert float(there.sum()) == 6
        assert there.cpu().tolist() == [[1.0] * 3] * 2
        there[torch.tensor([0])]
        there.nonzero()
        there + torch.ones(2, 3).to(ELSEWHERE)
        torch.tensor([1, 2], device=ELSEWHERE)
    assert counted.waits.total() == 3
    assert counted.sent.total() >= 2
