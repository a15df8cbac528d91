"""The rules a config must obey beyond its types. Standard library only; never touches torch.

Every broken rule is reported at once, each sentence with what was got, what is wanted and what to type.
A rule is skipped while a setting it reads is itself out of range: one mistake, one sentence.
"""

import glob
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from minigpt.config.convert import Fault, settings, shown, values
from minigpt.config.schema import Setting
from minigpt.invocation import typed

MAX_WHOLE = 10**12  # of a whole number that states no upper limit: it catches slips of the keyboard


def check(config: Any) -> list[str]:
    """Every broken rule of a config, as sentences. Reads paths, writes nothing."""
    return [fault.sentence for fault in find_faults(config)]


def find_faults(config: Any) -> list[Fault]:
    """What `check` reports, with the settings each fault touches."""
    now = values(config)
    faults = [_fault_of(setting, now[key]) for key, setting in settings(config.__class__).items()]
    found = [fault for fault in faults if fault]
    return found + _broken(now, RULES, {key for fault in found for key in fault.keys})


def find_notes(config: Any) -> list[str]:
    """Choices that are allowed but seldom meant; worth a line before the work begins."""
    return [note.sentence for note in _broken(values(config), NOTES, set())]


def _broken(now: Mapping[str, Any], rules: list["Rule"], known_faults: set[str]) -> list[Fault]:
    """The broken rules among those that read no setting with a fault of its own."""
    fit = now.keys() - known_faults
    sentences = [(keys, rule(*(now[key] for key in keys))) for keys, rule in rules if fit.issuperset(keys)]
    return [Fault(keys, sentence) for keys, sentence in sentences if sentence]


def _fault_of(setting: Setting, value: Any) -> Fault | None:
    """What is wrong with one setting, whatever the others are."""
    if setting.required and not value:
        return Fault((setting.key,), f"{setting.key} is missing: {setting.meaning}. Give {setting.key}=...")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    high = MAX_WHOLE if setting.is_whole and setting.high is None else setting.high
    inside = (
        (setting.low is None or value >= setting.low)
        and (setting.above is None or value > setting.above)
        and (high is None or value <= high)
        and (setting.below is None or value < setting.below)
    )
    if inside and math.isfinite(value):
        return None
    limits = {"at least": setting.low, "more than": setting.above, "at most": high, "less than": setting.below}
    wanted = [f"{words} {limit}" for words, limit in limits.items() if limit is not None]
    wanted += ["finite"] if inside else []
    return Fault((setting.key,), f"{setting.key} must be {' and '.join(wanted)}, got {shown(value)}.")


# --- rules: the values of some settings -> a sentence, or "" when all is well ---


def heads_divide_width(n_embd: int, n_head: int) -> str:
    if n_embd % n_head == 0:
        return ""
    widths = _neighbours(n_embd, n_head)
    return (
        f"model.n_embd={n_embd} is not a multiple of model.n_head={n_head}: every head gets the same width. "
        f"Use {_either('model.n_embd', widths)}."
    )


def batch_holds_whole_windows(batch_tokens: int, block_size: int) -> str:
    if batch_tokens % block_size == 0:
        return ""
    return (
        f"batch_tokens={batch_tokens} is not a multiple of model.block_size={block_size}: a step reads whole windows. "
        f"Use {_either('batch_tokens', _neighbours(batch_tokens, block_size))}."
    )


def batch_splits_evenly(batch_tokens: int, block_size: int, micro_batch: int, devices: int) -> str:
    unit = max(micro_batch, 1) * devices * block_size
    if batch_tokens % block_size or batch_tokens % unit == 0:
        return ""
    parts = [f"model.block_size={block_size}"]
    parts += [f"trainer.micro_batch={micro_batch}"] if micro_batch else []
    parts += [f"trainer.devices={devices}"] if devices > 1 else []
    return (
        f"batch_tokens={batch_tokens} can't be split evenly into {' x '.join(parts)} = {unit} tokens. "
        f"Use {_either('batch_tokens', _neighbours(batch_tokens, unit))}."
    )


def several_devices_need_ddp(devices: int, strategy: str) -> str:
    if devices == 1 or strategy == "ddp":
        return ""
    return f"trainer.devices={devices} needs trainer.strategy=ddp. Type trainer=ddp trainer.devices={devices}."


def mps_is_one_device_in_fp32(device: str, precision: str, devices: int) -> str:
    if device != "mps":
        return ""
    if precision in ("bf16", "fp64"):
        return f"trainer.device=mps trains in fp32, got trainer.precision={precision}. Use trainer.precision=fp32."
    return f"trainer.device=mps is one device, got trainer.devices={devices}. Use devices=1." if devices > 1 else ""


def sample_precision_fits_device(device: str, precision: str) -> str:
    if device == "mps" and precision == "fp64":
        return "device=mps has no fp64. Use precision=fp32 or device=cpu."
    return ""


