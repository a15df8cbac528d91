"""minigpt compare: scores runs on the same validation text, and says in plain words which side is better."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.checkpoint.adapters import ADAPTER
from minigpt.checkpoint.contents import MODEL
from minigpt.checkpoint.folder import read_manifest
from minigpt.checkpoint.load import find_checkpoint, load_checkpoint, read_config
from minigpt.config.commands import CompareConfig
from minigpt.config.convert import shown, values
from minigpt.config.run_names import with_role
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import document_end
from minigpt.data.prepared import open_prepared
from minigpt.data.text import Split
from minigpt.data.tokenizer import Tokenizer
from minigpt.evaluation.interval import LEVEL, Array, Difference, difference, too_few
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.files import read_json
from minigpt.formats.architecture import is_foreign
from minigpt.machine.hardware import find_named
from minigpt.model.evaluate import token_losses, unpredicted_places, windows_at_once
from minigpt.screen import Say

PIECE = 1 << 20  # tokens decoded at one time


@dataclass(frozen=True)
class Run:
    """A checkpoint to compare, and the text it is validated on."""

    path: str  # as it was typed
    checkpoint: Path
    config: TrainConfig
    tokenizer: Tokenizer
    val: Split
    weights_sha256: str
    trained_on: str  # fingerprint of the tokens


@dataclass(frozen=True)
class Side:
    """Runs of the same settings."""

    name: str  # A, B, ...
    runs: list[Run]
    label: str  # their path, and what is different from the first side


def compare(config: CompareConfig, say: Say = print) -> None:
    """Compare runs on their whole validation split; those that can't be compared with the others are listed at the end.

    `vs` among the runs divides them into sides: then all of them must be comparable.
    """
    groups: list[list[str]] = [[]]
    for path in config.runs:
        groups.append([]) if path == "vs" else groups[-1].append(path)
    if len(config.runs) < 2 or not all(groups):
        raise UserFault("compare needs two runs or more, and runs on both sides of `vs`: RUN_A RUN_B")
    opened: list[tuple[int, Run]] = []  # the user's group, a run of it
    left_out: list[str] = []
    for number, path in ((number, path) for number, group in enumerate(groups) for path in group):
        try:
            opened.append((number, open_run(path, config.which, config.data.dir)))
        except (UserFault, NoUsableCheckpoint) as fault:
            left_out.append(str(fault))
    runs = comparable([run for _, run in opened], left_out)
    divided = len(groups) > 1
    kept = once_per_seed(opened if divided else [(repr(settings_of(run)), run) for run in runs], left_out)
    if sum(map(len, kept)) < 2 or (divided and left_out):
        raise UserFault(*left_out)
    sides = name_sides(kept if len(kept) > 1 else [[run] for run in kept[0]])
    units, losses = score([run for side in sides for run in side.runs], device=find_named(config.device), say=say)
    lines = report(sides, units, losses)
    for line in ["", *lines, *([""] if left_out else []), *(f"Left out  {reason}" for reason in left_out)]:
        say(line)


# --- runs and sides ---


def open_run(path: str, which: str, data_dir: str | None = None) -> Run:
    """Find a run's checkpoint and, by their fingerprint, its prepared tokens: the text itself is not needed."""
    checkpoint = find_checkpoint(path, which)
    if is_foreign(checkpoint):
        raise UserFault(
            f"{path} has no validation text. minigpt evaluate checkpoint={path} versus=RUN file=TEXT scores it"
        )
    config, folder = read_config(checkpoint), checkpoint.parent.parent
    if not (folder / "data.json").is_file():
        raise UserFault(f"{folder / 'data.json'} is missing: it names the tokens of {path}. Give a run or its part")
    facts, mix = read_json(folder / "data.json"), config.data.mix
    places = dict.fromkeys([config.data.dir, "data"] if data_dir is None else [data_dir])
    prepared = next(filter(None, (open_prepared(place, facts, mix) for place in places)), None)
    if prepared is None:
        remedy = "Say where with data.dir=DIR, or make them: minigpt prepare with the settings of the run"
        raise UserFault(f"the tokens of {path} are not in {' or '.join(map(shown, places))}. {remedy}")
    files = read_manifest(checkpoint)["files"]
    weights = " ".join(str(files[name]["sha256"]) for name in (MODEL, ADAPTER) if name in files)
    trained_on = str(prepared.train.fingerprint)
    return Run(path, checkpoint, config, prepared.tokenizer, prepared.val, weights, trained_on)


