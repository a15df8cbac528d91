"""minigpt compare: scores runs on the same validation text, and says in plain words which side is better."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.checkpoint import adapters, contents, folder
from minigpt.checkpoint.load import find_checkpoint, load_checkpoint, read_config
from minigpt.config.commands import CompareConfig
from minigpt.config.convert import settings, shown, values
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import document_end
from minigpt.data.prepared import open_prepared
from minigpt.data.shards import TokenSplit
from minigpt.evaluation.interval import LEVEL, Array, Difference, difference, too_few
from minigpt.evaluation.texts import score_text
from minigpt.faults import UserFault
from minigpt.files import read_json
from minigpt.formats.architecture import is_imported
from minigpt.machine.hardware import probe
from minigpt.report.record import read_record
from minigpt.report.runs import state_of
from minigpt.screen import tell


@dataclass(frozen=True)
class ComparedRun:
    """A checkpoint to compare, and the text it is validated on."""

    path: str  # as it was typed
    checkpoint: Path
    config: TrainConfig
    train: TokenSplit
    val: TokenSplit
    drawn: bool  # documents for validation were drawn at random, by their hash
    weights_sha256: str
    state: str  # finished, or how far the run came; of a checkpoint that is named itself: ""


@dataclass(frozen=True)
class Side:
    """Runs of the same settings."""

    name: str  # A, B, ...
    runs: list[ComparedRun]
    label: str  # their path, and what is different from the first side


def compare(config: CompareConfig) -> None:
    """Compare runs on their whole validation split. `vs` among the runs divides them into sides, else settings do."""
    groups = [list(runs) for is_vs, runs in itertools.groupby(config.runs, {"vs", "versus"}.__contains__) if not is_vs]
    if sum(map(len, groups)) < 2 or config.runs[-1] in ("vs", "versus"):
        raise UserFault("compare needs two runs or more, and runs on both sides of `vs`: RUN_A RUN_B")
    runs = [open_run(path, config.which, config.data_dir) for path in itertools.chain(*groups)]
    sides: dict[object, list[ComparedRun]] = {}
    for number, run in zip(np.repeat(range(len(groups)), list(map(len, groups))).tolist(), runs, strict=True):
        sides.setdefault(number if len(groups) > 1 else repr(settings_of(run)), []).append(run)
    check_comparable(list(sides.values()))
    named = name_sides(list(sides.values()) if len(sides) > 1 else [[run] for run in runs])
    units, losses = score(runs, probe(config.device).device)
    tell("\n" + "\n".join(report(named, units, losses)))


# --- runs and sides ---


def open_run(path: str, which: str, data_dir: str | None = None) -> ComparedRun:
    """Find a run's checkpoint and, by their fingerprint, its prepared tokens: the text itself is not needed."""
    checkpoint = find_checkpoint(path, which)
    named = checkpoint.parent.parent / "data.json"
    if is_imported(checkpoint) or not named.is_file():
        remedy = f"minigpt evaluate checkpoint={path} versus=RUN file=TEXT scores it"
        raise UserFault(f"{path} has no validation text: there is no {named}. {remedy}")
    config = read_config(checkpoint)
    place = data_dir or config.data.dir
    if (prepared := open_prepared(place, read_json(named), config.data.mix)) is None:
        remedy = "Say where with data.dir=DIR, or make them: minigpt prepare with the settings of the run"
        raise UserFault(f"the tokens of {path} are not in {shown(place)}. {remedy}")
    if not (isinstance(prepared.train, TokenSplit) and isinstance(prepared.val, TokenSplit)):
        remedy = "minigpt evaluate checkpoint=RUN versus=RUN questions=FILE tells which answers better"
        raise UserFault(f"{path} has data={config.data.name}: such runs predict answers alone. {remedy}")
    files = folder.read_manifest(checkpoint)["files"]
    weights = " ".join(str(files[name]["sha256"]) for name in (contents.MODEL, adapters.ADAPTER) if name in files)
    splits = [part.summary["split"] for part in prepared.parts.values() or [prepared]]
    drawn = all(split.startswith("whole ") for split in splits)
    has_rows = named.with_name("metrics.jsonl").is_file() and Path(path).expanduser() != checkpoint
    state = state_of(read_record(named.parent)) if has_rows else ""
    return ComparedRun(path, checkpoint, config, prepared.train, prepared.val, drawn, weights, state)


