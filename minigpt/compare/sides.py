"""The runs to compare: which of them are comparable, and which have the same settings apart from the seed."""

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minigpt.checkpoint.adapters import ADAPTER
from minigpt.checkpoint.contents import MODEL
from minigpt.checkpoint.folder import read_manifest
from minigpt.checkpoint.load import find_checkpoint, read_config
from minigpt.config.convert import shown, values
from minigpt.config.roles import with_role
from minigpt.config.schema import TrainConfig
from minigpt.data.chat.packing import ConversationSplit
from minigpt.data.mix import MixedSplit
from minigpt.data.prepared import open_prepared
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.formats.architecture import is_foreign, read_foreign_config
from minigpt.formats.huggingface import foreign_tokenizer
from minigpt.rundir.run_directory import RunDirectory

MAX_CHANGES = 6  # named in a line
PIECE = 1 << 20  # tokens decoded at one time


@dataclass(frozen=True)
class Run:
    """A checkpoint to compare, and the text it is validated on."""

    path: str  # as it was typed
    checkpoint: Path
    config: TrainConfig
    tokenizer: Tokenizer
    val: TokenSplit | MixedSplit | ConversationSplit
    weights_sha256: str


@dataclass(frozen=True)
class Side:
    """Runs of the same settings."""

    name: str  # A, B, ...
    runs: list[Run]
    label: str  # their path, and what is different from the first side


def open_run(path: str, which: str, data_dir: str | None = None, beside: Sequence[str] = ()) -> Run:
    """Find a run's checkpoint and, by their fingerprint, its prepared tokens: the text itself is not needed.

    Args:
        path: a run directory, or a checkpoint in it; or another program's model.
        which: of a run, "best" or "latest".
        data_dir: where prepared tokens are; None: where the run says, else data/.
        beside: runs; another program's model takes the validation text of the first one with its tokenizer.

    Raises:
        UserFault, NoUsableCheckpoint: the run, its checkpoint or its tokens are missing or damaged.
    """
    checkpoint = find_checkpoint(path, which)
    if is_foreign(checkpoint):
        return _open_foreign(path, checkpoint, [open_run(each, which, data_dir) for each in beside if each != path])
    config, folder = read_config(checkpoint), checkpoint.parent.parent
    facts = RunDirectory(folder, writes=False).read_json("data.json")
    if facts is None:
        raise UserFault(f"{folder / 'data.json'} is missing: it names the tokens of {path}. Give a run or its part")
    places = dict.fromkeys([config.data.dir, "data"] if data_dir is None else [data_dir])
    mix = config.data.mix
    found = (open_prepared(place, facts, mix) for place in places)
    prepared = next((each for each in found if each), None)
    if prepared is None:
        shares = shlex.quote(",".join(f"{source}:{share:g}" for source, share in mix.items()))
        text = f"data.mix={shares}" if mix else f"data={config.data.name}"
        remedy = f"or make them: minigpt prepare {text} tokenizer={config.tokenizer.name} ..."
        tried = " or ".join(map(shown, places))
        raise UserFault(f"the tokens of {path} are not in {tried}. Say where with data.dir=DIR, {remedy}")
    files = read_manifest(checkpoint)["files"]
    weights = " ".join(str(files[name]["sha256"]) for name in (MODEL, ADAPTER) if name in files)
    return Run(path, checkpoint, config, prepared.tokenizer, prepared.val, weights)


def _open_foreign(path: str, checkpoint: Path, beside: Sequence[Run]) -> Run:
    tokenizer = foreign_tokenizer(checkpoint)
    for run in beside:
        if isinstance(tokenizer, Tokenizer) and run.tokenizer.hash == tokenizer.hash:
            config = read_foreign_config(checkpoint)[0]
            return Run(path, checkpoint, config, run.tokenizer, run.val, str(checkpoint.resolve()))
    remedy = f"minigpt evaluate checkpoint={path} file=TEXT scores it on any text"
    raise UserFault(f"{path} has no validation text, and none of the runs beside it has its tokenizer. {remedy}")


def comparable(runs: Sequence[Run], left_out: list[str]) -> list[Run]:
    """Return the runs that are validated on the most common text, one run for equal weights.

    Args:
        runs: all that could be opened.
        left_out: gets a sentence for each of the others.
    """
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
    """Return runs grouped by their keys. In a group a seed counts once: its twin tells nothing about other seeds.

    Args:
        runs: (key, run); the key is equal for the same settings.
        left_out: gets a sentence for each run that does not count.
    """
    groups: dict[object, dict[int, Run]] = {}
    for key, run in runs:
        twin = groups.setdefault(key, {}).setdefault(run.config.seed, run)
        if twin is not run:
            both = f"{twin.path} and {run.path} are one side, and both have seed={run.config.seed}"
            left_out.append(f"{both}: give one of them, or write `vs` between two sides, RUN ... vs RUN ...")
    return [list(group.values()) for group in groups.values()]


def settings_of(run: Run) -> dict[str, object]:
    """Return what decides how good the model becomes, except for the seed: settings, and a checkpoint given by name."""
    deciding = with_role(TrainConfig, "weights", "schedule") - {"seed"}
    kept: dict[str, object] = {key: value for key, value in values(run.config).items() if key in deciding}
    return kept | ({"checkpoint": run.checkpoint.name} if Path(run.path).expanduser() == run.checkpoint else {})


def name_sides(groups: Sequence[list[Run]]) -> list[Side]:
    """Return the sides A, B, ..., labelled with what is different from the first."""
    first, sides = settings_of(groups[0][0]), []
    for number, runs in enumerate(groups):
        own = settings_of(runs[0])
        keys = [key for key in sorted(first.keys() | own.keys()) if first.get(key) != own.get(key)]
        changes = [f"{key}: {shown(first.get(key))} -> {shown(own.get(key))}" for key in keys[:MAX_CHANGES]]
        changes += [f"and {len(keys) - MAX_CHANGES} more"] if len(keys) > MAX_CHANGES else []
        label = runs[0].path + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        label += f"  ({', '.join(changes) or 'the same settings'})" if number else ""
        sides.append(Side(chr(ord("A") + number) if number < 26 else f"A{number}", runs, label))
    return sides
