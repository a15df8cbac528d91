"""The plan of a run, printed before its first step."""

import os
import sys

from minigpt.config.schema import TrainConfig
from minigpt.data.chat.packing import ConversationSplit
from minigpt.data.chat.tasks import question
from minigpt.data.mix import MixedSplit
from minigpt.data.prepared import Prepared
from minigpt.data.shards import TokenSplit
from minigpt.machine.budget import PARTS, budget_of, gigabytes, plan_of
from minigpt.machine.choices import Choices
from minigpt.machine.hardware import Hardware, memory_of_device
from minigpt.model.adapter import MARK
from minigpt.model.gpt import GPT

LEARNS = "adapter, which is trained; all else stays as it is"


def count_parameters(model: GPT) -> dict[str, int]:
    """Return the number of parameters by part; the padding rows of the embedding table are not counted."""
    embedding = model.vocab_size * model.config.n_embd
    parts = {
        "token embedding" if model.output else "token embedding (also the output layer)": embedding,
        "position embedding": model.position_embedding.weight.numel() if model.position_embedding else 0,
        "output layer": embedding if model.output else 0,
        "attention": 0,
        "MLP": 0,
        "norms": sum(parameter.numel() for parameter in model.final_norm.parameters()),
        LEARNS: 0,
    }
    for name, parameter in model.blocks.named_parameters():
        part = "norms" if "norm" in name else "attention" if ".attention." in name else "MLP"
        part = LEARNS if MARK in name else part
        parts[part] += parameter.numel()
    return {part: count for part, count in parts.items() if count}


def describe_plan(
    config: TrainConfig, choices: Choices, hardware: Hardware, *, gpt: GPT, prepared: Prepared, total_steps: int | None
) -> str:
    """Return the plan as text."""
    model, parts = config.model, count_parameters(gpt)
    parameters, sequences = sum(parts.values()), config.batch_tokens // model.block_size
    kernel, precision = choices.attention_kernel, choices.precision
    budget = budget_of(config, gpt.vocab_size, plan_of(config, choices), precision=precision, kernel=kernel)
    room = memory_of_device(hardware, config.trainer.devices)
    if config.objective.name == "grpo":
        length = (
            f"{total_steps:,} steps = {total_steps * sequences:,} answers" if total_steps else "until the time is up"
        )
    elif total_steps is None:
        length = f"{config.trainer.max_minutes:g} minutes of training"
    else:
        tokens = total_steps * config.batch_tokens
        passes, each = (
            _passes(prepared.train, tokens, model.block_size),
            f"{tokens / parameters:.1f} tokens per parameter",
        )
        length = f"{total_steps:,} steps = {tokens:,} tokens = {passes}, {each}"
    source = "mix" if config.data.mix else config.data.name
    shared = f" ({model.n_kv_head} of keys and values)" if 0 < model.n_kv_head < model.n_head else ""
    lines = [
        f"Model      {parameters:,} parameters: {number_of(model.n_layer, 'layer')}, "
        f"{number_of(model.n_head, 'head')}{shared}, width {model.n_embd}, context {model.block_size}, "
        f"vocabulary {gpt.vocab_size:,}",
        *[f"           {count:>13,}  {part}" for part, count in parts.items()],
        f"Data       {len(prepared.train):,} training tokens, {len(prepared.val):,} validation tokens "
        f"({source}, {prepared.tokenizer.name} tokenizer)",
        f"Step       {config.batch_tokens:,} tokens = {sequences} windows of {model.block_size} = "
        f"{number_of(choices.devices, 'device')} x {choices.accumulate} x micro-batch {choices.micro_batch}",
        f"Length     {length}",
        f"Memory     about {budget.peak / 1e9:.2f} GB of {room / 1e9:.0f} GB per device (estimate): "
        + ", ".join(f"{name} {size}" for name, size in zip(PARTS, gigabytes(budget), strict=True)),
        f"Device     {hardware.name}, {precision}, {kernel} attention, {'' if choices.compile else 'not '}compiled"
        + (f", {choices.threads} threads" if choices.device == "cpu" else ""),
    ]
    if config.objective.name == "grpo":
        lines += describe_questions(config)
    elif isinstance(prepared.train, ConversationSplit):
        lines += prepared.train.describe(model.block_size, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    return "\n".join(lines)


def describe_questions(config: TrainConfig) -> list[str]:
    """Return lines that say what a step asks, and which answers get a reward."""
    objective, sequences = config.objective, config.batch_tokens // config.model.block_size
    examples = [question(objective.task, config.seed, number) for number in range(2)]
    return [
        f"Reward     1 for an answer that is right to the last character, else 0. A step asks "
        f"{number_of(sequences // objective.answers, 'question')} of {objective.task}, {objective.answers} times each:",
        *[f"             {asked} -> {answer}" for asked, answer in examples],
    ]


def _passes(train: TokenSplit | MixedSplit | ConversationSplit, tokens: int, block_size: int) -> str:
    """Return how many passes over the data, or over each source of a mixture, so many tokens are."""
    if isinstance(train, ConversationSplit):
        return f"{tokens / block_size / len(train.packs(block_size)[0]):.2f} passes over the conversations"
    if not isinstance(train, MixedSplit):
        return f"{tokens / len(train):.2f} passes over the data"
    parts = ((name, train.shares[name], len(part)) for name, part in train.parts.items())
    return ", ".join(f"{tokens * share / size:.2f} passes over {name} ({share:.2%})" for name, share, size in parts)


def number_of(count: int, thing: str) -> str:
    """Return a number of things in words: 1 layer, 2 layers."""
    return f"{count:,} {thing}" + "s" * (count != 1)
