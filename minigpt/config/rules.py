"""The rules about several settings at once, and about what is on the disk. Each saves a user an hour.

A rule is a function that yields a sentence for each fault, under `@rule(...)` with the settings that it reads. There is
no rule for a fault that the program finds immediately and explains well.
"""

import glob
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from minigpt.config.convert import seconds_of, shown
from minigpt.config.schema import CONVERSATIONS, SHARDED
from minigpt.config.sources import display_name, expand, from_here, missing

Check = Callable[..., Iterator[str]]  # the values of some settings -> a sentence for each fault
Rule = tuple[tuple[str, ...], Check]  # the settings that a check reads, and the check
RULES: list[Rule] = []

OWN_ADDRESSES = ("localhost", "127.0.0.1", "::1")  # which no other machine reaches
LEAST_SECONDS = 15  # of a budget: starting, reading, validating and the report take some ten on a quiet machine
LONGEST_EXCHANGE = 64  # bytes of a question of data/chat/tasks.py and its answer, with control tokens and a few more


def rule(*keys: str) -> Callable[[Check], Check]:
    """Register a check of the values of these settings."""

    def register(function: Check) -> Check:
        RULES.append((keys, function))
        return function

    return register


def nearest_multiples(key: str, value: int, unit: int) -> str:
    """Return `key=` with the multiples of unit on either side of value, positive ones only."""
    below = value // unit * unit
    return f"{key}={f'{below} or ' if below else ''}{below + unit}"


# --- the model ---


