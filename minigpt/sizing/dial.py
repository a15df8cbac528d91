"""budget=TIME: choose the settings of a training for a text and a time, by the law and this machine's speed.

All is chosen before the first step and kept in the run (config.yaml, budget.json); nothing later depends on a clock.
"""

import copy
import json
import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from minigpt.config.check import check
from minigpt.config.convert import as_typed, assign, seconds_of, values
from minigpt.config.run_names import config_hash
from minigpt.config.schema import TrainConfig
from minigpt.data.measures.baselines import VAL_BYTES, baselines
from minigpt.data.prepared import Prepared
from minigpt.data.preparing.prepare import prepare
from minigpt.data.sources.corpus import find_corpus, look_inside
from minigpt.faults import UserFault
from minigpt.files import write_json
from minigpt.invocation import typed
from minigpt.model.gpt import empty_gpt
from minigpt.ranks.group import Processes
from minigpt.redact import redact
from minigpt.report.plan import count_parameters
from minigpt.report.record import COPIED, read_mapping
from minigpt.screen import duration, short_number, size_text, table, tell
from minigpt.sizing.law import (
    AVERAGED,
    FEW_PASSES,
    LEAST_STEPS,
    OF_PILOT,
    Size,
    Text,
    choose,
    leveled,
    outside,
    pilot_of,
    train,
)
from minigpt.sizing.speeds import Speeds

# Fields of a Size -> names of settings.
OF_MODEL = ("n_layer", "n_embd", "n_head", "n_kv_head", "head_dim", "n_hidden", "block_size", "tied", "dropout")
OF_MUON = {name: f"optimizer.{name}" for name in ("lr", "matrix_lr", "beta2", "weight_decay", "average_fraction")}
OF_MUON |= {name: f"schedule.{name}" for name in ("warmup_steps", "final_lr_fraction")}
SETTINGS = {name: f"model.{name}" for name in OF_MODEL} | OF_MUON
OF_BPE = {"vocab_size": "tokenizer.vocab_size", "bpe_dropout": "tokenizer.dropout"}
SETTINGS |= OF_BPE | {"batch_tokens": "batch_tokens", "steps": "trainer.max_steps"}

LENGTHS = {f"trainer.{name}" for name in ("max_steps", "max_tokens", "max_minutes", "epochs")}

LEAST_BYTES = 10_000  # of a text
USUAL = (2.0, 2.3)  # bits per byte of 7-gram and xz, before a text is measured
RATES = {"lr", "matrix_lr", "weight_decay"}
MEASURED_WITH = ("rotary", "swiglu", "induction", "muon")
GUESS = {"cpu": 1e11, "mps": 1e12, "cuda": 5e13}  # FLOP/s, until a size was measured
COMPILE_SECONDS, AGAIN = 25.0, 6.0  # to compile a model; to read it from the compiler's cache
COMPILE_SHARE = {"cpu": 0.1, "cuda": 0.15}  # of a budget, at most, for all measurements and compiling
VALIDATIONS, VALIDATION_SHARE = 10, 0.08  # at most; at most this share of the time
FORWARD = 2.5  # tokens validated in the time of training on one
LEAST_SHARE = 0.2  # of a budget, at least, for training
LONGER = 4  # times a budget: whether more time would help
SAVE_SECONDS = 120  # between checkpoints, at most
REPORT_SHARE = 0.5  # the time of the final report / the time of loading torch

PILOTS = "pilots.json"  # beside the tokens: what short trainings on them have shown
PILOT_SHARE, SHORTEST_SHARE = 0.12, 0.15  # of a budget, at most, for the pilot; for the shortest one
COPIES_RANGE = 0.2  # error of a forecast for a text of which more than COPIED stands in both splits

Measure = Callable[[TrainConfig, int, float], float]  # config, vocabulary, seconds -> tokens a second, of all devices
# Trains a config on a text -> bits per byte, after half of the steps and at the end.
Pilot = Callable[[TrainConfig, Prepared], tuple[float, float]]


