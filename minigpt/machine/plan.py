"""What a run is about to do, said before its first step."""

from minigpt.config.schema import TrainConfig
from minigpt.data.prepare import Prepared
from minigpt.machine.choices import Choices
from minigpt.machine.hardware import Hardware
from minigpt.machine.memory import update_bytes
from minigpt.model.counting import activation_bytes
from minigpt.model.gpt import GPT


def count_parameters(model: GPT) -> dict[str, int]:
    """Parameters by part; the padding rows of the embedding table are not counted."""
    parts = {
        "token embedding (also the output layer)": model.vocab_size * model.config.n_embd,
        "position embedding": model.position_embedding.weight.numel() if model.position_embedding else 0,
        "attention": 0,
        "MLP": 0,
        "norms": sum(parameter.numel() for parameter in model.final_norm.parameters()),
    }
    for name, parameter in model.blocks.named_parameters():
        part = "attention" if ".attention." in name else "MLP" if ".mlp." in name else "norms"
        parts[part] += parameter.numel()
    return {part: count for part, count in parts.items() if count}


def memory_bytes(config: TrainConfig, choices: Choices, parameters: int, model: GPT) -> int:
    """Return an estimate: weights, gradients and two averages in fp32, and activations or what an update takes."""
    options = {"precision": choices.precision, "kernel": choices.attention_kernel}
    per_sequence = activation_bytes(config.model, model.vocab_size, **options)
    return 16 * parameters + max(choices.micro_batch * per_sequence, update_bytes(config, model))


def describe_plan(
    config: TrainConfig,
    choices: Choices,
    hardware: Hardware,
    *,
    model: GPT,
    prepared: Prepared,
    total_steps: int | None,
) -> str:
    """The plan as text."""
    model_config = config.model
    parts = count_parameters(model)
    parameters = sum(parts.values())
    lines = [
        f"Model      {parameters:,} parameters: {number_of(model_config.n_layer, 'layer')}, "
        f"{number_of(model_config.n_head, 'head')}, width {model_config.n_embd}, context {model_config.block_size}, "
        f"vocabulary {model.vocab_size:,}"
    ]
    lines += [f"           {count:>13,}  {part}" for part, count in parts.items()]
    lines.append(
        f"Data       {len(prepared.train):,} training tokens, {len(prepared.val):,} validation tokens "
        f"({config.data.name}, {prepared.tokenizer.name} tokenizer)"
    )
    sequences = config.batch_tokens // model_config.block_size
    lines.append(
        f"Step       {config.batch_tokens:,} tokens = {sequences} windows of {model_config.block_size}"
        f" = {number_of(choices.devices, 'device')} x {choices.accumulate} x micro-batch {choices.micro_batch}"
    )
    if total_steps:
        tokens = total_steps * config.batch_tokens
        lines.append(
            f"Length     {total_steps:,} steps = {tokens:,} tokens = {tokens / len(prepared.train):.2f} passes over "
            f"the data, {tokens / parameters:.1f} tokens per parameter"
        )
    else:
        lines.append(f"Length     {config.trainer.max_minutes:g} minutes of training")
    memory = memory_bytes(config, choices, parameters, model)
    lines.append(
        f"Memory     about {memory / 1e9:.2f} GB of {hardware.memory_bytes / 1e9:.0f} GB per device (estimate)"
    )
    lines.append(
        f"Device     {hardware.name}, {choices.precision}, {choices.attention_kernel} attention, "
        f"{'compiled' if choices.compile else 'not compiled'}"
        + (f", {choices.threads} threads" if choices.device == "cpu" else "")
    )
    return "\n".join(lines)


def number_of(count: int, thing: str) -> str:
    """Return a number of things in words: 1 layer, 2 layers."""
    return f"{count:,} {thing}" + "s" * (count != 1)
