"""The rules a config must obey beyond its types. Standard library only; never touches torch.

Every broken rule is reported at once, each sentence with what was got, what is wanted and what to type.
A rule is skipped while a setting it reads is itself out of range: one mistake, one sentence.
"""

import glob
import importlib.util
import ipaddress
import json
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from minigpt.config.convert import Fault, settings, shown, values
from minigpt.config.hub import is_hub_name, local_path
from minigpt.config.roles import default_run_dir
from minigpt.config.schema import SHARDED, AdapterConfig, ModelConfig, ObjectiveConfig
from minigpt.config.setting import Setting
from minigpt.config.sources import at, is_begun, is_url, missing, name_of, there
from minigpt.faults import UserFault
from minigpt.invocation import typed
from minigpt.plain_file import read_plain

MIN_SHARE = 1e-4  # of a source in a mixture
LONGEST_EXCHANGE = 64  # bytes of a question of data/tasks.py and its answer, control tokens included, and a few more
MAX_WHOLE = 10**12  # of a whole number that states no upper limit: it catches slips of the keyboard

Check = Callable[..., Iterator[str]]  # the values of some settings -> a sentence for each rule that they break
RULES: list[tuple[tuple[str, ...], Check]] = []  # the settings that a check reads, and the check
NOTES: list[tuple[tuple[str, ...], Check]] = []  # on what is allowed, but seldom meant


def check(config: Any) -> list[str]:
    """Every broken rule of a config, as sentences. Reads paths, writes nothing."""
    return [fault.sentence for fault in find_faults(config)]


def find_faults(config: Any) -> list[Fault]:
    """What `check` reports, with the settings each fault touches."""
    now, known = values(config), settings(config.__class__)
    found = [Fault((key,), sentence) for key, each in known.items() for sentence in _wrong_alone(each, now[key])]
    wrong = {key for fault in found for key in fault.keys}
    if not wrong and now.get("init.from") and now.get("run.dir", "") is None:
        now |= {"run.dir": default_run_dir(config)}
    return found + _broken(RULES, {key: value for key, value in now.items() if key not in wrong})


def find_notes(config: Any) -> list[str]:
    """Choices that are allowed but seldom meant; worth a line before the work begins."""
    return [note.sentence for note in _broken(NOTES, values(config))]


def _broken(rules: list[tuple[tuple[str, ...], Check]], now: Mapping[str, Any]) -> list[Fault]:
    held = [(keys, rule) for keys, rule in rules if now.keys() >= {*keys}]
    return [Fault(keys, sentence) for keys, rule in held for sentence in rule(*(now[key] for key in keys))]


def _wrong_alone(setting: Setting, value: Any) -> Iterator[str]:
    """What is wrong with the value of one setting, whatever the others are."""
    key, remedy = setting.key, "Give another, or leave it out."
    if setting.required and not value:
        yield f"{key} is missing: {setting.meaning}. Give {key}=..."
    elif isinstance(value, str):
        if not value.strip() and (setting.folder or (setting.kind is str and (setting.default or not setting.literal))):
            yield f"{key} is empty. {remedy}"
        elif setting.folder and "\0" in value:
            yield f"{key}={shown(value)} holds a NUL character. {remedy}"
        elif setting.folder and there(value) and not os.path.isdir(at(value)):
            yield f"{key}={shown(value)} is a file, and a folder is wanted. {remedy}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        high = MAX_WHOLE if setting.is_whole and setting.high is None else setting.high
        tests = {"at least": operator.ge, "more than": operator.gt, "at most": operator.le, "less than": operator.lt}
        limits = zip(tests, (setting.low, setting.above, high, setting.below), strict=True)
        stated = {words: limit for words, limit in limits if limit is not None}
        inside = all(tests[words](value, limit) for words, limit in stated.items())
        if not inside or not math.isfinite(value):
            wanted = [f"{words} {limit}" for words, limit in stated.items()]
            yield f"{key} must be {' and '.join([*wanted, 'finite'] if inside else wanted)}, got {shown(value)}."


def rule(*keys: str, into: list[tuple[tuple[str, ...], Check]] = RULES) -> Callable[[Check], Check]:
    """Register a check of the values of these settings."""

    def register(function: Check) -> Check:
        into.append((keys, function))
        return function

    return register