class Dial:
    """Chooses the settings that a config leaves open.

    Args:
        config: with a budget.
        device: cpu | mps | cuda.
        measure: trains a config with a vocabulary for some seconds.
        pilot: trains a config on a text.
        seconds: the budget; measuring takes up to a tenth of it, the pilot up to 15 %.
        processes: of the run; all ranks use the times of rank 0.
    """

    def __init__(
        self, config: TrainConfig, device: str, measure: Measure, pilot: Pilot, seconds: float, processes: Processes
    ):
        if lengths := config.typed & LENGTHS:
            raise UserFault(f"budget={config.budget} sets how long is trained. Leave out {', '.join(sorted(lengths))}")
        self.config, self.device, self.pilot, self.processes = config, device, pilot, processes
        self.seconds = seconds
        self.started, self.validations = self.elapsed(), VALIDATIONS
        self.others: dict[str, Any] = {}  # settings that are no part of a size
        if device == "cuda" and config.trainer.compile == "auto":  # on a CPU "auto" compiles no short training
            self.others["trainer.compile"] = "off"  # until it was measured
        given = values(config)
        typed_values = {name: given[key] for name, key in SETTINGS.items() if key in config.typed}
        follow = ("n_kv_head", "head_dim", "n_hidden")  # 0: they follow from others
        self.fixed = {name: value for name, value in typed_values.items() if value or name not in follow}
        if config.optimizer.name != "muon" or config.trainer.patience:  # patience ends a run before its mean is taken
            self.fixed.setdefault("average_fraction", 0.0)
        if device != "cpu" or config.tokenizer.name != "bpe":  # 2.5 us a token of one core; no GPU was measured
            self.fixed.setdefault("bpe_dropout", 0.0)

        def measure_size(size: Size, seconds: float) -> float:
            return measure(applied(config, self.settings(size)), size.vocab_size, seconds)

        self.speeds = Speeds(measure_size, GUESS[device], 0.1 * seconds, self.elapsed)

    def elapsed(self) -> float:
        """Return the seconds since the command began."""
        return float(self.processes.gather(str(time.monotonic() - self.config.since))[0])

    def read(self, seconds: float) -> tuple[Prepared, Text]:
        """Prepare the text, with the vocabulary that is best for this time, and measure it."""
        data, tokenizer = copy.copy(self.config.data), copy.copy(self.config.tokenizer)
        with self.processes.rank_zero_first():
            corpus = look_inside(find_corpus(data))
        if corpus.size < LEAST_BYTES:
            wanted = f"budget= sizes a model for at least {size_text(LEAST_BYTES)}"
            raise UserFault(f"{data.source or data.name} holds {size_text(corpus.size)}: {wanted}. Use more text")
        is_large = corpus.rule in ("label", "content", "tail") and data.val_fraction * corpus.size > VAL_BYTES
        if is_large and "data.val_fraction" not in self.config.typed:  # validating more takes time from training
            data.val_fraction = self.others["data.val_fraction"] = float(f"{VAL_BYTES / corpus.size:.2g}")
        if self.device != "cpu":
            text = Text(corpus.size, *USUAL)
            self.speeds.know_launches(self.whole(text, pilot_of(text, self.fixed)))
        if tokenizer.name == "bpe" and corpus.rule != "tokens" and "vocab_size" not in self.fixed:
            text = Text(int((1 - data.val_fraction) * corpus.size), *USUAL)
            tokenizer.vocab_size = self.settle(text, seconds).vocab_size
        with self.processes.rank_zero_first():
            prepared = prepare(data, tokenizer)
            ngram, xz = baselines(prepared)[-2:]
        self.fixed["vocab_size"] = vocabulary = prepared.tokenizer.vocab_size
        train = prepared.train
        text = Text(train.bytes, ngram["bits_per_byte"], xz["bits_per_byte"], ngram["after_part"])
        density = train.bytes / text.bytes_of(len(train), vocabulary)
        text = replace(text, density=density, repeats=ngram["repeats"])
        text = self.try_text(prepared, text)
        share = prepared.summary.get("overlap", {}).get("share") or 0.0
        return prepared, replace(text, error=COPIES_RANGE) if share > COPIED else text

    def try_text(self, prepared: Prepared, text: Text) -> Text:
        """Return the text with the level that a short training on it shows: now, or a longer one that is kept."""
        path = prepared.folder / PILOTS
        kept = json.loads(self.processes.gather(json.dumps(read_mapping(path)))[0])
        sizes = [self.whole(text, pilot_of(text, self.fixed, times)) for times in (1, 2, 4, 8)]
        keys = [config_hash(applied(self.config, self.settings(size))) for size in sizes]
        best = max((number for number, key in enumerate(keys) if key in kept), default=-1)
        if not self.speeds.measured:
            self.speeds.know(sizes[0])
        shares = self.seconds / (self.speeds.start + sizes[0].tokens / self.speeds(sizes[0]))
        possible = min(3, int(math.log2(max(1.0, PILOT_SHARE * shares))))
        fits = SHORTEST_SHARE * shares >= 1 and self.elapsed() <= self.seconds / 2  # what is left is for training
        if fits and best < possible:
            best, config = possible, applied(self.config, self.settings(sizes[possible]))
            kept[keys[best]] = self.pilot(config, prepared)
            if self.processes.rank == 0:
                write_json(path, kept)
        if best < 0:
            return text
        halfway, bits = kept[keys[best]]
        tell(f"Pilot      {bits:.3f} bits per byte after {short_number(sizes[best].tokens)} tokens of the text")
        return leveled(text, sizes[best], halfway, bits)

    def settle(self, text: Text, seconds: float) -> Size:
        """Choose a size for so many seconds of training; measure speeds until the choice is stable."""
        size = self.whole(text, choose(text, seconds, self.speeds, self.fixed))
        while self.speeds.know(size):
            size = self.whole(text, choose(text, seconds, self.speeds, self.fixed))
        return size

    def whole(self, text: Text, size: Size) -> Size:
        """Return a size whose batch is a whole number of windows on each device."""
        trainer = self.config.trainer
        unit = size.block_size * trainer.devices * trainer.nodes * max(1, trainer.micro_batch)
        if size.batch_tokens % unit == 0 or size.batch_tokens == self.fixed.get("batch_tokens"):
            return size
        given = {name: getattr(size, name) for name in (*self.fixed, *OF_PILOT, *AVERAGED)}
        given["batch_tokens"] = unit * max(1, round(size.batch_tokens / unit))
        return train(text, replace(size, **given), size.tokens, given)

    def settings(self, size: Size) -> dict[str, Any]:
        """Return the settings that train a size: its own (a pilot's are not those typed), and others not typed."""
        config = self.config
        left = {} if config.optimizer.name == "muon" else OF_MUON  # the optimizer for which the law was fitted
        left = left if config.tokenizer.name == "bpe" else left | OF_BPE
        chosen = {key: getattr(size, name) for name, key in SETTINGS.items() if name not in left}
        if config.optimizer.name != "muon":
            chosen["schedule.warmup_steps"] = min(config.schedule.warmup_steps, size.steps // 10)
        chosen["validate.every_steps"] = math.ceil(size.steps / self.validations)
        chosen["samples.every_steps"] = math.ceil(size.steps / 2)
        save = min(size.steps / 4, SAVE_SECONDS * self.speeds(size) / size.batch_tokens)
        chosen["checkpoint.every_steps"] = math.ceil(save)
        given = config.typed - set(SETTINGS.values())
        return {key: value for key, value in (chosen | self.others).items() if key not in given}

    def choose(self, text: Text, val_tokens: int, budget: str, spent: Callable[[], float]) -> Size:
        """Return the size for a budget; `spent` returns how many of its seconds have passed before training.

        Training and validations share the remaining time; the number of validations is kept for `settings`.
        """
        seconds, validation = seconds_of(budget) or 0.0, 0.0
        for _ in range(3):  # each round knows better what the validations take
            left = seconds - spent() - self.speeds.start - REPORT_SHARE * self.started
            training = left - self.validations * validation
            if training < LEAST_SHARE * seconds:
                waited = max(0.0, spent() - sum(os.times()[:4]))  # for other programs: not charged to the budget
                other = seconds - training - waited
                if other > (1 - LEAST_SHARE) * seconds:
                    wrong = f"starting, reading and validating take {duration(other)} with this text and model"
                    least = 10 * math.ceil(1.5 * other / 10)
                    raise UserFault(f"budget={budget} is too short: {wrong}. Use budget={least}s or more")
                if not validation:
                    tell(f"Busy       other programs took {duration(waited)} of the machine's time: this takes longer")
                training = LEAST_SHARE * seconds
            size = self.settle(text, training)
            validation = val_tokens / (FORWARD * self.speeds(size))
            self.validations = max(1, min(VALIDATIONS, int(VALIDATION_SHARE * left / validation)))
        return self.compiled(text, size, training)

    def limits(self, text: Text, size: Size, spent: float, seconds: float) -> Iterator[str]:
        """Yield sentences about a size that leaves much of its `seconds`, or is outside of the law's measurements."""
        ends, model = spent + size.tokens / self.speeds(size), self.config.model
        if size.passes > 0.9 * FEW_PASSES and ends < 0.7 * seconds:
            reason = "more passes would make the model learn this text by heart. More text would use the time"
            yield f"this ends after about {duration(ends)}: {reason}"
        if sentence := outside(text, size):
            yield sentence
        block = (model.attention, model.activation, model.init, self.config.optimizer.name)
        if block != MEASURED_WITH or self.fixed.keys() & RATES:
            with_what = "model=qwen3-micro's block and init, Muon, and rates and weight decay of its own"
            yield f"the law was measured with {with_what}: trust it less here"

    def compiled(self, text: Text, size: Size, seconds: float) -> Size:
        """Return the size, with more steps if compiled code is faster on this machine: a measurement shows it.

        When the training begins, the compiler's cache holds what was compiled for the measurement.
        """
        is_open = self.config.trainer.compile == "auto" and not (self.device == "cpu" and size.dropout)
        share = min(1.0, size.tokens / self.speeds(size) / seconds)  # less if few passes need less time
        patience = COMPILE_SHARE.get(self.device, 0.0) * self.seconds * share
        if not is_open or patience - self.speeds.spent < COMPILE_SECONDS:
            return size
        began, plain, self.others["trainer.compile"] = self.elapsed(), self.speeds(size), "on"
        fast = self.speeds.measure(size, self.speeds.each)
        seconds -= self.elapsed() - began
        tell(f"Speed      {fast:,.0f} tokens/s compiled")
        if fast * (seconds - AGAIN) > plain * seconds:
            self.speeds.gain, seconds = fast / plain, seconds - AGAIN
        else:
            self.others["trainer.compile"] = "off"
        alike = {name: getattr(size, name) for name in (*OF_MODEL, "vocab_size", "batch_tokens")}
        return self.whole(text, choose(text, seconds, self.speeds, self.fixed | alike))


def applied(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    """Return a config with these settings and without its budget."""
    sized = copy.deepcopy(config)
    for key, value in settings.items():
        assign(sized, key, value)
    sized.budget = sized.trainer.max_tokens = sized.trainer.max_minutes = sized.trainer.epochs = None
    if faults := check(sized):
        raise UserFault(*faults)
    return sized


def forecasts(sizes: Mapping[str, Size]) -> str:
    """Return a table with a row for each budget."""
    rows = [
        {
            "budget": budget,
            "parameters": short_number(size.parameters),
            "layers x width": f"{size.n_layer} x {size.n_embd}",
            "vocabulary": f"{size.vocab_size:,}",
            "context": f"{size.block_size:,}",
            "tokens": short_number(size.tokens),
            "passes": f"{size.passes:.2g}" if size.passes < 10 else f"{size.passes:.0f}",
            "dropout": f"{size.bpe_dropout:g} (BPE)" if size.bpe_dropout else f"{size.dropout:g}",
            "weight decay": f"{size.weight_decay:g}",
            "bits per byte": f"{size.bits_per_byte:.3f}",
            "range": f"{size.low:.2f} to {size.high:.2f}",
        }
        for budget, size in sizes.items()
    ]
    return table([[*rows[0]], *([*row.values()] for row in rows)])


def size_run(config: TrainConfig, device: str, measure: Measure, pilot: Pilot, processes: Processes) -> dict[str, Any]:
    """Choose the settings of a run, print them, and return what its budget.json holds."""
    budget = str(config.budget)
    if "," in budget:
        raise UserFault(f"budget={budget}: a training has one. minigpt plan budget={budget} shows what each would buy")
    seconds = seconds_of(budget) or 0.0
    dial = Dial(config, device, measure, pilot, seconds, processes)
    prepared, text = dial.read(0.8 * seconds)
    size = dial.choose(text, len(prepared.val), budget, dial.elapsed)
    if size.steps < LEAST_STEPS and size.passes < FEW_PASSES:
        batch, speed = size.batch_tokens, dial.speeds(size)
        made = f"{short_number(size.parameters)} parameters make {size.steps} steps of {batch:,} tokens in it"
        least = 10 * math.ceil((seconds + 1.5 * (LEAST_STEPS - size.steps) * batch / speed) / 10)
        smaller = "smaller batch_tokens" if "batch_tokens" in dial.fixed else "a smaller model"
        wanted = f"{LEAST_STEPS} are wanted. Use budget={least}s or more, or {smaller}"
        raise UserFault(f"budget={budget} is too short: {made}; {wanted}")
    settings = {key: value for key, value in dial.settings(size).items() if key not in config.typed}
    sized = applied(config, settings)
    given = {key: value for key, value in values(config).items() if key in config.typed - {"budget"}}
    words = [redact(shlex.quote(f"{key}={as_typed(value)}")) for key, value in (given | settings).items()]
    longer = choose(text, LONGER * seconds, dial.speeds, dial.fixed)
    for sentence in dial.limits(text, size, dial.elapsed(), seconds):
        tell(f"Note       {sentence}")
    tell(f"{forecasts({budget: size})}\n{of_counting(text)}")
    tell(f"Command    {typed('train')} experiment={config.experiment} {' '.join(words)}")
    return {
        "seconds": seconds,
        "parameters": count_parameters(empty_gpt(sized.model, size.vocab_size, device="meta")),
        "tokens": size.tokens,
        "passes": size.passes,
        "tokens_per_second": dial.speeds(size),
        "predicted_bits_per_byte": size.bits_per_byte,
        "low": size.low,
        "high": size.high,
        "predicted_for_longer": min(size.bits_per_byte, longer.bits_per_byte),
        "settings": settings,
    }


def of_counting(text: Text) -> str:
    """Return a line with the bits per byte of the baselines."""
    return f"Baselines  {text.kneser_ney:.3f} bits per byte (7-gram, Kneser-Ney), {text.xz:.3f} (xz)"