def comparable(runs: Sequence[Run], left_out: list[str]) -> list[Run]:
    """Return the runs with the most common validation text, one for equal weights; the others' reasons are appended."""
    firsts = {run.val.fingerprint: run for run in reversed(runs)}
    hashes = {fingerprint: val_text_sha256(run) for fingerprint, run in firsts.items()}
    texts = [hashes[run.val.fingerprint] for run in runs]
    common = max(texts, key=texts.count, default="")  # the first of equals
    kept: dict[str, Run] = {}  # weights -> run
    for run, text in zip(runs, texts, strict=True):
        if text != common:
            other = runs[texts.index(common)].path
            left_out.append(f"{run.path} is validated on another text than {other}. Use the same data keys")
        elif kept.setdefault(run.weights_sha256, run) is not run:
            left_out.append(f"{run.path} and {kept[run.weights_sha256].path} hold the same weights: nothing to compare")
    return list(kept.values())


def val_text_sha256(run: Run) -> str:
    """Return the SHA-256 of the validation text, whatever its tokenizer."""
    digest = hashlib.sha256()
    for start in range(0, len(run.val), PIECE):
        digest.update(run.tokenizer.decode_bytes(run.val.tokens(start, start + PIECE)))
    return digest.hexdigest()


def once_per_seed(runs: Iterable[tuple[object, Run]], left_out: list[str]) -> list[list[Run]]:
    """Return (key, run) grouped by their keys. In a group a seed counts once: its twin tells nothing about others."""
    groups: dict[object, dict[int, Run]] = {}
    for key, run in runs:
        twin = groups.setdefault(key, {}).setdefault(run.config.seed, run)
        if twin is not run:
            both = f"{twin.path} and {run.path} are one side, and both have seed={run.config.seed}"
            left_out.append(f"{both}: give one of them, or write `vs` between two sides, RUN ... vs RUN ...")
    return [list(group.values()) for group in groups.values()]


def settings_of(run: Run) -> dict[str, object]:
    """Return what decides how good the model becomes, the seed aside: settings, training text, a named checkpoint."""
    deciding = with_role(TrainConfig, "weights", "schedule") - {"seed"}
    kept: dict[str, object] = {key: value for key, value in values(run.config).items() if key in deciding}
    kept["training text"] = f"{run.config.data.source or run.config.data.name} ({run.trained_on[:8]})"
    return kept | ({"checkpoint": run.checkpoint.name} if Path(run.path).expanduser() == run.checkpoint else {})


def name_sides(groups: Sequence[list[Run]]) -> list[Side]:
    """Return the sides A, B, ..., labelled with what is different from the first."""
    first, sides = settings_of(groups[0][0]), []
    for number, runs in enumerate(groups):
        settings = settings_of(runs[0])
        keys = [key for key in sorted(first.keys() | settings.keys()) if first.get(key) != settings.get(key)]
        changes = [f"{key}: {shown(first.get(key))} -> {shown(settings.get(key))}" for key in keys]
        label = runs[0].path + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        label += f"  ({', '.join(changes) or 'the same settings'})" if number else ""
        sides.append(Side(chr(ord("A") + number) if number < 26 else f"A{number}", runs, label))
    return sides


# --- losses ---


@dataclass(frozen=True)
class Units:
    """The parts of a text on which models are compared: its documents, or windows where it has none."""

    edges: NDArray[np.int64]  # where each begins, and the end of the last: places of tokens (or bytes), (units + 1,)
    sizes: Array  # predicted tokens (or bytes), (units,)
    in_bytes: bool
    are_documents: bool
    left_out: NDArray[np.int64]  # places of tokens that one of the models does not predict: they count for none

    @property
    def loss(self) -> str:
        """The unit of losses / sizes."""
        return "bits per byte" if self.in_bytes else "nats per token"

    @property
    def name(self) -> str:
        """What they are."""
        return "documents" if self.are_documents else "windows"


