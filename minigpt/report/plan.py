"""The plan of a run: what is printed before its first step, and by `minigpt plan`."""

import re
from collections.abc import Iterator

from minigpt.config.commands import PlanConfig
from minigpt.config.convert import flatten, to_dict
from minigpt.config.schema import TrainConfig
from minigpt.data.chat.packing import Split
from minigpt.data.chat.tasks import question
from minigpt.data.prepared import Prepared
from minigpt.data.sources.find import typed_path
from minigpt.data.tokenizer import read_tokenizer_json
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices, choose, usable_memory
from minigpt.machine.cores import usable_cores
from minigpt.machine.hardware import Hardware, card_of, find_device, memory_of_device, peak_flops
from minigpt.machine.memory import Memory, step_memory
from minigpt.model.counting import flops_per_token, sizes_of
from minigpt.model.gpt import GPT, empty_gpt
from minigpt.report.record import to_type
from minigpt.screen import Say, number_of, size_text

MANY_PASSES, STRONG_DECAY = 4.5, 0.3  # without dropout or such a weight decay
REMEDIES = "Add {}trainer=fsdp trainer.devices=N, or use a smaller model or block_size"
VOCABULARIES = {"byte": 257, "char": 128, "gpt2": 50257}  # char: the text decides


def count_parameters(model: GPT) -> int:
    """Return the number of parameters, without the padding of the embedding table and the output layer."""
    padding = (len(model.token_embedding.weight) - model.vocab_size) * model.config.n_embd
    return sum(parameter.numel() for parameter in model.parameters()) - padding * (2 if model.output else 1)


def describe_plan(
    config: TrainConfig, choices: Choices, hardware: Hardware, *, gpt: GPT, prepared: Prepared, total_steps: int | None
) -> str:
    model, parameters, sequences = config.model, count_parameters(gpt), config.batch_tokens // config.model.block_size
    memory = step_memory(config, choices, gpt.vocab_size)
    room = memory_of_device(hardware, config.trainer.devices)
    if total_steps is None:
        length = f"{config.trainer.max_minutes:g} minutes of training"
    elif config.objective.name == "grpo":
        length = f"{total_steps:,} steps = {total_steps * sequences:,} answers"
    else:
        tokens = total_steps * config.batch_tokens
        length = f"{total_steps:,} steps = {tokens:,} tokens = {_passes(prepared.train, tokens, model.block_size)}"
        length += f", {tokens / parameters:.1f} tokens per parameter" if tokens >= 0.1 * parameters else ""
    parts = f"{number_of(choices.devices, 'device')} x {choices.accumulate} x micro-batch {choices.micro_batch}"
    parts = "" if choices.devices == choices.accumulate == 1 else f" = {parts}"
    shared = f" ({model.n_kv_head} of keys and values)" if 0 < model.n_kv_head < model.n_head else ""
    lines = [
        f"Model      {parameters:,} parameters: {number_of(model.n_layer, 'layer')}, "
        f"{number_of(model.n_head, 'head')}{shared}, width {model.n_embd}, context {model.block_size}, "
        f"vocabulary {gpt.vocab_size:,}",
        f"Data       {len(prepared.train):,} training tokens, {len(prepared.val):,} validation tokens "
        f"({'mix' if config.data.mix else config.data.name}, {prepared.tokenizer.name} tokenizer)",
        f"Step       {config.batch_tokens:,} tokens = {sequences} windows of {model.block_size}{parts}",
        f"Length     {length}",
        f"Memory     about {size_text(memory.peak)} of {size_text(room)} per device (estimate): {by_part(memory)}",
        f"Device     {hardware.name}, {choices.precision}, {choices.attention_kernel} attention, "
        f"{'' if choices.compile else 'not '}compiled, {number_of(choices.threads, 'thread')}",
    ]
    if config.objective.name == "grpo":
        task, answers = config.objective.task, config.objective.answers
        asked, answer = question(task, config.seed, 0)
        lines += [
            f"Reward     1 for an answer that is right to the last character, else up to 0.2. A step asks "
            f"{number_of(sequences // answers, 'question')} of {task}, {answers} times each:",
            f"             {asked} -> {answer}",
        ]
    else:
        lines += prepared.train.describe(model.block_size)
    return "\n".join(lines)


def by_part(memory: Memory) -> str:
    """Return what each part of a step's memory takes."""
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "working")
    return ", ".join(f"{part} {size_text(size)}" for part in parts if (size := getattr(memory, part)))