@rule("experiment")
def experiment_names_a_folder(experiment: str) -> Iterator[str]:
    if not re.fullmatch(r"[\w][\w.+-]*(/[\w][\w.+-]*)*", experiment) or len(experiment) > 100:
        yield f"experiment={shown(experiment)} names a folder: letters, digits, . _ + - only, 100 at most. Rename it."


@rule("init.experiment")
def first_experiment_has_a_name(experiment: str | None) -> Iterator[str]:
    if experiment is not None and not re.fullmatch(r"[\w.+/-]+", experiment):
        yield f"init.experiment={shown(experiment)} names no file of configs/experiment/. Leave it out."


@rule("init.experiment", "init.from", "trainer.devices", "trainer.nodes")
def one_device_trains_in_stages(experiment: str | None, source: str | None, devices: int, nodes: int) -> Iterator[str]:
    if experiment is not None and source is None and devices * nodes > 1:
        first = f"minigpt train experiment={experiment}"
        yield f"init.experiment={experiment} is for one device. Type {first}, then init.from=ITS_RUN on several."


@rule("model.n_embd", "model.n_head", "model.head_dim", "model.attention")
def heads_have_a_width(n_embd: int, n_head: int, head_dim: int, attention: str) -> Iterator[str]:
    if not head_dim and n_embd % n_head:
        remedy = f"Use {_nearest_multiples('model.n_embd', n_embd, n_head)}."
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


@rule("batch_tokens", "model.block_size", "trainer.micro_batch", "trainer.devices", "trainer.nodes")
def batch_splits_evenly(
    batch_tokens: int, block_size: int, micro_batch: int, devices: int, nodes: int
) -> Iterator[str]:
    factors = {"model.block_size": block_size, "trainer.micro_batch": micro_batch or 1, "trainer.devices": devices}
    factors["trainer.nodes"] = nodes
    unit = math.prod(factors.values())
    if batch_tokens % unit:
        parts = " x ".join(f"{key}={number}" for key, number in factors.items() if number > 1)
        remedy = f"Use {_nearest_multiples('batch_tokens', batch_tokens, unit)}."
        yield f"batch_tokens={batch_tokens} is not a multiple of {unit} tokens, {parts}. {remedy}"


@rule("trainer.devices", "trainer.nodes", "trainer.strategy")
def several_devices_need_a_strategy(devices: int, nodes: int, strategy: str) -> Iterator[str]:
    given = f"trainer.nodes={nodes} " * (nodes > 1) + f"trainer.devices={devices}"
    if nodes * devices > 1 and strategy == "auto":
        remedy = f"Type trainer=ddp {given}, or trainer=fsdp where a copy of the weights is too large"
        yield f"{given} needs trainer.strategy=ddp, fsdp or hsdp. {remedy}."
    elif nodes * devices == 1 and strategy in SHARDED:
        remedy = "Type trainer.devices=N, or leave out the strategy"
        yield f"trainer.strategy={strategy} shares weights out over several devices, got {given}. {remedy}."


@rule("trainer.devices", "trainer.nodes", "trainer.strategy", "trainer.shards")
def shards_and_copies_make_up_the_devices(devices: int, nodes: int, strategy: str, shards: int) -> Iterator[str]:
    world, parts = nodes * devices, shards or devices
    given = f"trainer.shards={shards}"
    if strategy != "hsdp" and shards:
        yield f"{given} is for trainer=hsdp, got trainer.strategy={strategy}. Leave it out."
    elif strategy == "hsdp" and world > 1 and (parts == 1 or parts == world or world % parts):
        fitting = [str(number) for number in range(2, world) if world % number == 0]
        remedy = f"Use trainer.shards={' or '.join(fitting)}" if fitting else "Use trainer=fsdp"
        yield f"{given}: {parts} devices to a copy of the weights, and several copies, are not {world}. {remedy}."


@rule("trainer.strategy", "trainer.precision", "trainer.gather", "trainer.reshard")
def sharding_fits_the_precision(strategy: str, precision: str, gather: str, reshard: str) -> Iterator[str]:
    if strategy in SHARDED and precision == "fp16":
        yield f"trainer.precision=fp16 scales losses, which trainer.strategy={strategy} can't. Use bf16 or fp32."
    elif gather == "bf16" and (strategy not in SHARDED or precision != "bf16"):
        remedy = "Add trainer=fsdp trainer.precision=bf16, or leave it out"
        yield f"trainer.gather=bf16 is for sharded weights and products in bf16. {remedy}."
    if reshard != "auto" and strategy not in SHARDED:
        yield f"trainer.reshard={reshard} is for sharded weights. Add trainer=fsdp, or leave it out."