def check_comparable(sides: Sequence[Sequence[ComparedRun]]) -> None:
    """Refuse runs with different validation texts, equal weights, and equal seeds on one side."""
    first, *others = runs = list(itertools.chain(*sides))
    splits = {run.val.fingerprint: run.val for run in runs}
    texts = {key: hash(val.tokenizer.decode_bytes(val.tokens(0, len(val)))) for key, val in splits.items()}
    faults = [
        f"{run.path} is validated on another text than {first.path}. Use the same settings data.*, or score both: "
        f"minigpt evaluate checkpoint={first.path} versus={run.path} file=TEXT"
        for run in others
        if texts[run.val.fingerprint] != texts[first.val.fingerprint]
    ]
    for a, b in itertools.combinations(runs, 2):
        if a.weights_sha256 == b.weights_sha256:
            faults.append(f"{a.path} and {b.path} hold the same weights: nothing to compare")
    for a, b in (pair for side in sides for pair in itertools.combinations(side, 2)):
        if a.config.seed == b.config.seed:
            both = f"{a.path} and {b.path} are one side, and both have seed={a.config.seed}"
            faults.append(f"{both}: give one of them, or write `vs` between two sides, RUN ... vs RUN ...")
    if faults:
        raise UserFault(*faults)


def settings_of(run: ComparedRun) -> dict[str, object]:
    """Return what decides how good the model becomes, the seed aside: settings, training tokens, a named checkpoint."""
    roles = {key: about.role for key, about in settings(TrainConfig).items() if key != "seed"}
    kept = {key: value for key, value in values(run.config).items() if roles.get(key) in ("weights", "schedule")}
    kept["training tokens"] = f"{run.config.data.source or run.config.data.name} ({run.train.fingerprint[:8]})"
    return kept | ({"checkpoint": run.checkpoint.name} if Path(run.path).expanduser() == run.checkpoint else {})


def name_sides(groups: Sequence[list[ComparedRun]]) -> list[Side]:
    """Return the sides A, B, ..., labelled with what is different from the first."""
    first, sides = settings_of(groups[0][0]), []
    for number, runs in enumerate(groups):
        settings = settings_of(runs[0])
        keys = [key for key in sorted(first.keys() | settings.keys()) if first.get(key) != settings.get(key)]
        changes = [f"{key}: {shown(first.get(key))} -> {shown(settings.get(key))}" for key in keys]
        label = runs[0].path + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        label += f"  ({', '.join(changes) or 'the same settings'})" if number else ""
        sides.append(Side(chr(ord("A") + number), runs, label))
    return sides


# --- losses ---


@dataclass(frozen=True)
class Units:
    """The parts of a text on which models are compared: its documents, or windows where it has none."""

    edges: NDArray[np.int64]  # where each begins, and the end of the last: places of tokens (or bytes), (units + 1,)
    sizes: Array  # predicted tokens (or bytes), (units,)
    in_bytes: bool
    name: str  # documents, or windows
    unfit: str  # why they don't tell how another text would do; "" if they tell
    left_out: NDArray[np.int64]  # places of tokens that one of the models does not predict: they count for none

    @property
    def loss(self) -> str:
        """The unit of losses / sizes."""
        return "bits per byte" if self.in_bytes else "nats per token"


def text_units(
    texts: Sequence[tuple[TokenSplit, int]], ends: Sequence[int | None], drawn_from: TokenSplit | None = None
) -> Units:
    """Return the documents of one text, or windows as long as the longest context.

    With several tokenizers they are measured in bytes, and a token belongs to the unit of its last byte.

    Args:
        texts: the text as each model's tokens, and the model's context length.
        ends: for each model the token after a document, if it keeps documents apart.
        drawn_from: the other documents, in the first's tokens, if these were held out at random.
    """
    first, eot = texts[0][0], texts[0][0].tokenizer.eot
    in_bytes = any(split.fingerprint != first.fingerprint for split, _ in texts)
    end = next((end for end in ends if end is not None), None)
    if in_bytes and end is not None:
        raise UserFault("with data.mask_documents=true only runs of one tokenizer can be compared")
    left_out = first.unpredicted_places(end)[1:]
    edges = first.unpredicted_places(eot)
    unfit = "this text was not drawn at random, by documents, so the result may not hold for others"
    if drawn_from is not None and len(edges) > 1:
        others = np.diff(np.append(drawn_from.unpredicted_places(eot), len(drawn_from)))
        held_out = np.diff(np.append(edges, len(first))).astype(float)
        unfit = too_few(held_out, name="documents", of=np.append(held_out, others))
    total = first.bytes if in_bytes else len(first)
    name = "documents" if len(edges) > 1 else "windows"
    if in_bytes and name == "documents":
        edges = np.append(0, np.cumsum(_token_bytes(first))[edges[1:] - 1])
    if name == "windows":
        longest = max(size * (split.bytes / len(split) if in_bytes else 1) for split, size in texts)
        edges = np.arange(0 if in_bytes else 1, total, math.ceil(longest))
    edges[0] = 0 if in_bytes else 1  # the first token is not predicted
    edges = np.unique(np.append(edges[edges < total], total))
    sizes = np.diff(edges) - np.histogram(left_out, edges)[0]
    return Units(edges, sizes.astype(float), in_bytes, name, unfit, left_out)


def _token_bytes(split: TokenSplit) -> NDArray[np.int64]:
    sizes = [len(split.tokenizer.token_bytes(token)) for token in range(split.tokenizer.vocab_size)]
    return np.array(sizes)[split.tokens(0, len(split))]


