"""Where a run stands: read from its checkpoint, and refused where config or data are not those it began with."""

from dataclasses import fields
from pathlib import Path

from minigpt.checkpoint.load import (
    find_checkpoint,
    load_weights,
    read_file,
    read_state,
    read_tensors,
    read_tokenizer,
    unusable,
)
from minigpt.checkpoint.pack import MODEL, OPTIMIZER, STATE
from minigpt.checkpoint.store import list_checkpoints, step_of
from minigpt.config.convert import misfit, shown
from minigpt.config.roles import Change, differences, removed_settings
from minigpt.config.schema import TrainConfig
from minigpt.data.order import check_length
from minigpt.data.prepare import DamagedShards, Prepared, prepare
from minigpt.data.tokenizer import Tokenizer, scheme_of
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from minigpt.rundir.run_directory import RunDirectory
from minigpt.sampling.write import encode_prompt
from minigpt.training.state import RunState


def refuse_changed_run(path: Path, config: TrainConfig) -> list[Change]:
    """Return how the settings differ from those of the run in `path`; which may is said by their roles.

    Raises:
        UserFault: some may not, for a run continues with the config that it was begun with.
    """
    saved = RunDirectory(path, writes=False).saved_config()
    if saved is None:
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
    for removed in removed_settings(saved, TrainConfig):
        print(f"Note: the run was begun with {removed}")
    return changes


def refuse_unfit_data(config: TrainConfig, prepared: Prepared) -> None:
    """Name what the tokens are too few or of another alphabet for, before anything is written."""
    check_length("train", len(prepared.train), config.model.block_size)
    if len(prepared.val) < 2:
        raise UserFault(
            f"the val split has {len(prepared.val)} token, and predicting one takes at least 2. Use more text or a "
            f"larger data.val_fraction (now {config.data.val_fraction:g})"
        )
    encode_prompt(prepared.tokenizer, config.samples.prompt)


def prepare_tokens(config: TrainConfig) -> Prepared:
    """The run's tokens. Weights to start from know their own tokens: a learned tokenizer of theirs is used on any text.

    Raises:
        UserFault: the text has characters that their alphabet lacks, and whatever `prepare` raises.
    """
    given = None
    if config.init.source is not None and scheme_of(config.tokenizer.name).is_learned:
        theirs = read_tokenizer(find_checkpoint(config.init.source))
        given = theirs if theirs.name == config.tokenizer.name else None  # else refused by restore_weights
    try:
        return prepare(config.data, config.tokenizer, given=given)
    except DamagedShards as fault:
        if given is None:
            raise
        raise UserFault(f"{fault.what}. Remove its folder; the same command makes it again") from None


def check_fingerprint(run: RunDirectory, prepared: Prepared) -> dict[str, str]:
    """Return what identifies the tokens: a run continues on the very ones it began with.

    Raises:
        UserFault: it began with others.
    """
    saved = run.read_json("data.json")
    facts = {"fingerprint": prepared.fingerprint, "tokenizer": prepared.tokenizer.hash}
    if saved is not None and saved != facts:
        raise UserFault(
            f"the data has changed since the run {run.path} began (fingerprint {str(saved.get('fingerprint'))[:12]}, "
            f"now {prepared.fingerprint[:12]}). Put the old text back, or start another run with run.dir=NEW_DIR"
        )
    return facts


def read_run_state(checkpoint: Path | None) -> RunState:
    """Where a checkpoint stands."""
    if checkpoint is None:
        return RunState()
    state = read_state(checkpoint)
    names = {field.name for field in fields(RunState)}
    wrong = misfit(RunState, state)
    if wrong or state.get("step") != step_of(checkpoint):
        raise unusable(checkpoint, f"{STATE} does not say where it stands ({wrong or shown(state.get('step'))})")
    return RunState(**{name: value for name, value in state.items() if name in names})


def restore_weights(gpt: GPT, config: TrainConfig, checkpoint: Path | None, tokenizer: Tokenizer) -> bytes | None:
    """Load the weights of the run's checkpoint, or of `init.from` for a new run.

    Returns:
        The optimizer's state to continue with, or None.
    """
    if checkpoint is not None:
        load_weights(gpt, read_tensors(checkpoint, MODEL), str(checkpoint))
        return read_file(checkpoint, OPTIMIZER)
    if config.init.source is not None:
        origin = find_checkpoint(config.init.source)
        theirs = read_tokenizer(origin)
        if theirs.hash != tokenizer.hash:
            raise UserFault(
                f"init.from={config.init.source}: its weights know a {theirs.name} tokenizer of {theirs.vocab_size:,} "
                f"tokens (SHA-256 {theirs.hash[:12]}), and this data has a {tokenizer.name} tokenizer of "
                f"{tokenizer.vocab_size:,} ({tokenizer.hash[:12]}): the same numbers would be other text. "
                f"Use tokenizer={theirs.name}"
            )
        load_weights(gpt, read_tensors(origin, MODEL), str(origin))
    return None