@rule("trainer.device", "trainer.precision", "trainer.devices")
def mps_is_one_device_in_fp32(device: str, precision: str, devices: int) -> Iterator[str]:
    if device == "mps" and precision in ("bf16", "fp16", "fp64"):
        yield f"trainer.device=mps trains in fp32, got trainer.precision={precision}. Use trainer.precision=fp32."
    elif device == "mps" and devices > 1:
        yield f"trainer.device=mps is one device, got trainer.devices={devices}. Use trainer.devices=1."


@rule("trainer.max_steps", "trainer.max_tokens", "trainer.max_minutes")
def run_has_an_end(*limits: float | None) -> Iterator[str]:
    if not any(limits):
        yield "The run has no end: give trainer.max_steps, trainer.max_tokens or trainer.max_minutes."


@rule("trainer.patience", "validate.every_steps")
def patience_needs_validations(patience: int, every_steps: int) -> Iterator[str]:
    if patience and not every_steps:
        yield f"trainer.patience={patience} counts validations: set validate.every_steps, or trainer.patience=0."


@rule("data.shards", "data.mix", "data.source", "data.val_source")
def shards_are_all(
    shards: str | None, mix: Mapping[str, float], source: str | None, val_source: str | None
) -> Iterator[str]:
    for key, value in {"mix": mix, "source": source, "val_source": val_source}.items():
        if shards is not None and value:
            yield f"data.shards holds text and validation text, and would ignore data.{key}. Leave one out."
    if shards is not None and not is_url(shards):
        yield f"data.shards={shown(shards)} is no URL. Of a folder on this machine: data.mix={shown(shards)[1:-1]}:1."


@rule("data.name", "data.source", "data.dir", "data.mix", "data.shards")
def source_is_there(
    name: str, source: str | None, folder: str, mix: Mapping[str, float], shards: str | None
) -> Iterator[str]:
    if shards is not None:
        return
    if mix:
        if source is not None:
            yield f"data.mix names its sources itself and would ignore data.source={shown(source)}. Leave one out."
    elif not source:
        if name == "text":
            yield "data=text needs your text. Add data.source=FILE_OR_DIR."
        elif name == "chat":
            yield "data=chat needs your conversations. Add data.source=FILE_OR_DIR of JSON lines."
        elif source == "":
            yield "data.source is empty. Give a file or folder, or leave it out."
    elif name in ("stdlib", "tasks"):
        yield f"data={name} would ignore data.source={shown(name_of(source))}. To train on your text, add data=text."
    elif missing(source) and not _was_prepared(source, folder):
        for place in missing(source):
            yield f"data.source={shown(place)} does not exist{_from_here(place)}. Give an existing file or folder."
    elif name == "shakespeare_char" and os.path.isdir(at(source)):
        yield f"data=shakespeare_char reads one file, got the folder data.source={shown(source)}."


@rule("tokenizer.name", "tokenizer.file", "tokenizer.eot")
def tokenizer_file_is_used(name: str, file: str | None, eot: str | None) -> Iterator[str]:
    if name != "file":
        for key, value in (("file", file), ("eot", eot)):
            if value is not None:
                yield f"tokenizer={name} would ignore tokenizer.{key}={shown(value)}. To use it, add tokenizer=file."
    elif file is not None and not os.path.isfile(at(file)):
        yield f"tokenizer.file={shown(file)} is not a file{_from_here(file)}. Give a tokenizer.json."


@rule("data.mix", "data.dir", "data.val_source")
def sources_of_the_mix_are_there(mix: Mapping[str, float], folder: str, val_source: str | None) -> Iterator[str]:
    if mix and val_source is not None:
        yield "data.mix validates on a part of each source and would ignore data.val_source. Leave it out."
    wrong = [source for source, share in mix.items() if not share > 0]
    for source in wrong:
        yield f"data.mix gives {shown(name_of(source))} the share {mix[source]:g}; wanted a number above 0."
    for source, share in mix.items():
        if not wrong and share < MIN_SHARE * sum(mix.values()):
            yield f"data.mix gives {shown(name_of(source))} less than {MIN_SHARE:g} of the whole. Leave it out."
        if source not in ("stdlib", "shakespeare_char") and missing(source) and not _was_prepared(source, folder):
            yield f"data.mix: {shown(source)} does not exist{_from_here(source)}. Give a file or a folder."


