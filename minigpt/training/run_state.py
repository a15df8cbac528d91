"""Where a run stands: how far it is and when it ends. A checkpoint, settings or data that don't fit it are refused."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from minigpt.checkpoint import load
from minigpt.checkpoint.adapters import read_adapter
from minigpt.checkpoint.contents import MODEL, STATE, read_tensors
from minigpt.checkpoint.folder import list_checkpoints, step_of
from minigpt.config.convert import misfit, shown
from minigpt.config.roles import Change, differences, removed_settings
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import document_end
from minigpt.data.chat.packing import ConversationSplit
from minigpt.data.chat.roles import with_roles
from minigpt.data.mix import parts_of
from minigpt.data.order import check_length
from minigpt.data.prepared import CONVERSATIONS, DamagedShards, Prepared, open_prepared
from minigpt.data.preparing.prepare import prepare
from minigpt.data.tokenizer import Tokenizer, scheme_of
from minigpt.faults import UserFault
from minigpt.formats.architecture import is_foreign, read_foreign_config
from minigpt.formats.huggingface import NoTokenizer, foreign_tokenizer, read_foreign_weights
from minigpt.model.adapter import adapter_of, put_on
from minigpt.model.evaluate import unpredicted_places
from minigpt.model.gpt import GPT
from minigpt.model.parts import is_sharded
from minigpt.rundir.run_directory import RunDirectory
from minigpt.sampling.write import encode_prompt
from minigpt.screen import tell


@dataclass
class RunState:
    """Where a run stands. Saved with each checkpoint, and equal for equal runs."""

    step: int = 0  # optimizer steps done
    best_step: int = 0  # of the lowest val/loss so far
    best_loss: float | None = None  # nats per token
    seconds: float = 0.0  # training time used; counted only when max_minutes limits the run
    bad_steps: int = 0  # skipped in a row, up to now
    recent_losses: list[float] = field(default_factory=list)  # of good steps; kept only when guard.spike_zscore is on
    loss_scale: float = 0.0  # fp16 only: the factor on the loss
    loss_scale_steps: int = 0  # fp16 only: steps without an overflow since it changed
    patience_over: bool | None = None  # as the last validation found; None: saved before 0.2.0, so steps decide


def out_of_patience(state: RunState, config: TrainConfig) -> bool:
    """Return whether `trainer.patience` validations have passed since the best one."""
    allowed = config.trainer.patience * config.validate.every_steps
    return allowed > 0 and state.step - state.best_step >= allowed


def steps_of(config: TrainConfig) -> int | None:
    """Return a run's optimizer steps; None when only time limits it. A step is never cut, so max_tokens rounds up."""
    if config.trainer.max_tokens is not None:
        return math.ceil(config.trainer.max_tokens / config.batch_tokens)
    return config.trainer.max_steps


def reached_limit(state: RunState, config: TrainConfig) -> str | None:
    """Return the limit that a run in this state has reached, or None if it goes on."""
    total_steps, minutes = steps_of(config), config.trainer.max_minutes
    if total_steps is not None and state.step >= total_steps:
        return "max_tokens" if config.trainer.max_tokens is not None else "max_steps"
    if minutes is not None and state.seconds >= 60 * minutes:
        return "max_minutes"
    return "patience" if state.patience_over is not False and out_of_patience(state, config) else None


class Clock:
    """Counts training time: seconds without validations, samples and saves.

    Args:
        seconds: counted before, in a run that continues.
    """

    def __init__(self, seconds: float = 0.0):
        self._counted = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Start counting, or go on."""
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        return self._counted + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that a `with` block takes."""
        self._counted, self._since = self.seconds, None
        try:
            yield
        finally:
            self.start()


def refuse_changed_run(path: Path, config: TrainConfig) -> list[Change]:
    """Return how the settings differ from those of the run in `path`; their roles say which settings may.

    Raises:
        UserFault: a setting differs that may not, since a run continues with the config that it was begun with; or
            the folder holds files that are not a run's.
    """
    run = RunDirectory(path, writes=False)
    saved = run.saved_config()
    if saved is None:
        run.refuse_files_of_others()
        return []
    changes = differences(saved, config)
    forbidden = [change for change in changes if not change.allowed]
    if forbidden:
        raise UserFault(
            f"run.dir={path} was begun with another config; continuing would mix two runs:\n"
            + "\n".join(f"  {change}" for change in forbidden)
            + "\nTake these values back, or start another run with run.dir=NEW_DIR "
            + (f"(init.from={path} starts it from these weights)" if list_checkpoints(path / "checkpoints") else "")
        )
    return changes