def units_of(texts: Sequence[tuple[Split, Tokenizer, int]], ends: Sequence[int | None] = ()) -> Units:
    """Return the documents of one text, or windows as long as the longest context.

    With several tokenizers they are measured in bytes, and a token belongs to the unit of its last byte.

    Args:
        texts: the text as each model's tokens, the tokenizer, and the model's context length.
        ends: for each model the token after a document, if it keeps documents apart.
    """
    first, tokenizer, _ = texts[0]
    if any(getattr(split, "answers", None) is not None for split, _, _ in texts):
        raise UserFault(
            "runs of data=chat predict answers alone, and compare is for texts. Compare their val/loss yourself"
        )
    in_bytes = any(split.fingerprint != first.fingerprint for split, _, _ in texts)
    end = next((end for end in ends if end is not None), None)
    if in_bytes and end is not None:
        raise UserFault(
            "with data.mask_documents=true no document's first token is predicted, and tokenizers cut it to different "
            "lengths. Compare runs of one tokenizer, or of data.mask_documents=false"
        )
    left_out = unpredicted_places(first, end)[1:]
    edges = unpredicted_places(first, tokenizer.eot)
    total = first.bytes if in_bytes else len(first)
    are_documents = len(edges) > 1
    if in_bytes and are_documents:
        edges = np.append(0, np.cumsum(_token_bytes(tokenizer)[first.tokens(0, len(first))])[edges[1:] - 1])
    if not are_documents:
        longest = max(size * (split.bytes / len(split) if in_bytes else 1) for split, _, size in texts)
        edges = np.arange(0 if in_bytes else 1, total, math.ceil(longest))
    edges[0] = 0 if in_bytes else 1  # the first token is not predicted
    edges = np.unique(np.append(edges[edges < total], total))
    sizes = np.diff(edges) - np.histogram(left_out, edges)[0]
    return Units(edges, sizes.astype(float), in_bytes, are_documents, left_out)


def _token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    return np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])


def by_unit(units: Units, split: Split, tokenizer: Tokenizer, losses: Iterable[NDArray[Any]]) -> Array:
    """Return the sum of a split's losses over each unit; they come in pieces, in the order of the tokens."""
    lengths = _token_bytes(tokenizer)
    sums = np.zeros(len(units.sizes))
    position, offset = 1, int(lengths[split.tokens(0, 1)].sum())  # of the next token, of the bytes before it
    for piece in losses:
        places = np.arange(position, position + len(piece))
        piece = np.where(np.isin(places, units.left_out), 0.0, piece)
        if units.in_bytes:
            places = offset + np.cumsum(lengths[split.tokens(position, position + len(piece))])
            offset = int(places[-1])
            places = places - 1
        numbers = np.searchsorted(units.edges, places, side="right") - 1
        sums += np.bincount(np.clip(numbers, 0, len(sums) - 1), weights=piece, minlength=len(sums))
        position += len(piece)
    return sums / math.log(2) if units.in_bytes else sums


def score(runs: Sequence[Run], *, device: str, say: Say = print) -> tuple[Units, dict[str, Array]]:
    """Return the units of the runs' common text, and each run's loss summed over each unit, by its weights."""
    ends = [document_end(run.config.data, run.tokenizer) for run in runs]
    units = units_of([(run.val, run.tokenizer, run.config.model.block_size) for run in runs], ends)
    losses = {}
    for number, (run, end) in enumerate(zip(runs, ends, strict=True), 1):
        say(f"Scoring {number}/{len(runs)}  {run.path}, {run.checkpoint.name}: {len(run.val) - 1:,} tokens")
        model, block_size = load_checkpoint(run.checkpoint).model.to(torch.device(device)), run.config.model.block_size
        batch = windows_at_once(block_size, run.tokenizer.vocab_size)
        pieces = token_losses(
            model, run.val, block_size=block_size, batch=batch, device=device, precision="fp32", document_end=end
        )
        losses[run.weights_sha256] = by_unit(
            units, run.val, run.tokenizer, (piece.cpu().double().numpy() for piece in pieces)
        )
    return units, losses


