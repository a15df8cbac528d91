"""The layouts that a training could have, and the memory of each on a device: what `minigpt plan` prints."""

from collections.abc import Iterator
from dataclasses import replace

from minigpt.config.commands import PlanConfig
from minigpt.config.schema import SHARDED
from minigpt.data.sources.find import typed_path
from minigpt.data.tokenizer import read_tokenizer_json
from minigpt.machine.budget import PARTS, Budget, Plan, budget_of, gigabytes
from minigpt.machine.choices import choose, rows_at_once
from minigpt.machine.hardware import Hardware, find_device, memory_of_device, usable_cores
from minigpt.machine.sharding import parts_of

NODE = 8  # devices of a usual machine, between which gathering weights is fast
USABLE = 0.9  # of a device's memory: its context, libraries and fragmentation take the rest
VOCABULARIES = {"byte": 257, "char": 128, "gpt2": 50257}  # char: the text decides


def describe_layouts(config: PlanConfig) -> str:
    """Return a table of layouts, those that cost no speed first, and the words to type for the first that fits.

    Raises:
        UserFault: this machine has no such device, or the tokenizer's file can't be read.
    """
    hardware, V = _hardware(config), config.vocab_size or _vocab_size(config)
    choices = choose(config, hardware, V)
    options = {"precision": choices.precision, "kernel": choices.attention_kernel}
    memory = memory_of_device(hardware, 1 if config.memory else config.trainer.devices)
    room, rows, first = USABLE * memory, [], ""
    for name, words, layout in _layouts(config, V):
        plans = [replace(layout, micro_batch=size, accumulate=all_ // size) for size, all_ in _micro_batches(config)]
        plan, budget = _largest(config, V, plans, room, **options)
        if budget.peak <= room and not first:
            first = " ".join([*words, f"trainer.micro_batch={plan.micro_batch}"])
        fits = "fits" if budget.peak <= room else "too much"
        gb = [*gigabytes(budget), f"{budget.peak / 1e9:.2f}"]
        rows.append([name, f"{plan.accumulate} x {plan.micro_batch}", *gb, fits])
    more = "trainer=fsdp trainer.devices=N" if config.trainer.strategy not in SHARDED else "more devices"
    more = more if config.adapter.name == "none" else "a smaller batch_tokens"
    verdict = f"First that fits: {first}" if first else f"None fits. Try {more}, or a smaller model or block_size"
    device = f"{choices.devices} x {hardware.name}" if choices.devices > 1 else hardware.name
    return "\n".join(
        [
            f"Step       {config.batch_tokens:,} tokens, {config.model.block_size:,} a window; vocabulary {V:,}",
            f"Device     {device}, {memory / 1e9:.1f} GB, of which {USABLE:.0%} are planned with; "
            f"{choices.precision}, {choices.attention_kernel} attention, {config.optimizer.name}",
            "GB on each device; at once: the most at any moment (gradients are allocated as activations are freed)",
            "",
            *_table([["layout", "micro-batches", *PARTS, "at once", ""], *rows]),
            "",
            verdict,
        ]
    )


def _hardware(config: PlanConfig) -> Hardware:
    """Return this machine's device, or one with the memory that the config asks about."""
    if config.memory is None or config.trainer.device not in ("auto", "cuda"):
        hardware = find_device(config)
        return hardware if config.memory is None else replace(hardware, memory_bytes=int(1e9 * config.memory))
    return Hardware("cuda", "GPU with bf16", usable_cores(), bf16=True, memory_bytes=int(1e9 * config.memory))


def _vocab_size(config: PlanConfig) -> int:
    name, file = config.tokenizer.name, config.tokenizer.file
    if name == "file" and file is not None:
        return read_tokenizer_json(typed_path(file), config.tokenizer.eot).vocab_size
    return VOCABULARIES.get(name, config.tokenizer.vocab_size)


def _layouts(config: PlanConfig, vocab_size: int) -> Iterator[tuple[str, list[str], Plan]]:
    """Yield name, words to type, and plan of each layout that the config leaves open, the fastest first."""
    trainer, model = config.trainer, config.model
    devices, node = trainer.nodes * trainer.devices, trainer.devices if trainer.nodes > 1 else NODE
    chunks = {"auto": (0, rows_at_once(vocab_size)), "off": (0,)}.get(str(trainer.loss_chunk)) or (trainer.loss_chunk,)
    checkpoints = (True,) if model.checkpoint_activations else (False, True)
    strategies = [("ddp", 1)]
    if devices > node > 1 and devices % node == 0:
        strategies.append(("hsdp", node))
    strategies += [("fsdp", devices)] if devices > 1 else []
    if config.adapter.name != "none":  # an adapter needs the model whole
        strategies = strategies[:1]
    if trainer.strategy in SHARDED:
        strategies = [(trainer.strategy, parts_of(trainer))]
    for strategy, shards in strategies:
        name = strategy if devices > 1 else "one device"
        words = [f"trainer={strategy}", f"trainer.devices={trainer.devices}"] if devices > 1 else []
        words += [f"trainer.nodes={trainer.nodes}"] if trainer.nodes > 1 else []
        words += [f"trainer.shards={shards}", "trainer.reshard=on"][strategy != "hsdp" :] if shards > 1 else []
        for checkpoint in checkpoints:
            for chunk in chunks if strategy == strategies[0][0] and checkpoint == checkpoints[0] else chunks[-1:]:
                rows = int(chunk)
                parts = [name, *(["chunks"] if rows else []), *(["checkpoints"] if checkpoint else [])]
                more = [f"trainer.loss_chunk={rows or 'off'}"]
                if checkpoint and not model.checkpoint_activations:
                    more.append("model.checkpoint_activations=true")
                plan = Plan(strategy, devices, shards, loss_chunk=rows, checkpoint_activations=checkpoint)
                yield " + ".join(parts), words + more, plan


def _micro_batches(config: PlanConfig) -> list[tuple[int, int]]:
    """Return the micro-batches into which a device's share of a step divides, each with the share's sequences."""
    sequences = config.batch_tokens // config.model.block_size // (config.trainer.nodes * config.trainer.devices)
    sizes = [size for size in range(1, sequences + 1) if sequences % size == 0]
    return [(size, sequences) for size in ([config.trainer.micro_batch] if config.trainer.micro_batch else sizes)]


def _largest(
    config: PlanConfig, vocab_size: int, plans: list[Plan], room: float, **options: str
) -> tuple[Plan, Budget]:
    """Return the plan with the largest micro-batch that fits, or the first one."""
    budgets = [(plan, budget_of(config, vocab_size, plan, **options)) for plan in plans]  # type: ignore[arg-type]
    fitting = [each for each in budgets if each[1].peak <= room]
    return fitting[-1] if fitting else budgets[0]


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