def tell_removed_settings(run: RunDirectory) -> None:
    """Name the settings of the run's config that this version no longer has."""
    for removed in removed_settings(run.saved_config() or {}, TrainConfig):
        print(f"Note: the run was begun with {removed}")


def refuse_unfit_data(config: TrainConfig, prepared: Prepared) -> None:
    """Refuse data with too few tokens, or a prompt that its tokenizer can't encode, before anything is written."""
    end = document_end(config.data, prepared.tokenizer)
    if not isinstance(prepared.train, ConversationSplit):
        for name, train in parts_of(prepared.train).items():
            check_length("train" if name == "train" else f"{name}: train", len(train), config.model.block_size)
    for split in (prepared.train, prepared.val):
        if isinstance(split, ConversationSplit):
            split.refuse_small_context(config.model.block_size)
    for name, val in parts_of(prepared.val).items():
        if len(val) < 2:
            raise UserFault(
                f"the val split{'' if name == 'val' else f' of {name}'} has {len(val)} token, and predicting one takes "
                f"at least 2. Use more text or a larger data.val_fraction (now {config.data.val_fraction:g})"
            )
        if len(val) == len(unpredicted_places(val, end)):
            raise UserFault("data.mask_documents=true leaves no token of the val split to predict. Use more text")
    encode_prompt(prepared.tokenizer, config.samples.prompt)


def prepare_tokens(config: TrainConfig, path: Path) -> Prepared:
    """Return the tokens of the run in `path`: those that it began with, whatever became of their text.

    The weights of `init.from` know the tokens of their own tokenizer: if it is a learned one, or has control tokens, it
    is used on any text. A run that continues has it in its checkpoints, and doesn't need `init.from` any more.

    Raises:
        UserFault: the text has characters that this tokenizer lacks, and whatever `prepare` raises.
    """
    saved = RunDirectory(path, writes=False).read_json("data.json")
    with contextlib.suppress(DamagedShards):
        if saved is not None and (prepared := open_prepared(config.data.dir, saved, config.data.mix)):
            tell(f"data: {prepared.folder}: the tokens that this run began with, whatever the source holds now")
            return prepared
    given = None
    name, file = config.tokenizer.name, config.tokenizer.file
    if config.init.source is not None and (name != "file" or file is None):
        theirs = _own_tokenizer(path) or _tokenizer_of(load.find_checkpoint(config.init.source), config.init.source)
        if isinstance(theirs, Tokenizer) and theirs.name == name:  # restore_weights refuses any other
            has_more = theirs.control and config.data.name not in CONVERSATIONS  # those add the same to a fixed one
            given = theirs if scheme_of(name).is_learned or name == "file" or has_more else None
    try:
        return prepare(config.data, config.tokenizer, given=given)
    except DamagedShards as fault:
        if given is None:
            raise
        raise UserFault(f"{fault.what}. Remove its folder; the same command makes it again") from None


def check_fingerprint(run: RunDirectory, prepared: Prepared) -> dict[str, Any]:
    """Return the facts that identify the tokens: a run continues on the very tokens it began with.

    Raises:
        UserFault: the run began with other tokens.
    """
    saved = run.read_json("data.json")
    facts = prepared.facts
    if saved is not None and saved != facts:
        raise UserFault(
            f"the data has changed since the run {run.path} began (fingerprint {str(saved.get('fingerprint'))[:12]}, "
            f"now {prepared.fingerprint[:12]}). Put the old text back, or start another run with run.dir=NEW_DIR"
        )
    return facts


def read_run_state(checkpoint: Path | None) -> RunState:
    """Return the state that a checkpoint holds; without a checkpoint, that of a new run."""
    if checkpoint is None:
        return RunState()
    state = load.read_state(checkpoint)
    names = {field.name for field in fields(RunState)}
    wrong = misfit(RunState, state)
    if wrong or state.get("step") != step_of(checkpoint):
        raise load.unusable(checkpoint, f"{STATE} does not say where it stands ({wrong or shown(state.get('step'))})")
    return RunState(**{name: value for name, value in state.items() if name in names})