@rule("model.n_embd", "model.n_head", "model.head_dim", "model.attention", "budget")
def heads_have_a_width(n_embd: int, n_head: int, head_dim: int, attention: str, budget: str | None) -> Iterator[str]:
    if budget:
        return  # it chooses what is left open
    if not head_dim and n_embd % n_head:
        remedy = f"Use {nearest_multiples('model.n_embd', n_embd, n_head)}."
        yield f"model.n_embd={n_embd} is not a multiple of model.n_head={n_head}. {remedy}"
    elif attention == "rotary" and (width := head_dim or n_embd // n_head) % 2:
        yield f"model.attention=rotary needs heads of even width, got {width}. Use model.head_dim={width + 1}."


@rule("model.init", "model.attention", "model.qk_norm")
def induction_needs_rotary(init: str, attention: str, qk_norm: str) -> Iterator[str]:
    if init == "induction" and (attention != "rotary" or qk_norm == "none"):
        got = f"model.attention={attention} model.qk_norm={qk_norm}"
        yield f"model.init=induction sets rotary attention with a qk_norm, got {got}. Use model.init=normal."


@rule("model.n_head", "model.n_kv_head")
def groups_divide_heads(n_head: int, n_kv_head: int) -> Iterator[str]:
    if n_kv_head and n_head % n_kv_head:
        fitting = ", ".join(str(number) for number in range(1, n_head + 1) if n_head % number == 0)
        yield f"model.n_kv_head={n_kv_head} does not divide model.n_head={n_head}. Use one of {fitting}."


@rule("adapter.name", "init.from", "trainer.strategy", "adapter.rank", "adapter.alpha", "adapter.targets")
def adapters_have_a_model(name: str, source: str | None, strategy: str, *shape: int | str) -> Iterator[str]:
    if name == "none" and shape != (8, 16, "all"):
        yield "adapter.rank, adapter.alpha and adapter.targets shape an adapter. Add adapter=lora, or leave them out."
    if name != "none" and source is None:
        yield f"adapter={name} needs a trained model. Name it: init.from=RUN_OR_FOLDER."
    if name != "none" and strategy in SHARDED:
        yield f"adapter={name} needs the model whole on each device, got trainer.strategy={strategy}. Use trainer=ddp."


@rule("adapter.name", "adapter.targets", "model.attention", "model.activation")
def targets_are_matrices(name: str, targets: str, attention: str, activation: str) -> Iterator[str]:
    parts = [] if attention == "softmax" else ["q", "k", "v"]
    known = ["all", *parts, "qkv", "out", *["gate"] * (activation == "swiglu"), "up", "down"]
    for word in (word.strip() for word in targets.split(",")):
        if name != "none" and word not in known:
            yield f"adapter.targets: the blocks have no {shown(word)}, but {', '.join(known)}."


# --- the text ---


@rule("data.name", "data.source", "data.val_source", "data.mix", "data.dir")
def texts_are_there(
    name: str, source: str | None, val_source: str | None, mix: Mapping[str, float], folder: str
) -> Iterator[str]:
    if mix and (source or val_source):
        yield "data.mix names its sources, and would ignore data.source and data.val_source. Leave these out."
    elif not mix and name in ("text", "chat") and not source:
        yield f"data={name} needs your {'text' if name == 'text' else 'conversations'}. Add data.source=FILE_OR_DIR."
    elif not mix and name not in ("text", "chat") and (val_source or (source and name != "shakespeare_char")):
        choices = "experiment=text (about a minute) or budget=20min (sized for your time)"
        remedy = f"To train on your text, add {choices}; for another command or your own settings, data=text."
        yield f"data={name} would ignore data.source and data.val_source. {remedy}"
    for source, share in mix.items():
        if not share > 0:
            yield f"data.mix gives {shown(display_name(source))} the share {share:g}; wanted a number above 0."
    places = [("data.mix", source) for source in mix if source not in ("stdlib", "shakespeare_char")]
    if not mix and name not in ("stdlib", "tasks"):
        places += [("data.source", source or ""), ("data.val_source", val_source or "")]
    for key, text in places:
        absent = missing(text) if text else []
        prepared = glob.glob(os.path.join(glob.escape(expand(folder)), "*", "prepared.json")) if absent else []
        if not any(json.dumps(display_name(text)) in Path(path).read_text(errors="replace") for path in prepared):
            for place in absent:  # and its tokens are not kept, with which training continues
                yield f"{key}={shown(place)} does not exist{from_here(place)} Give an existing file or folder."


@rule("data.encoding")
def encoding_is_known(encoding: str) -> Iterator[str]:
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        yield f"data.encoding={shown(encoding)} is not a text encoding that Python knows. Use utf-8, latin-1 ..."


@rule("data.encoding", "data.separator")
def separator_has_one_form(encoding: str, separator: str | None) -> Iterator[str]:
    if separator and encoding.lower().replace("_", "-") in ("utf-16", "utf-32"):
        yield f"data.separator needs the order of bytes: data.encoding={encoding}-le (Windows) or {encoding}-be"


@rule("tokenizer.name", "tokenizer.file", "tokenizer.eot")
def tokenizer_file_is_used(name: str, file: str | None, eot: str | None) -> Iterator[str]:
    for key, value in (("file", file), ("eot", eot)):
        if name != "file" and value is not None:
            yield f"tokenizer={name} would ignore tokenizer.{key}={shown(value)}. To use it, add tokenizer=file."


@rule("data.name", "tokenizer.name", "data.mask_documents", "data.separator", "data.mix")
def documents_have_ends(
    name: str, tokenizer: str, mask_documents: bool, separator: str | None, mix: Mapping[str, float]
) -> Iterator[str]:
    conversations = name in CONVERSATIONS
    if tokenizer == "char" and separator:
        wrong = "tokenizer=char has no end-of-text: the parts between data.separator would run into each other"
        yield f"{wrong}. Leave data.separator out, or use tokenizer=byte."
    if tokenizer == "char" and (conversations or mask_documents):
        given = f"data={name}" if conversations else "data.mask_documents=true"
        yield f"{given} needs control tokens such as end-of-text, and tokenizer=char has none. Use tokenizer=byte."
    if conversations and not mask_documents:
        yield f"data={name} keeps conversations apart, got data.mask_documents=false. Use data.mask_documents=true."
    if conversations and mix:
        yield f"data={name} has conversations of its own and would ignore data.mix. Leave one out."


# --- learning from a reward ---


@rule("objective.name", "data.name", "init.from", "init.experiment", "trainer.strategy", "model.dropout")
def rewards_can_be_learned(
    name: str, data: str, source: str | None, experiment: str | None, strategy: str, dropout: float
) -> Iterator[str]:
    if name == "grpo" and data != "tasks":
        yield f"objective=grpo asks questions whose answers can be checked; data={data} has none. Use data=tasks."
    if name == "grpo" and source is None and experiment is None:
        yield "objective=grpo begins with a model that answers some questions, as chat_tiny does. Add init.from=RUN."
    if name == "grpo" and strategy in SHARDED:
        yield f"objective=grpo needs the model whole on each device, got trainer.strategy={strategy}. Use trainer=ddp."
    if name == "grpo" and dropout:
        yield f"objective=grpo learns what a model wrote, which model.dropout={dropout:g} changes. Use model.dropout=0."


@rule("objective.name", "objective.answers", "batch_tokens", "model.block_size")
def groups_of_answers_are_whole(name: str, answers: int, batch_tokens: int, block_size: int) -> Iterator[str]:
    if name == "grpo" and batch_tokens % (answers * block_size):
        remedy = f"Use {nearest_multiples('batch_tokens', batch_tokens, answers * block_size)}"
        groups = f"whole groups of objective.answers={answers} sequences of model.block_size={block_size}"
        yield f"batch_tokens={batch_tokens} does not hold {groups}. {remedy}."
    if name == "grpo" and block_size < LONGEST_EXCHANGE:
        remedy = f"Use model.block_size={LONGEST_EXCHANGE} or more"
        yield f"model.block_size={block_size} does not hold every question of objective=grpo and its answer. {remedy}."


# --- the training ---


@rule("init.experiment", "init.from", "trainer.devices", "trainer.nodes")
def one_device_trains_in_stages(experiment: str | None, source: str | None, devices: int, nodes: int) -> Iterator[str]:
    if experiment is not None and source is None and devices * nodes > 1:
        first = f"minigpt train experiment={experiment}"
        yield f"init.experiment={experiment} is for one device. Type {first}, then init.from=ITS_RUN on several."


@rule("batch_tokens", "model.block_size", "trainer.micro_batch", "trainer.devices", "trainer.nodes", "budget")
def batch_splits_evenly(
    batch_tokens: int, block_size: int, micro_batch: int, devices: int, nodes: int, budget: str | None
) -> Iterator[str]:
    factors = {"model.block_size": block_size, "trainer.micro_batch": micro_batch or 1, "trainer.devices": devices}
    factors["trainer.nodes"] = nodes
    unit = math.prod(factors.values())
    if batch_tokens % unit and not budget:
        parts = " x ".join(f"{key}={number}" for key, number in factors.items() if number > 1)
        remedy = f"Use {nearest_multiples('batch_tokens', batch_tokens, unit)}."
        yield f"batch_tokens={batch_tokens} is not a multiple of {unit} tokens, {parts}. {remedy}"


@rule("trainer.devices", "trainer.nodes", "trainer.strategy", "trainer.shards")
def devices_have_a_strategy(devices: int, nodes: int, strategy: str, shards: int) -> Iterator[str]:
    world, copy = nodes * devices, shards or devices  # copy: devices that hold one copy of the weights
    given = f"trainer.nodes={nodes} " * (nodes > 1) + f"trainer.devices={devices}"
    if world > 1 and strategy == "auto":
        remedy = f"Type trainer=ddp {given}, or trainer=fsdp where a copy of the weights is too large"
        yield f"{given} needs trainer.strategy=ddp, fsdp or hsdp. {remedy}."
    elif world == 1 and strategy in SHARDED:
        remedy = "Type trainer.devices=N, or leave out the strategy"
        yield f"trainer.strategy={strategy} shares weights out over several devices, got {given}. {remedy}."
    elif strategy != "hsdp" and shards:
        yield f"trainer.shards={shards} is for trainer=hsdp, got trainer.strategy={strategy}. Leave it out."
    elif strategy == "hsdp" and (copy == 1 or copy == world or world % copy):
        fitting = [str(number) for number in range(2, world) if world % number == 0]
        remedy = f"Use trainer.shards={' or '.join(fitting)}" if fitting else "Use trainer=fsdp"
        wrong = f"trainer.shards={shards}: {copy} devices to a copy of the weights, and several copies, are not {world}"
        yield f"{wrong}. {remedy}."


@rule("trainer.strategy", "trainer.device", "trainer.precision")
def precision_is_possible(strategy: str, device: str, precision: str) -> Iterator[str]:
    if strategy in SHARDED and precision == "fp16":
        yield f"trainer.precision=fp16 scales losses, which trainer.strategy={strategy} can't. Use bf16 or fp32."
    if device == "mps" and precision in ("bf16", "fp16", "fp64"):
        yield f"trainer.device=mps trains in fp32, got trainer.precision={precision}. Use trainer.precision=fp32."


@rule("trainer.max_steps", "trainer.max_tokens", "trainer.epochs", "trainer.max_minutes")
def run_has_an_end(*limits: float | None) -> Iterator[str]:
    if not any(limits):
        yield "The run has no end: give trainer.max_steps, trainer.max_tokens or trainer.max_minutes."


@rule("optimizer.average_fraction", "tokenizer.dropout", "trainer.max_minutes", "trainer.patience")
def parts_know_the_last_step(fraction: float, dropout: float, minutes: float | None, patience: int) -> Iterator[str]:
    if (fraction or dropout) and (minutes or patience):
        name = "optimizer.average_fraction" if fraction else "tokenizer.dropout"
        wrong = "of the steps, and trainer.max_minutes or patience may end the run before the last one"
        yield f"{name} is for a part {wrong}. Leave one out."


@rule("tokenizer.dropout", "tokenizer.name", "data.name")
def merges_can_be_left_out(dropout: float, tokenizer: str, data: str) -> Iterator[str]:
    if dropout and (tokenizer not in ("bpe", "gpt2") or data in ("chat", "tasks")):
        yield f"tokenizer.dropout={dropout:g} is for texts and tokenizer=bpe or gpt2. Leave it out."


@rule("trainer.max_tokens", "trainer.epochs", "data.mix")
def passes_set_the_steps(max_tokens: int | None, epochs: float | None, mix: Mapping[str, float]) -> Iterator[str]:
    if epochs and max_tokens:
        yield f"trainer.epochs={epochs:g} and trainer.max_tokens={max_tokens} both say how long. Leave one out."
    if epochs and mix:
        yield f"trainer.epochs={epochs:g}: each source of data.mix has passes of its own. Use trainer.max_tokens."


@rule("budget")
def budgets_are_times(budget: str | None) -> Iterator[str]:
    for text in budget.split(",") if budget is not None else ():
        seconds = seconds_of(text)
        if seconds is None:
            yield f"budget={shown(text)} is no time: a number and s, min, h or d are wanted, like 90s, 20min, 1h30m."
        elif seconds < LEAST_SECONDS:
            yield f"budget={text} is too short to start, learn something and validate it. Use budget={LEAST_SECONDS}s."


@rule("budget", "data.name", "data.mix", "init.from", "init.experiment", "adapter.name", "objective.name")
def budgets_are_for_texts(
    budget: str | None, name: str, mix: Mapping[str, float], source: str | None, *others: str | None
) -> Iterator[str]:
    if budget and (name in CONVERSATIONS or mix or source or others != (None, "none", "next_token")):
        remedy = "Leave it out and give trainer.max_steps"
        yield f"budget={budget} sizes a new model for one text, not for weights, conversations or data.mix. {remedy}."


@rule("budget", "kills")
@rule("budget", "sweep.metric")
def trainings_are_alike(budget: str | None, _: object) -> Iterator[str]:
    if budget:
        wrong = "sizes each training by itself, and verify-resume and sweeps need trainings of one size"
        yield f"budget={budget} {wrong}. Give the settings that minigpt train budget={budget} prints."


# --- the server ---


@rule("host", "token_file")
def strangers_show_a_token(host: str, token_file: str | None) -> Iterator[str]:
    if host not in OWN_ADDRESSES and token_file is None and not os.environ.get("MINIGPT_TOKEN"):
        remedy = "Put one into a file, token_file=FILE, or into the environment variable MINIGPT_TOKEN."
        yield f"host={shown(host)} can be reached from other machines, so clients must show a token. {remedy}"