@rule("data.mask_documents", "tokenizer.name")
def documents_have_ends(mask_documents: bool, tokenizer: str) -> Iterator[str]:
    if mask_documents and tokenizer == "char":
        yield "data.mask_documents=true needs an end-of-text token, and tokenizer=char has none. Use tokenizer=byte."


@rule("data.name", "tokenizer.name", "data.mask_documents", "data.mix", "data.shards")
def conversations_have_roles(
    name: str, tokenizer: str, mask_documents: bool, mix: Mapping[str, float], shards: str | None
) -> Iterator[str]:
    if name not in ("chat", "tasks"):
        return
    if tokenizer == "char":
        yield f"data={name} needs control tokens, and tokenizer=char has none. Use tokenizer=byte."
    if not mask_documents:
        yield f"data={name} keeps conversations apart, got data.mask_documents=false. Use data.mask_documents=true."
    for key, value in {"mix": mix, "shards": shards}.items():
        if value:
            yield f"data={name} has conversations of its own and would ignore data.{key}. Leave one out."


@rule("data.name", "data.mask_documents", "samples.every_steps", "samples.prompt", into=NOTES)
def samples_begin_with_text(name: str, mask_documents: bool, every_steps: int, prompt: str) -> Iterator[str]:
    if mask_documents and every_steps and not prompt and name not in ("chat", "tasks"):
        learned = "with data.mask_documents=true nothing is learned about what follows end-of-text"
        yield f"Live samples begin with end-of-text, and {learned}. Try samples.prompt=TEXT."


@rule("data.name", "data.val_source", "data.dir")
def validation_text_is_there(name: str, source: str | None, folder: str) -> Iterator[str]:
    if source is None:
        return
    if name not in ("text", "chat"):
        given = f"data.val_source={shown(name_of(source))}"
        yield f"data={name} has its own validation split and would ignore {given}. For your own text, add data=text."
    elif not source:
        yield "data.val_source is empty. Give a file or folder, or leave it out."
    elif missing(source) and not _was_prepared(source, folder, "val_source"):
        for place in missing(source):
            yield f"data.val_source={shown(place)} does not exist{_from_here(place)}. Give an existing file or folder."


def _was_prepared(source: str, folder: str, key: str = "source") -> bool:
    """Whether tokens of a text that is gone are still kept: training goes on with them."""
    wanted = name_of(source)
    for path in glob.glob(os.path.join(glob.escape(at(folder)), "*", "prepared.json")):
        try:
            if json.loads(read_plain(path))["keys"][key] == wanted:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


@rule("prepare.engine", "ray.address")
def ray_is_here(engine: str, address: str | None) -> Iterator[str]:
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        yield f"prepare.engine=ray needs the package 'ray'. Type: {sys.executable} -m pip install ray"
    if engine != "ray" and address is not None:
        yield f"ray.address={shown(address)} is for prepare.engine=ray. Add it, or leave the address out."


@rule("data.mix", "prepare.part", "prepare.slurm")
def parts_are_of_one_source(mix: Mapping[str, float], part: str | None, slurm: int) -> Iterator[str]:
    if mix and (part is not None or slurm):
        remedy = "Prepare each source alone with tokenizer=gpt2 or tokenizer=file, then the mixture without parts"
        yield f"prepare.part and prepare.slurm are for one source, got data.mix with {len(mix)}. {remedy}."


@rule("prepare.part")
def parts_are_counted(part: str | None) -> Iterator[str]:
    if part is not None:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            yield f"prepare.part={shown(part)} is no part; wanted i/n with i from 1 to n: prepare.part=1/16."


@rule("data.encoding")
def encoding_is_known(encoding: str) -> Iterator[str]:
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        yield f"data.encoding={shown(encoding)} is not a text encoding that Python knows. Use utf-8, latin-1 ..."


@rule("logger.name")
def tensorboard_is_installed(name: str) -> Iterator[str]:
    if name == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        yield f"logger=tensorboard needs the package 'tensorboard'. Type: {sys.executable} -m pip install tensorboard"