def restore_weights(gpt: GPT, config: TrainConfig, checkpoint: Path | None, tokenizer: Tokenizer) -> None:
    """Load the weights of the run's checkpoint, or of `init.from` for a new run."""
    if checkpoint is not None:  # rank 0 has compared every byte just now
        load.load_weights(gpt, read_tensors(checkpoint / MODEL), str(checkpoint))
        return
    if config.init.source is not None:
        origin = load.find_checkpoint(config.init.source)
        theirs = _tokenizer_of(origin, config.init.source)
        if isinstance(theirs, NoTokenizer):
            refuse_larger_vocabulary(config.init.source, read_foreign_config(origin)[1], tokenizer)
        elif tokenizer.hash not in (theirs.hash, with_roles(theirs).hash):
            named = f"Use tokenizer={theirs.name}"
            remedy = named if theirs.name != tokenizer.name else "Give it as text, not as tokens: data.source=FILE"
            raise UserFault(
                f"init.from={config.init.source}: its weights know a {theirs.name} tokenizer of {theirs.vocab_size:,} "
                f"tokens (SHA-256 {theirs.hash[:12]}), and this data has a {tokenizer.name} tokenizer of "
                f"{tokenizer.vocab_size:,} ({tokenizer.hash[:12]}): the same numbers would be other text. "
                f"{remedy}"
            )
        weights = read_foreign_weights(origin) if is_foreign(origin) else load.read_tensors(origin, MODEL)
        known = theirs.vocab_size if isinstance(theirs, Tokenizer) else None
        if known is not None and known < tokenizer.vocab_size:
            new = f"{tokenizer.vocab_size - known} control tokens that are new to init.from={config.init.source}"
            if config.objective.name == "grpo":
                remedy = "Teach it conversations first: data=tasks without objective=grpo"
                raise UserFault(f"objective=grpo can't begin with {new}: no answer would be right. {remedy}")
            if is_sharded(gpt):
                raise UserFault(f"sharded weights can't take the {new}. Use trainer=ddp, or train a step on one device")
            if config.adapter.name != "none":
                print(f"Note: an adapter leaves the embeddings of {new} untrained. adapter=none trains them, too")
        load.load_weights(gpt, load.resize_vocabulary(weights, gpt, known), str(origin))
        if not is_foreign(origin):
            load.merge_own_adapter(gpt, origin)


def put_adapter_on(gpt: GPT, config: TrainConfig, checkpoint: Path | None) -> None:
    """Put the config's adapter, if any, on a model with its weights: a new one, or as the checkpoint has it."""
    if config.adapter.name == "none":
        return
    put_on(gpt, config.adapter)
    if checkpoint is not None:
        saved = read_adapter(lambda name: checkpoint / name, gpt, str(checkpoint))
        mine = adapter_of(gpt)
        assert mine is not None
        assert mine.pairs.keys() == saved.pairs.keys()
        for place, pair in mine.pairs.items():
            for tensor, theirs in zip(pair, saved.pairs[place], strict=True):
                tensor.copy_(theirs)


def _own_tokenizer(run: Path) -> Tokenizer | None:
    for checkpoint in reversed(list_checkpoints(run / "checkpoints")):
        with contextlib.suppress(UserFault):  # damaged: which one is used is decided later
            return load.read_tokenizer(checkpoint)
    return None


def _tokenizer_of(origin: Path, source: str) -> Tokenizer | NoTokenizer:
    theirs = foreign_tokenizer(origin) if is_foreign(origin) else load.read_tokenizer(origin)
    if isinstance(theirs, NoTokenizer) and theirs.is_there:
        raise UserFault(f"init.from={source}: its tokenizer can't be used: {theirs.reason}")
    return theirs


def refuse_larger_vocabulary(source: str, vocab_size: int, tokenizer: Tokenizer) -> None:
    """Refuse weights without a tokenizer if this data has more tokens than they know; only the number is known.

    Raises:
        UserFault: the data has more.
    """
    if tokenizer.vocab_size > vocab_size:
        raise UserFault(
            f"init.from={source}: its weights know {vocab_size:,} tokens, and this data has a {tokenizer.name} "
            f"tokenizer of {tokenizer.vocab_size:,}. Use the tokenizer that the weights were trained with"
        )
    print(f"Note: init.from={source} has no tokenizer: whether its tokens mean the same text as these can't be checked")