def run_has_an_end(max_steps: int | None, max_tokens: int | None, max_minutes: float | None) -> str:
    if max_steps or max_tokens or max_minutes:
        return ""
    return "The run has no end: give trainer.max_steps, trainer.max_tokens or trainer.max_minutes."


def patience_needs_validations(patience: int, every_steps: int) -> str:
    if not patience or every_steps:
        return ""
    return (
        f"trainer.patience={patience} counts validations, and validate.every_steps=0 makes none before the end. "
        "Set validate.every_steps, or trainer.patience=0."
    )


def ddp_has_devices(strategy: str, devices: int) -> str:
    if strategy != "ddp" or devices > 1:
        return ""
    return "trainer.strategy=ddp with trainer.devices=1 trains on one device. For more, add trainer.devices=N."


def tokenizer_has_a_name(name: str) -> str:
    return "" if name else "tokenizer.name is empty. Use tokenizer=bpe, or see --help for the others."


def source_is_there(name: str, source: str | None, folder: str) -> str:
    if not source:
        if name == "text":
            return "data=text needs your text. Add data.source=FILE_OR_DIR."
        return "data.source is empty. Give a file or folder, or leave it out." if source == "" else ""
    if name == "stdlib":
        return (
            f"data=stdlib reads Python's own source and would ignore data.source={shown(source)}. "
            f"To train on your text, add data=text."
        )
    if not _there(source) and not _was_prepared(source, folder):
        return f"data.source={shown(source)} does not exist{_from_here(source)}. Give an existing file or folder."
    if name == "shakespeare_char" and os.path.isdir(_at(source)):
        return f"data=shakespeare_char reads one file, got the folder data.source={shown(source)}."
    return ""


def _was_prepared(source: str, folder: str) -> bool:
    """Whether tokens of a text that is gone are still kept: training goes on with them."""
    wanted = os.path.abspath(os.path.expanduser(source))
    for path in glob.glob(os.path.join(glob.escape(_at(folder)), "*", "prepared.json")):
        try:
            with open(path, encoding="utf-8") as file:
                if json.load(file)["keys"]["source"] == wanted:
                    return True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


def encoding_is_known(encoding: str) -> str:
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        return f"data.encoding={shown(encoding)} is no text encoding that Python knows. Use utf-8, latin-1, utf-16 ..."
    return ""


def folder_can_be(key: str, remedy: str) -> Callable[[str | None], str]:
    def rule(path: str | None) -> str:
        if path is None:
            return ""
        if not path.strip():
            return f"{key} is empty. {remedy}"
        if "\0" in path:
            return f"{key}={shown(path)} holds a NUL character. {remedy}"
        if _there(path) and not os.path.isdir(_at(path)):
            return f"{key}={shown(path)} is a file, and a folder is wanted. {remedy}"
        return ""

    return rule


def experiment_names_a_folder(experiment: str) -> str:
    if re.fullmatch(r"[\w][\w.+-]*(/[\w][\w.+-]*)*", experiment) and len(experiment) <= 100:
        return ""
    return (
        f"experiment={shown(experiment)} names the run's folder: letters, digits and . _ + - only, 100 at most. "
        "Rename the experiment, or give run.dir."
    )


def starting_weights_are_there(source: str | None) -> str:
    if source is None or _there(source):
        return ""
    return f"init.from={shown(source)} does not exist{_from_here(source)}. Give a run or checkpoint directory."


def checkpoint_is_there(checkpoint: str | None) -> str:
    if checkpoint and _there(checkpoint):
        return ""
    newest = _newest_run()
    remedy = f"Try checkpoint={newest}" if newest else f"Train one first: {typed('train')}"
    if not checkpoint:
        return f"checkpoint is missing. Give checkpoint=RUN_OR_CHECKPOINT_DIR. {remedy}"
    return f"checkpoint={shown(checkpoint)} does not exist{_from_here(checkpoint)}. {remedy}"


def prompt_file_is_there(prompt_file: str | None) -> str:
    if prompt_file is None or os.path.isfile(_at(prompt_file)):
        return ""
    return f"prompt_file={shown(prompt_file)} is no file{_from_here(prompt_file)}. Give a text file."


def prompts_are_text(prompts: list[str] | str) -> str:
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        bad = next((place for place, letter in enumerate(prompt) if "\ud800" <= letter <= "\udfff"), None)
        if bad is not None:
            return (
                f"The prompt {shown(prompt)} is not valid UTF-8 at position {bad}. Put it in a UTF-8 file: prompt_file="
            )
    return ""


def project_has_a_name(project: str) -> str:
    return "" if project.strip() else "logger.project is empty. Give a name, or leave it out for minigpt."


def storage_is_a_url(storage: str | None) -> str:
    if storage is None or re.match(r"[a-z][\w+]*://.", storage):
        return ""
    return (
        f"sweep.storage={shown(storage)} is no URL of a database. Write sqlite:///FILE or "
        "postgresql://USER@HOST/DATABASE, or leave it out for a journal file in sweep.dir."
    )