@rule("format", "dir")
def exports_are_possible(form: str, folder: str | None) -> Iterator[str]:
    if form == "gguf" and importlib.util.find_spec("gguf") is None:
        yield (
            f"format=gguf needs the Python package 'gguf', which {sys.executable} lacks. "
            f"Type: {sys.executable} -m pip install gguf"
        )
    if folder and os.path.lexists(os.path.expanduser(folder)):
        yield f"dir={shown(folder)} is there already, and an export overwrites nothing. Give a new folder."


@rule("init.from", "run.dir")
def starting_weights_are_there(source: str | None, folder: str | None) -> Iterator[str]:
    if source is not None and not is_begun(folder):  # a run that continues reads its own checkpoint
        remedy = "Give a run, a checkpoint or a model's folder. To continue a run without it, give that run's run.dir."
        yield from _not_there("init.from", source, remedy)


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
        yield f"adapter={name} lies on a trained model. Say which: init.from=RUN_OR_FOLDER."
    if strategy in SHARDED:
        yield f"adapter={name} wants the model whole on each device, got trainer.strategy={strategy}. Use trainer=ddp."


@rule("objective.name", "objective.task", "objective.answers", "data.name", "init.from", "init.experiment")
def rewards_have_questions(
    name: str, task: str, answers: int, data: str, source: str | None, experiment: str | None
) -> Iterator[str]:
    if name != "grpo":
        for key, value in (("task", task), ("answers", answers)):
            if value != getattr(ObjectiveConfig, key):
                yield f"objective.{key}={shown(value)} is for objective=grpo. Add it, or leave this out."
        return
    if data != "tasks":
        yield f"objective=grpo asks questions whose answers can be checked, which data={data} has not. Use data=tasks."
    if source is None and experiment is None:
        remedy = "Say which: init.from=RUN, for example one of experiment=chat_tiny"
        yield f"objective=grpo begins with a model that answers some of the questions. {remedy}."


@rule("objective.name", "objective.answers", "batch_tokens", "model.block_size", "trainer.micro_batch")
def groups_of_answers_are_whole(
    name: str, answers: int, batch_tokens: int, block_size: int, micro_batch: int
) -> Iterator[str]:
    if name != "grpo":
        return
    if batch_tokens % (answers * block_size):
        remedy = f"Use {_nearest_multiples('batch_tokens', batch_tokens, answers * block_size)}"
        groups = f"groups of objective.answers={answers} sequences of model.block_size={block_size}"
        yield f"batch_tokens={batch_tokens} does not hold whole {groups}. {remedy}."
    elif micro_batch % answers:
        remedy = f"Use {_nearest_multiples('trainer.micro_batch', micro_batch, answers)}"
        yield f"trainer.micro_batch={micro_batch} does not hold whole groups of objective.answers={answers}. {remedy}."
    if block_size < LONGEST_EXCHANGE:
        remedy = f"Use model.block_size={LONGEST_EXCHANGE} or more"
        yield f"model.block_size={block_size} does not hold every question of objective=grpo and its answer. {remedy}."


@rule("objective.name", "trainer.strategy", "model.dropout", "trainer.patience", "guard.spike_zscore")
def rewards_are_learned_as_written(
    name: str, strategy: str, dropout: float, patience: int, spike_zscore: float
) -> Iterator[str]:
    if name != "grpo":
        return
    if strategy in SHARDED:
        yield f"objective=grpo wants the model whole on each device, got trainer.strategy={strategy}. Use trainer=ddp."
    if dropout:
        yield f"objective=grpo learns what a model wrote, which model.dropout={dropout:g} changes. Use model.dropout=0."
    for key, value in (("trainer.patience", patience), ("guard.spike_zscore", spike_zscore)):
        if value:
            yield f"{key}={value:g} judges losses, which say nothing about a reward (objective=grpo). Leave it out."


@rule("objective.name", "sweep.metric")
def trials_are_judged_by_what_they_learn(name: str, metric: str) -> Iterator[str]:
    if name == "grpo":
        yield f"A sweep compares trials by their {metric}, which objective=grpo does not learn. Train one by one."


@rule("adapter.targets", "model.attention", "model.activation")
def adapters_have_a_place(targets: str, attention: str, activation: str) -> Iterator[str]:
    known = ["qkv", "out", "up", "down"] + ["gate"] * (activation == "swiglu")
    known += [*"qkv"] if attention != "softmax" else []  # whose three are one matrix, as in GPT-2
    wanted = {each.strip() for each in targets.split(",")}
    if wanted != {"all"} and (wrong := sorted(wanted - {*known})):
        remedy = f"Use all, or some of {','.join(known)}."
        yield f"adapter.targets={shown(targets)}: the model has no matrix {shown(wrong[0])}. {remedy}"