def by_unit(units: Units, split: TokenSplit, losses: NDArray[Any]) -> Array:
    """Return the sum over each unit of a split's losses, those of all tokens but the first."""
    places = np.arange(1, len(split))
    losses = np.where(np.isin(places, units.left_out), 0.0, losses)
    if units.in_bytes:
        places = np.cumsum(_token_bytes(split))[1:] - 1  # of each token's last byte
    numbers = np.clip(np.searchsorted(units.edges, places, side="right") - 1, 0, len(units.sizes) - 1)
    sums = np.bincount(numbers, weights=losses, minlength=len(units.sizes)).astype(float)
    return sums / math.log(2) if units.in_bytes else sums


def score(runs: Sequence[ComparedRun], device: str) -> tuple[Units, dict[str, Array]]:
    """Return the units of the runs' common text, and each run's loss summed over each unit, by its weights."""
    ends = [document_end(run.config.data, run.val.tokenizer) for run in runs]
    texts = [(run.val, run.config.model.block_size) for run in runs]
    units = text_units(texts, ends, runs[0].train if all(run.drawn for run in runs) else None)
    losses = {}
    for number, (run, end) in enumerate(zip(runs, ends, strict=True), 1):
        tell(f"Scoring {number}/{len(runs)}  {run.path}, {run.checkpoint.name}: {len(run.val) - 1:,} tokens")
        model = load_checkpoint(run.checkpoint).model.to(torch.device(device))
        losses[run.weights_sha256] = by_unit(units, run.val, score_text(model, run.val, document_end=end).nats)
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
    between = {name: difference(stacked[best], stacked[name], units.sizes, drawn=not units.unfit) for name in others}
    verdicts = {name: verdict(best, name, pair, units.loss, level) for name, pair in between.items()}
    early = [f"{run.path} ({run.state})" for side in sides for run in side.runs if run.state not in ("", "finished")]
    scopes = dict.fromkeys(scope(pair, best, name) for name, pair in between.items())
    about = [*scopes, *([f"The text: {units.unfit}."] if units.unfit else [])]
    if early:
        judged = "these settings are not judged yet. A stopped run is continued by its own command"
        about += [f"Not finished: {', '.join(early)}: {judged}."]
    if len(others) == 1:
        return [*lines, "", *verdicts.values(), *about]
    lines += ["", f"Best  {best}. Against it (+- are intervals that all hold together with 95 %)"]
    return [*lines, *(f"  {name}  {line}" for name, line in verdicts.items()), *about]


def verdict(a: str, b: str, between: Difference, unit: str, level: float = LEVEL, more: str = "much text") -> str:
    """Return which side is better and by how much, or what it would take to tell: so many times as `more`."""
    half, here = between.half_width(level), " on this very text" * (between.text_variance is None)
    if between.value == 0:
        return f"{a} and {b} are equal{here}"
    if half is None:
        advice = "more documents drawn at random, or several seeds a side, may show whether this holds elsewhere"
        return f"{b if between.value < 0 else a} is better by {abs(between.value):.4f} {unit}{here}; {advice}"
    if abs(between.value) > half:
        return f"{b if between.value < 0 else a} is better by {plus_minus(abs(between.value), half)} {unit}{here}"
    if between.seed_variance is None:
        times = max(1.1, (half / abs(between.value)) ** 2)
        advice = f"about {times:.2g} times as {more} would decide it" if times < 100 else "they are nearly equal"
    elif missing := between.seeds_missing(level):
        advice = f"about {missing} more {'seed' if missing == 1 else 'seeds'} a side would decide it"
    else:
        advice = "more seeds alone would not; the difference is too small for this validation text"
    return f"cannot tell: {b} - {a} = {plus_minus(between.value, half)} {unit}{here}; {advice}"


def scope(between: Difference, a: str, b: str) -> str:
    """Return what the verdict judges: two checkpoints, or the settings."""
    if between.seed_variance is None:
        judged = "One seed a side: this judges these two checkpoints, not the settings."
        judged = f"+- is a 95 % interval. {judged}" if between.text_variance is not None else judged
        return f"{judged} To judge those, train each with other seeds (seed=1, seed=2, ...), which may differ by more."
    spread = f"Runs of one side differ by {math.sqrt(between.seed_variance):.4f} (standard deviation over seeds)."
    if 1 in between.seeds:
        spread += f" {a if between.seeds[0] == 1 else b} has one seed: it is taken to scatter as the other does."
    where = "on text of this kind" if between.text_variance is not None else "on this very text"
    return f"+- is a 95 % interval. {spread} This judges the settings, {where}."


def plus_minus(value: float, half: float) -> str:
    """Return text like 0.0123 +- 0.0042: two significant digits of the uncertainty, at least three decimals."""
    places = 3 if half == 0 else min(9, max(3, 1 - math.floor(math.log10(half))))
    return f"{value:.{places}f} +- {half:.{places}f}"