# --- the verdict ---


def report(sides: Sequence[Side], units: Units, losses: dict[str, Array]) -> list[str]:
    """Return lines with the sides and the verdict: of two sides on both, of more on each against the best."""
    size = f"{units.sizes.sum():,.0f} {units.loss.split()[-1]}s"
    lines = [f"Text  {size} to predict, in {len(units.sizes):,} {units.name}; losses in {units.loss}"]
    stacked = {side.name: np.stack([losses[run.weights_sha256] for run in side.runs]) for side in sides}
    means = {name: float(sums.mean(axis=0).sum() / units.sizes.sum()) for name, sums in stacked.items()}
    for side in sides:
        seeds = f"seed{'s' if len(side.runs) > 1 else ''} {', '.join(str(run.config.seed) for run in side.runs)}"
        lines.append(f"{side.name}     {means[side.name]:.4f}  {seeds}  {side.label}")
    best = min(means, key=means.__getitem__) if len(sides) > 2 else sides[0].name
    others = [name for name in means if name != best]
    level = 1 - (1 - LEVEL) / math.comb(len(sides), 2)  # all pairs at once (Bonferroni), whichever is the best
    if reason := too_few(units.sizes, documents=units.are_documents, name=units.name):
        return [*lines, "", f"cannot tell: {reason}. Use more text: a larger data.val_fraction, or a data.val_source"]
    between = {
        name: difference(stacked[best], stacked[name], units.sizes, documents=units.are_documents) for name in others
    }
    verdicts = {name: verdict(best, name, pair, units.loss, level) for name, pair in between.items()}
    scopes = dict.fromkeys(scope(pair, best, name) for name, pair in between.items())
    if len(others) == 1:
        return [*lines, "", *verdicts.values(), f"+- is a 95 % interval. {next(iter(scopes))}"]
    lines += ["", f"Best  {best}. Against it (+- are intervals that all hold together with 95 %)"]
    return [*lines, *(f"  {name}  {line}" for name, line in verdicts.items()), *scopes]


def verdict(a: str, b: str, between: Difference, unit: str, level: float = LEVEL, more: str = "much text") -> str:
    """Return which side is better and by how much, or what it would take to tell: so many times as `more`."""
    half = between.half_width(level)
    if abs(between.value) > half:
        return f"{b if between.value < 0 else a} is better by {plus_minus(abs(between.value), half)} {unit}"
    if between.value == 0:
        advice = "they are equal"
    elif between.seed_variance is None:
        times = max(1.1, between.text_missing(level))
        advice = f"about {times:.2g} times as {more} would" if times < 100 else "they are all but equal"
    elif missing := between.seeds_missing(level):
        advice = f"about {missing} more {'seed' if missing == 1 else 'seeds'} a side would"
    else:
        advice = "more seeds alone would not; the difference is too small for this validation text"
    return f"cannot tell: {b} - {a} = {plus_minus(between.value, half)} {unit}; {advice}"


def scope(between: Difference, a: str, b: str) -> str:
    """Return what the verdict judges: two checkpoints, or the settings."""
    if between.seed_variance is None:
        judged = "One seed a side: this judges these two checkpoints, not the settings."
        return f"{judged} To judge those, train each with other seeds (seed=1, seed=2, ...), which may differ by more."
    spread = f"Runs of one side differ by {math.sqrt(between.seed_variance):.4f} (standard deviation over seeds)."
    if 1 in between.seeds:
        spread += f" {a if between.seeds[0] == 1 else b} has one seed: it is taken to scatter as the other does."
    return f"{spread} This judges the settings, on text of this kind."


def plus_minus(value: float, half: float) -> str:
    """Return text like 0.0123 +- 0.0042: two significant digits of the uncertainty, at least three decimals."""
    places = 3 if half == 0 else min(9, max(3, 1 - math.floor(math.log10(half))))
    return f"{value:.{places}f} +- {half:.{places}f}"