@rule("adapter")
def adapters_are_there(given: str | list[str] | None) -> Iterator[str]:
    for adapter in [given] if isinstance(given, str) else given or []:
        if not there(adapter):
            yield f"adapter={shown(adapter)} does not exist{_from_here(adapter)}. Give a run with adapter=lora."


@rule("checkpoint")
def checkpoint_is_there(given: str | list[str] | None) -> Iterator[str]:
    runs = [path for path in glob.glob("runs/*") if os.path.isdir(path)]
    remedy = f"Try checkpoint={max(runs, key=os.path.getmtime)}" if runs else f"Train one first: {typed('train')}"
    for checkpoint in given if isinstance(given, list) else [given or ""]:
        if checkpoint:
            yield from _not_there("checkpoint", checkpoint, remedy)
    if not given or given == [""]:
        yield f"checkpoint is missing. Give checkpoint=RUN_OR_CHECKPOINT_DIR. {remedy}"


@rule("host", "token_file")
def server_is_possible(host: str, token_file: str | None) -> Iterator[str]:
    if lacking := [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]:
        yield (
            f"serve needs the Python packages fastapi and uvicorn; {sys.executable} lacks {' and '.join(lacking)}. "
            f"Type: {sys.executable} -m pip install fastapi uvicorn"
        )
    if token_file is not None and not os.path.isfile(at(token_file)):
        yield f"token_file={shown(token_file)} is not a file{_from_here(token_file)}. Give a file that holds the token."
    elif not is_loopback(host) and token_file is None and not os.environ.get("MINIGPT_TOKEN"):
        remedy = "Put one into a file, token_file=FILE, or into the environment variable MINIGPT_TOKEN."
        yield f"host={shown(host)} can be reached from other machines, so clients must show a token. {remedy}"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@rule("device", "precision")
def sample_precision_fits_device(device: str, precision: str) -> Iterator[str]:
    if device == "mps" and precision == "fp64":
        yield "device=mps has no fp64. Use precision=fp32 or device=cpu."


@rule("samples.prompt")
@rule("prompt")
def prompts_are_text(prompts: list[str] | str) -> Iterator[str]:
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        bad = re.search("[\ud800-\udfff]", prompt)
        if bad:
            where = f"not valid UTF-8 at position {bad.start()}"
            yield f"The prompt {shown(prompt)} is {where}. Put it in a UTF-8 file: prompt_file="


@rule("prompt_file")
def prompt_file_is_there(prompt_file: str | None) -> Iterator[str]:
    if prompt_file is not None and not os.path.isfile(at(prompt_file)):
        yield f"prompt_file={shown(prompt_file)} is not a file{_from_here(prompt_file)}. Give a text file."


@rule("versus")
def other_checkpoint_is_there(versus: str | None) -> Iterator[str]:
    if versus is not None:
        yield from _not_there("versus", versus, "Give a run or checkpoint directory.")


@rule("file", "questions")
def files_to_score_are_there(files: list[str], questions: list[str]) -> Iterator[str]:
    if not files and not questions:
        yield "There is nothing to score. Give file=TEXT or questions=FILE.jsonl."
    for key, path in (*(("file", each) for each in files), *(("questions", each) for each in questions)):
        if not os.path.isfile(at(path)):
            yield f"{key}={shown(path)} is not a file{_from_here(path)}. Give a file."


@rule("file", "questions", "json", "per_token")
def results_have_files_of_their_own(
    files: list[str], questions: list[str], json: str | None, per_token: str | None
) -> Iterator[str]:
    taken = {os.path.realpath(at(path)) for path in (*files, *questions)}
    for key, path in (("json", json), ("per_token", per_token)):
        if path is not None:
            place = os.path.realpath(os.path.expanduser(path))
            odd = os.path.exists(place) and not os.path.isfile(place)  # a folder, /dev/null, a pipe
            if not path or odd or not os.path.isdir(os.path.dirname(place)):
                yield f"{key}={shown(path)} is no file in an existing folder{_from_here(path)}. Give another name."
            elif place in taken:
                yield f"{key}={shown(path)} is a file that is used already. Give another name."
            taken.add(place)
    if per_token is not None and not files:
        yield "per_token= is for texts. Give file=TEXT, or leave it out."