def plan(config: PlanConfig, say: Say = print) -> None:
    """Print the memory of a training with its automatic choices, and whether it fits."""
    V = config.vocab_size or _vocab_size(config)
    hardware = _hardware(config)
    choices, usable = choose(config, hardware, V), usable_memory(config, hardware)
    memory = step_memory(config, choices, V)
    of_device = memory_of_device(hardware, config.trainer.devices)
    lines = [
        f"Model      {count_parameters(empty_gpt(config.model, V, device='meta')):,} parameters, vocabulary {V:,}",
        f"Step       {config.batch_tokens:,} tokens = {number_of(choices.devices, 'device')} x {choices.accumulate} x "
        f"micro-batch {choices.micro_batch} of {config.model.block_size:,} tokens"
        + (f"; {choices.loss_chunk} rows of logits at a time" if choices.loss_chunk else ""),
        f"Device     {choices.devices} x {hardware.name}, {size_text(of_device)}, {size_text(usable)} of it for a run; "
        f"{choices.precision}, {choices.attention_kernel} attention, {config.optimizer.name}",
        f"Memory     about {size_text(memory.peak)} per device at the most (estimate): {by_part(memory)}",
    ]
    if most := most_tokens_per_second(config, choices, hardware, V):
        roofline = "roofline of this card: products and update at its published peaks; not measured"
        lines.append(f"Speed      at most {most:,.0f} tokens/s ({roofline})")
    remedies = REMEDIES.format("" if config.model.checkpoint_activations else "model.checkpoint_activations=true, or ")
    lines.append(f"Verdict    it {'fits' if memory.peak <= usable else f'does NOT fit. {remedies}'}")
    say("\n".join(lines))


def most_tokens_per_second(config: TrainConfig, choices: Choices, hardware: Hardware, vocab_size: int) -> float | None:
    """Return the roofline of all devices together, or None if the device's data sheet is not known.

    A step takes as long as its matrix products at the card's peak (each score of causal attention once, none of the
    masked half), and then as the update's bytes, which are moved after the last gradient: gradients are read, weights
    and averages are read and written. All other kernels, launches and what devices send would come on top.
    """
    peak, card = peak_flops(hardware, choices.precision), card_of(hardware.name)
    if not peak or card is None:
        return None
    sizes, layers = sizes_of(config.model, vocab_size), config.model.n_layer
    matrices = layers * sizes.block_matrices + sizes.output
    attention = flops_per_token(config.model, vocab_size) - 6.0 * matrices
    of_matrix = 6.0 if config.adapter.name == "none" else 4.0  # frozen matrices get no gradient
    tokens = choices.micro_batch * choices.accumulate * config.model.block_size
    memory = step_memory(config, choices, vocab_size)
    products = tokens * (of_matrix * matrices + attention / 2) / peak
    update = (3 * memory.gradients + 2 * memory.optimizer) / (1e12 * card.bandwidth)
    return choices.devices * tokens / (products + update)


def _hardware(config: PlanConfig) -> Hardware:
    """Return the device that is planned for: this machine's, or one of which a name or its memory is given."""
    if config.memory is None and config.card is None:
        return find_device(config)
    device, card = "cpu" if config.trainer.device == "cpu" else "cuda", card_of(config.card or "")
    if config.card and card is None:
        remedy = "Use memory=GB instead, or a name such as H100"
        raise UserFault(f"card={config.card} is not in our table of cards. {remedy}")
    memory = config.memory or (card and card.memory) or 0.0
    has_bf16 = not re.search("V100|T4", config.card or "")
    return Hardware(device, config.card or f"{device} device", usable_cores(), has_bf16, int(1e9 * memory))


def _vocab_size(config: PlanConfig) -> int:
    name, file = config.tokenizer.name, config.tokenizer.file
    if name == "file" and file:
        return read_tokenizer_json(typed_path(file), config.tokenizer.eot).vocab_size
    return VOCABULARIES.get(name, config.tokenizer.vocab_size)


def _passes(train: Split, tokens: int, block_size: int) -> str:
    """Return how many passes over the data, or over each source of a mixture, so many tokens are."""
    if len(train.parts) == 1:
        return f"{train.passes(tokens, block_size):.2f} passes over the data"
    parts = ((name, train.shares[name], len(part)) for name, part in train.parts.items())
    return ", ".join(f"{tokens * share / size:.2f} passes over {name} ({share:.2%})" for name, share, size in parts)


def length_warnings(config: TrainConfig, train: Split, steps: int | None) -> Iterator[str]:
    """Yield a sentence if a training ends before its learning rate has risen, and if it learns its text by heart.

    The latter is said of a text that is passed over often without dropout or a strong weight decay.
    """
    if steps is None or config.objective.name == "grpo":
        return
    tokens, block_size, warmup = config.batch_tokens, config.model.block_size, config.schedule.warmup_steps
    unit = block_size * config.trainer.devices * config.trainer.nodes * max(1, config.trainer.micro_batch)
    tenth = unit * max(1, round(0.1 / train.passes(unit, block_size))) if len(train.parts) == 1 else tokens
    smaller = f" batch_tokens={tenth}" * (tenth < tokens)  # about ten steps a pass
    if steps <= warmup:
        rises = f"the learning rate rises until step {warmup:,}, and the training ends at {steps:,}: it learns little"
        more = smaller if config.trainer.epochs or config.trainer.max_tokens else ""  # of so many steps: fewer tokens
        yield f"{rises}. Type schedule.warmup_steps={steps // 10}{more}"
    is_regular = config.model.dropout or config.optimizer.weight_decay >= STRONG_DECAY
    if len(train.parts) == 1 and not is_regular and (passes := train.passes(steps * tokens, block_size)) > MANY_PASSES:
        remedies = ", or ".join([*to_type(flatten(to_dict(config))), f"fewer steps: trainer.epochs=4{smaller}"])
        yield f"{passes:.0f} passes over the text without dropout: it is learned by heart. Type {remedies}"
