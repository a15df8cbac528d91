"""The losses of trained models on the same windows of the same text."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.checkpoint.load import find_checkpoint, load_checkpoint, read_config, read_state, read_tokenizer
from minigpt.checkpoint.pack import MODEL
from minigpt.checkpoint.store import read_manifest
from minigpt.config.convert import shown
from minigpt.config.schema import TrainConfig
from minigpt.data.prepare import open_prepared
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.evaluate import token_losses
from minigpt.rundir.run_directory import RunDirectory

MAX_LOGITS = 1 << 26  # at one time
MAX_WINDOWS = 64
PIECE = 1 << 20  # tokens decoded at one time

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A checkpoint to compare, and the text it is validated on."""

    path: str  # as it was typed
    checkpoint: Path
    config: TrainConfig
    step: int
    tokenizer: Tokenizer
    val: TokenSplit
    weights: str  # SHA-256

    @property
    def is_checkpoint(self) -> bool:
        """Whether a checkpoint of its own was given, not a run."""
        return Path(self.path).expanduser() == self.checkpoint


def open_run(path: str, which: str, data_dir: str | None = None) -> Run:
    """Find a run's checkpoint and its tokens, which are known by their fingerprint: no text is looked for.

    Args:
        path: a run directory, or a checkpoint in it.
        which: of a run, "best" or "latest".
        data_dir: where prepared tokens are; None: where the run says, else data/.

    Raises:
        UserFault, NoUsableCheckpoint: something of it is missing or damaged.
    """
    checkpoint = find_checkpoint(path, which)
    config, tokenizer, state = read_config(checkpoint), read_tokenizer(checkpoint), read_state(checkpoint)
    folder = checkpoint.parent.parent
    facts = RunDirectory(folder, writes=False).read_json("data.json")
    if facts is None:
        raise UserFault(
            f"{folder / 'data.json'} is missing: it says which tokens {path} was trained on. Give a run directory, or "
            "a checkpoint that still lies in its run directory"
        )
    places = dict.fromkeys([config.data.dir, "data"] if data_dir is None else [data_dir])
    found = (open_prepared(place, str(facts.get("fingerprint"))) for place in places)
    prepared = next((each for each in found if each), None)
    if prepared is None:
        raise UserFault(
            f"the tokens that {path} was trained on are not in {' or '.join(map(shown, places))}. Say where with "
            f"data.dir=DIR, or make them again: minigpt prepare data={config.data.name} "
            f"tokenizer={config.tokenizer.name} ..."
        )
    if prepared.tokenizer.hash != tokenizer.hash:
        raise UserFault(f"{checkpoint} has another tokenizer than the tokens its run names ({prepared.folder})")
    step = state.get("step")
    return Run(
        path,
        checkpoint,
        config,
        step if isinstance(step, int) else 0,
        tokenizer,
        prepared.val,
        str(read_manifest(checkpoint)["files"][MODEL]["sha256"]),
    )


def val_text_sha256(run: Run) -> str:
    """Return the SHA-256 of the validation text, whatever tokens it is in."""
    digest = hashlib.sha256()
    for start in range(0, len(run.val), PIECE):
        digest.update(run.tokenizer.decode_bytes(run.val.tokens(start, start + PIECE)))
    return digest.hexdigest()


@dataclass(frozen=True)
class Scores:
    """Each run's loss summed over each window, and how large the windows are."""

    losses: dict[str, Array]  # a run's weights -> nats (or bits) of each window, (windows,)
    sizes: Array  # tokens (or bytes), (windows,)
    window: int  # the size of a whole one
    unit: str  # of losses / sizes


def score(runs: Sequence[Run], *, device: str, say: Callable[[str], object] = print) -> Scores:
    """Score runs with the same validation text on the same windows of it: as long as the longest context.

    With one tokenizer these are windows of tokens, and losses are in nats per token. With several they are windows of
    bytes, a token lies where its last byte does, and losses are in bits per byte.
    """
    first = runs[0]
    in_bytes = any(run.val.fingerprint != first.val.fingerprint for run in runs)
    longest = [run.config.model.block_size * (run.val.bytes / len(run.val) if in_bytes else 1) for run in runs]
    window = math.ceil(max(longest))
    total = first.val.bytes if in_bytes else len(first.val) - 1
    sizes = np.full(-(-total // window), float(window))
    sizes[-1] = total - window * (len(sizes) - 1)
    losses = {}
    for number, run in enumerate(runs, 1):
        say(f"Scoring {number}/{len(runs)}  {run.path}, {run.checkpoint.name}: {len(run.val) - 1:,} tokens")
        losses[run.weights] = _window_losses(run, device, window=window, windows=len(sizes), in_bytes=in_bytes)
    return Scores(losses, sizes, window, "bits per byte" if in_bytes else "nats per token")


def _window_losses(run: Run, device: str, *, window: int, windows: int, in_bytes: bool) -> Array:
    loaded = load_checkpoint(run.checkpoint)
    block_size = run.config.model.block_size
    batch = min(MAX_WINDOWS, max(1, MAX_LOGITS // (block_size * run.tokenizer.vocab_size)))
    lengths = np.array([len(run.tokenizer.token_bytes(token)) for token in range(run.tokenizer.vocab_size)])
    sums = np.zeros(windows)
    position, offset = 1, int(lengths[run.val.tokens(0, 1)].sum())  # of the next token, of the bytes before it
    options: dict[str, Any] = {"block_size": block_size, "batch": batch, "device": device, "precision": "fp32"}
    for losses in token_losses(loaded.model.to(torch.device(device)), run.val, **options):
        tokens = run.val.tokens(position, position + len(losses))
        if in_bytes:
            ends = offset + np.cumsum(lengths[tokens])
            offset = int(ends[-1])
            places = np.maximum(ends - 1, 0) // window
        else:
            places = (np.arange(position, position + len(losses)) - 1) // window
        sums += np.bincount(places, weights=losses.double().numpy(), minlength=windows)
        position += len(losses)
    return sums / math.log(2) if in_bytes else sums