@rule("stop")
def stops_are_not_empty(stop: list[str]) -> Iterator[str]:
    if "" in stop:
        yield "stop holds an empty string, which would end every text at once. Remove it."


@rule("sweep.storage")
def storage_is_a_url(storage: str | None) -> Iterator[str]:
    if storage is not None and not re.match(r"[a-z][\w+]*://.", storage):
        remedy = "Write sqlite:///FILE or postgresql://USER@HOST/DATABASE, or leave it out for a file in sweep.dir."
        yield f"sweep.storage={shown(storage)} is not the URL of a database. {remedy}"


@rule("what")
def parts_can_be_measured(what: str) -> Iterator[str]:
    parts = ("training", "sampling", "variants", "resuming")
    if what == "scaling":
        return
    for part in set(what.split(",")) - set(parts):
        remedy = "Give it alone" if part == "scaling" else f"Give some of {','.join(parts)}, or scaling alone"
        yield f"what={what}: {shown(part)} can't be measured{' beside others' * (part == 'scaling')}. {remedy}."


@rule("what", "trainer.strategy", "trainer.devices", "trainer.nodes")
def scaling_has_devices(what: str, strategy: str, devices: int, nodes: int) -> Iterator[str]:
    if what == "scaling" and strategy in ("auto", "ddp") and nodes * devices == 1:
        remedy = "Add trainer=ddp trainer.devices=N, under torchrun or srun trainer=ddp alone; fsdp and hsdp likewise"
        yield f"what=scaling measures several devices, got trainer.strategy={strategy} trainer.devices=1. {remedy}."


@rule("nanogpt")
def checkout_is_there(nanogpt: str | None) -> Iterator[str]:
    names = ("train.py", "model.py", "configurator.py")
    if nanogpt is not None and not all(os.path.isfile(os.path.join(at(nanogpt), name)) for name in names):
        remedy = "Give a checkout: git clone https://github.com/karpathy/nanoGPT"
        yield f"nanogpt={shown(nanogpt)} is no folder with {', '.join(names)}{_from_here(nanogpt)}. {remedy}"


@rule("trainer.strategy", "trainer.devices", "trainer.nodes", into=NOTES)
def ddp_has_devices(strategy: str, devices: int, nodes: int) -> Iterator[str]:
    if strategy == "ddp" and nodes * devices == 1:
        yield "trainer.strategy=ddp with trainer.devices=1 trains on one device. For more, add trainer.devices=N."


@rule("data.val_source", "data.val_fraction", into=NOTES)
def fraction_is_used(val_source: str | None, val_fraction: float) -> Iterator[str]:
    if val_source is not None and val_fraction != 0.1:
        yield f"data.val_fraction={val_fraction:g} is not used: the validation text is data.val_source."


@rule("schedule.warmup_steps", "trainer.max_steps", "trainer.max_tokens", "batch_tokens", into=NOTES)
def warmup_ends(warmup_steps: int, max_steps: int | None, max_tokens: int | None, batch_tokens: int) -> Iterator[str]:
    steps = math.ceil(max_tokens / batch_tokens) if max_tokens else max_steps
    if steps is not None and warmup_steps > steps:
        remedy = f"The learning rate never reaches its peak. Try schedule.warmup_steps={steps // 10}."
        yield f"schedule.warmup_steps={warmup_steps} is longer than the run of {steps} steps. {remedy}"


def _nearest_multiples(key: str, value: int, unit: int) -> str:
    """`key=` with the multiples of unit on either side of value, positive ones only."""
    below = value // unit * unit
    return f"{key}={f'{below} or ' if below else ''}{below + unit}"


def _not_there(key: str, source: str, remedy: str) -> Iterator[str]:
    """The sentence on weights that are neither a path nor on the hub."""
    if is_hub_name(source):
        try:
            local_path(source)
        except UserFault as fault:
            yield f"{key}={fault}"
    elif not there(source):
        yield f"{key}={shown(source)} does not exist{_from_here(source)}. {remedy}"


def _from_here(path: str) -> str:
    return f" (looked from {os.getcwd()})" if path and not os.path.isabs(os.path.expanduser(path)) else ""
