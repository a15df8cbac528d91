"""What a benchmark is going to measure: from its command line to a checked plan. Torch is not imported."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from minigpt.config.compose import compose, find_groups
from minigpt.config.convert import nearest, no_setting, settings, shown
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

PARTS = ("training", "sampling", "tokenization", "loading", "growth")
STANDARD = PARTS[:4]  # unless `what` says otherwise


@dataclass(frozen=True)
class Preset:
    """A size that others publish figures of."""

    settings: tuple[str, ...]  # of scripts/train.py
    steps: int  # timed in each turn
    warm_up: int  # made before, not timed
    vocab_size: int
    new_tokens: int  # written after each prompt when sampling


def _sizes(n_layer: int, n_head: int, n_embd: int, block_size: int, batch: int) -> tuple[str, ...]:
    return (
        f"model.n_layer={n_layer}", f"model.n_head={n_head}", f"model.n_embd={n_embd}",
        f"model.block_size={block_size}", f"batch_tokens={batch * block_size}", f"trainer.micro_batch={batch}",
        "model.bias=false", "model.activation=gelu", "model.dropout=0",
    )  # fmt: skip


PRESETS = {
    "c0": Preset(_sizes(4, 4, 128, 64, 12), steps=300, warm_up=20, vocab_size=65, new_tokens=48),
    "c1": Preset(_sizes(6, 6, 384, 256, 16), steps=40, warm_up=10, vocab_size=65, new_tokens=240),
    "124m": Preset(
        (*_sizes(12, 12, 768, 1024, 32), "optimizer.lr=6e-4", "optimizer.beta2=0.95"),
        steps=60,
        warm_up=20,
        vocab_size=50257,
        new_tokens=64,
    ),
}

# Settings of scripts/train.py that the benchmark gives itself -> what to type instead.
OURS = {
    "trainer.max_steps": "steps=N times N steps of each turn",
    "trainer.max_tokens": "steps=N times N steps of each turn",
    "trainer.max_minutes": "steps=N times N steps of each turn",
    "trainer.devices": "one device is measured",
    "trainer.strategy": "one device is measured",
    "run.dir": "runs go to a temporary folder; TMPDIR=DIR in front of the command says where that is",
    "init.from": "all start from the same new weights",
    "experiment": "preset=c0|c1|124m names the size, and single settings change it",
}
OUR_GROUPS = ("data", "tokenizer")  # tokens are made on the spot

HELP = """Measure speed on this machine: `python scripts/benchmark.py preset=c0|c1|124m [key=value ...]`

  preset=NAME         c0: 4 layers, 4 heads, 128 wide, context 64, batch 12, 65 characters (nanoGPT's CPU preset)
                      c1: 6 layers, 6 heads, 384 wide, context 256, batch 16, 65 characters
                      124m: GPT-2 small, context 1024, batch 32 (batch_tokens= and trainer.micro_batch= change it)
  what=PART,PART      training sampling tokenization loading (these four are the default), growth
  rounds=5            turns of each entrant, in turn: A B C A B C ..., each in a process of its own
  steps=N             timed optimizer steps of a turn (c0 300, c1 40, 124m 60), after a warm-up that is not timed
  nanogpt=CHECKOUT    a folder with nanoGPT: its own train.py runs beside ours, and the loss curves are compared:
                      the same weights and batches must give the same losses, else all speeds are VOID (exit 1);
                      sampling: its own generate
  curve_steps=50      optimizer steps of that comparison
  new_tokens=N        sampling: tokens written after each prompt (c0 48, c1 240, 124m 64)
  huggingface=true    Hugging Face's GPT2LMHeadModel of the same size runs beside, in fp32 and bf16: a training loop
                      around it, and its generate
  size_limit_gb=1     growth: the largest data set in GB (most of it links: even 10 takes half a GB in TMPDIR)
  write_to=DIR        growth: where growth.png and growth.md go (default: the current folder)

growth changes one thing at a time: context, width, depth, batch, data, checkpoint interval; then it continues a run
far on and watches the memory of a long one. With preset=c0 rounds=3 on two cores that is about ten minutes.

Every other key=value is a setting of scripts/train.py, such as trainer.precision=fp32 trainer.compile=on.
Tokens are made on the spot and are the same for all entrants; nothing is downloaded. The last line holds the ratios.

Example: python scripts/benchmark.py preset=c0 nanogpt=../nanoGPT trainer.precision=fp32"""


@dataclass(frozen=True)
class Plan:
    """A benchmark, checked."""

    preset: str
    what: tuple[str, ...]
    rounds: int
    steps: int  # timed in each turn
    warm_up: int
    curve_steps: int
    new_tokens: int  # written after each prompt when sampling
    nanogpt: Path | None
    huggingface: bool
    size_limit_gb: float
    write_to: Path
    settings: tuple[str, ...]  # of scripts/train.py: the preset's, then the user's
    config: TrainConfig = field(default_factory=TrainConfig)  # of a turn, but for where its tokens are

    @property
    def vocab_size(self) -> int:
        """V of the tokens that are made."""
        return PRESETS[self.preset].vocab_size

    def arguments(self, folder: Path, *more: str, steps: int | None = None) -> list[str]:
        """Of scripts/train.py, for tokens that lie in `folder`.

        Args:
            folder: see `minigpt.benchmark.tokens`.
            more: settings that come last.
            steps: optimizer steps of the run; default those of a turn, one more than there are gaps between them.
        """
        total = steps or self.warm_up + self.steps + 1
        return [
            "data=text", f"data.source={folder / 'text.txt'}", f"data.dir={folder / 'data'}",
            f"tokenizer={'char' if self.vocab_size < 256 else 'byte'}",
            f"schedule.warmup_steps={min(10, total - 1)}", *self.settings, f"trainer.max_steps={total}", *more,
        ]  # fmt: skip


def read_plan(arguments: list[str]) -> Plan:
    """The benchmark that a command line describes.

    Raises:
        UserFault: with every fault at once.
        SystemExit: code 0, after --help has printed.
    """
    if not arguments or {"--help", "-h"} & set(arguments):
        print(HELP)
        raise SystemExit(0)
    own, theirs, faults = split(arguments)
    preset = own.get("preset", "")
    if preset not in PRESETS:
        given = f"preset={shown(preset)} is no preset" if preset else "which size? preset= is missing"
        faults.append(f"{given}. Give one of: {', '.join(f'preset={name}' for name in PRESETS)}")
    size = PRESETS.get(preset, PRESETS["c0"])
    plan = Plan(
        preset=preset if preset in PRESETS else "c0",
        what=_parts(own.get("what"), faults),
        rounds=_whole(own, "rounds", 5, faults),
        steps=_whole(own, "steps", size.steps, faults),
        warm_up=size.warm_up,
        curve_steps=_whole(own, "curve_steps", 50, faults, least=2),
        new_tokens=_whole(own, "new_tokens", size.new_tokens, faults, least=2),
        nanogpt=_checkout(own.get("nanogpt"), faults),
        huggingface=_yes(own.get("huggingface"), faults),
        size_limit_gb=_number(own, "size_limit_gb", 1.0, faults),
        write_to=_place(own.get("write_to", "."), faults),
        settings=(*size.settings, *theirs),
    )
    try:
        plan = replace(plan, config=compose("train", plan.arguments(Path(), f"data.source={__file__}")))
    except UserFault as fault:
        faults += fault.faults
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    return plan


OWN = (
    "preset", "what", "rounds", "steps", "nanogpt", "curve_steps", "new_tokens", "huggingface", "size_limit_gb",
    "write_to",
)  # fmt: skip


def split(arguments: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """(our own keys, the arguments of scripts/train.py, faults)."""
    known = [*settings(TrainConfig), *find_groups(TrainConfig)]
    own: dict[str, str] = {}
    theirs: list[str] = []
    faults: list[str] = []
    for argument in arguments:
        name, equals, text = argument.partition("=")
        meant = nearest(name, [*known, *OWN]) if name not in known else []
        if name in OWN and equals:
            own[name] = text
        elif name in OURS:
            faults.append(f"{name} is the benchmark's own to give. Leave it out: {OURS[name]}")
        elif name.partition(".")[0] in OUR_GROUPS:
            faults.append(f"{name}: the benchmark makes its own tokens, the same for all entrants. Leave it out")
        elif name in OWN:
            faults.append(f"{shown(argument)} is not how a setting is written: {name}=VALUE")
        elif equals and meant[:1] and meant[0] in OWN:
            faults.append(no_setting(name, OWN))
        else:
            theirs.append(argument)
    return own, theirs, faults


def _parts(text: str | None, faults: list[str]) -> tuple[str, ...]:
    if text is None:
        return STANDARD
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    strange = [part for part in parts if part not in PARTS]
    if strange:
        faults.append(f"what={text}: {shown(strange[0])} can't be measured. Wanted some of {','.join(PARTS)}")
    return parts


def _whole(own: Mapping[str, str], key: str, default: int, faults: list[str], *, least: int = 1) -> int:
    text = own.get(key, str(default))
    if text.isascii() and text.isdigit() and least <= int(text) <= 1_000_000:
        return int(text)
    faults.append(f"{key}={text}: wanted a whole number from {least} on, like {key}={default}")
    return default


def _number(own: Mapping[str, str], key: str, default: float, faults: list[str]) -> float:
    text = own.get(key, str(default))
    try:
        if 0.001 <= float(text) <= 100:
            return float(text)
    except ValueError:
        pass
    faults.append(f"{key}={text}: wanted a number from 0.001 to 100, like {key}={default:g}")
    return default


def _yes(text: str | None, faults: list[str]) -> bool:
    if text not in (None, "true", "false"):
        faults.append(f"huggingface={text}: wanted true or false")
    if text == "true" and importlib.util.find_spec("transformers") is None:
        faults.append(
            f"huggingface=true needs the Python package 'transformers', which {sys.executable} lacks and minigpt "
            f"itself never needs. Type: {sys.executable} -m pip install transformers"
        )
    return text == "true"


def _place(text: str, faults: list[str]) -> Path:
    folder = Path(os.path.expanduser(text))
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        faults.append(f"write_to={text}: no file can be written to {there}. Give a folder of yours")
    return folder


def _checkout(text: str | None, faults: list[str]) -> Path | None:
    if text is None:
        return None
    folder = Path(os.path.expanduser(text)).resolve()
    missing = [name for name in ("train.py", "model.py", "configurator.py") if not (folder / name).is_file()]
    if missing:
        faults.append(
            f"nanogpt={text}: there is no {missing[0]} in {folder}. Give a checkout: "
            "git clone https://github.com/karpathy/nanoGPT"
        )
        return None
    return folder
