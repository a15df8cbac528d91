"""Rules of the model's shape, and of adapters on it."""

from collections.abc import Iterator

from minigpt.config.convert import shown
from minigpt.config.rules.rule import nearest_multiples, rule
from minigpt.config.schema import SHARDED, AdapterConfig, ModelConfig


@rule("model.n_embd", "model.n_head", "model.head_dim", "model.attention")
def heads_have_a_width(n_embd: int, n_head: int, head_dim: int, attention: str) -> Iterator[str]:
    if not head_dim and n_embd % n_head:
        remedy = f"Use {nearest_multiples('model.n_embd', n_embd, n_head)}."
        yield f"model.n_embd={n_embd} is not a multiple of model.n_head={n_head}. {remedy}"
    elif attention == "rotary" and (width := head_dim or n_embd // n_head) % 2:
        yield f"model.attention=rotary turns pairs of numbers, got heads of {width}. Use model.head_dim={width + 1}."


@rule("model.n_head", "model.n_kv_head")
def groups_divide_heads(n_head: int, n_kv_head: int) -> Iterator[str]:
    if n_kv_head and n_head % n_kv_head:
        fitting = ", ".join(str(number) for number in range(1, n_head + 1) if n_head % number == 0)
        yield f"model.n_kv_head={n_kv_head} does not divide model.n_head={n_head}. Use one of {fitting}."


@rule("model.attention", "model.rope_theta", "model.rope_scaling")
def rotations_have_something_to_turn(attention: str, theta: float, scaling: str) -> Iterator[str]:
    if attention != "rotary" and (theta != ModelConfig.rope_theta or scaling != "none"):
        yield (
            f"model.rope_theta={theta:g} and model.rope_scaling={scaling} are for model.attention=rotary, got "
            f"model.attention={attention}. Leave them out, or use model.attention=rotary."
        )


@rule("model.rope_low_freq_factor", "model.rope_high_freq_factor")
def frequencies_are_in_order(low: float, high: float) -> Iterator[str]:
    if low >= high:
        yield f"model.rope_low_freq_factor={low:g} must be less than model.rope_high_freq_factor={high:g}. Swap them."


@rule("adapter.targets", "model.attention", "model.activation")
def adapters_have_a_place(targets: str, attention: str, activation: str) -> Iterator[str]:
    known = ["qkv", "out", "up", "down"] + ["gate"] * (activation == "swiglu")
    known += [*"qkv"] if attention != "softmax" else []  # whose three are one matrix, as in GPT-2
    wanted = {each.strip() for each in targets.split(",")}
    if wanted != {"all"} and (wrong := sorted(wanted - {*known})):
        remedy = f"Use all, or some of {','.join(known)}."
        yield f"adapter.targets={shown(targets)}: the model has no matrix {shown(wrong[0])}. {remedy}"


@rule("adapter.name", "adapter.rank", "adapter.alpha", "adapter.targets", "init.from", "trainer.strategy")
def adapters_have_a_model(
    name: str, rank: int, alpha: int, targets: str, source: str | None, strategy: str
) -> Iterator[str]:
    if name == "none":
        for key, value in (("rank", rank), ("alpha", alpha), ("targets", targets)):
            if value != getattr(AdapterConfig, key):
                yield f"adapter.{key}={shown(value)} is for adapter=lora. Add it, or leave this out."
        return
    if source is None:
        yield f"adapter={name} needs a trained model. Name it: init.from=RUN_OR_FOLDER."
    if strategy in SHARDED:
        yield f"adapter={name} needs the model whole on each device, got trainer.strategy={strategy}. Use trainer=ddp."