def stops_are_not_empty(stop: list[str]) -> str:
    return "stop holds an empty string, which would end every text at once. Remove it." if "" in stop else ""


def warmup_ends(warmup_steps: int, max_steps: int | None, max_tokens: int | None, batch_tokens: int) -> str:
    steps = math.ceil(max_tokens / batch_tokens) if max_tokens else max_steps
    if steps is None or warmup_steps <= steps:
        return ""
    return (
        f"schedule.warmup_steps={warmup_steps} is longer than the run of {steps} steps: the learning rate "
        f"never reaches its peak. For a real run type schedule.warmup_steps={steps // 10}."
    )


def parts_can_be_measured(what: str) -> str:
    parts = ("training", "sampling", "tokenization", "loading")
    strange = [part for part in what.split(",") if part not in parts]
    return f"what={what}: {shown(strange[0])} can't be measured. Give some of {','.join(parts)}." if strange else ""


def checkout_is_there(nanogpt: str | None) -> str:
    files = (
        [os.path.join(_at(nanogpt), name) for name in ("train.py", "model.py", "configurator.py")] if nanogpt else []
    )
    missing = [file for file in files if not os.path.isfile(file)] if files else [shown(nanogpt)]
    if nanogpt is None or not missing:
        return ""
    return (
        f"nanogpt={nanogpt}: there is no {missing[0]}{_from_here(nanogpt)}. Give a checkout: "
        "git clone https://github.com/karpathy/nanoGPT"
    )


Rule = tuple[tuple[str, ...], Callable[..., str]]


def tensorboard_is_installed(name: str) -> str:
    if name != "tensorboard" or importlib.util.find_spec("tensorboard") is not None:
        return ""
    return (
        f"logger=tensorboard needs the Python package 'tensorboard', which {sys.executable} lacks. "
        f"Type: {sys.executable} -m pip install tensorboard"
    )


RULES: list[Rule] = [
    (("logger.name",), tensorboard_is_installed),
    (("experiment",), experiment_names_a_folder),
    (("model.n_embd", "model.n_head"), heads_divide_width),
    (("batch_tokens", "model.block_size"), batch_holds_whole_windows),
    (("batch_tokens", "model.block_size", "trainer.micro_batch", "trainer.devices"), batch_splits_evenly),
    (("tokenizer.name",), tokenizer_has_a_name),
    (("data.name", "data.source", "data.dir"), source_is_there),
    (("data.dir",), folder_can_be("data.dir", "Prepared tokens land there; the default is data.dir=data")),
    (("data.encoding",), encoding_is_known),
    (("trainer.devices", "trainer.strategy"), several_devices_need_ddp),
    (("trainer.device", "trainer.precision", "trainer.devices"), mps_is_one_device_in_fp32),
    (("trainer.max_steps", "trainer.max_tokens", "trainer.max_minutes"), run_has_an_end),
    (("trainer.patience", "validate.every_steps"), patience_needs_validations),
    (("samples.prompt",), prompts_are_text),
    (("logger.project",), project_has_a_name),
    (("run.dir",), folder_can_be("run.dir", "Give another folder, or leave run.dir out for a name of its own.")),
    (("out",), folder_can_be("out", "Give another folder, or leave it out.")),
    (("sweep.dir",), folder_can_be("sweep.dir", "Give another folder, or leave sweep.dir out for a name of its own.")),
    (("sweep.storage",), storage_is_a_url),
    (("init.from",), starting_weights_are_there),
    (("checkpoint",), checkpoint_is_there),
    (("device", "precision"), sample_precision_fits_device),
    (("prompt",), prompts_are_text),
    (("prompt_file",), prompt_file_is_there),
    (("stop",), stops_are_not_empty),
    (("what",), parts_can_be_measured),
    (("nanogpt",), checkout_is_there),
]

NOTES: list[Rule] = [
    (("trainer.strategy", "trainer.devices"), ddp_has_devices),
    (("schedule.warmup_steps", "trainer.max_steps", "trainer.max_tokens", "batch_tokens"), warmup_ends),
]


def _neighbours(value: int, unit: int) -> list[int]:
    """The multiples of unit on either side of value, positive ones only."""
    below = value // unit * unit
    return [each for each in (below, below + unit) if each > 0]


def _either(key: str, values: list[int]) -> str:
    return f"{key}=" + " or ".join(str(value) for value in values)


def _at(path: str) -> str:
    """The path, or with a leading ~ as the home folder: configs hold paths as they were typed."""
    return path if os.path.exists(path) else os.path.expanduser(path)


def _there(path: str) -> bool:
    return os.path.exists(_at(path))


def _from_here(path: str) -> str:
    return f" (looked from {os.getcwd()})" if path and not os.path.isabs(os.path.expanduser(path)) else ""


def _newest_run() -> str:
    try:
        runs = [entry for entry in os.scandir("runs") if entry.is_dir()]
        return max(runs, key=lambda entry: entry.stat().st_mtime).path if runs else ""
    except OSError:
        return ""
