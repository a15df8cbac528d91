"""Before the first step: checks, the tokens of the run, and its first weights."""

from pathlib import Path

from minigpt.checkpoint import adapters, contents, load
from minigpt.checkpoint.folder import list_checkpoints
from minigpt.config.run_names import Change, differences
from minigpt.config.schema import CONVERSATIONS, TrainConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.prepared import Prepared, open_prepared
from minigpt.data.preparing.prepare import changed_sources, find_or_make, prepare
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.formats.architecture import is_imported, read_imported_config
from minigpt.formats.huggingface import imported_tokenizer, read_imported_weights
from minigpt.model.gpt import GPT
from minigpt.model.lora import adapter_of, put_on
from minigpt.rundir.run_directory import RunDirectory
from minigpt.sampling.write import encode_prompt
from minigpt.screen import tell


def refuse_changed_run(path: Path, config: TrainConfig) -> list[Change]:
    """Return how the settings differ from those of the run in `path`, or refuse those that a run keeps for good."""
    saved = RunDirectory(path, writes=False).saved_config()
    if saved is None:
        if (path / "metrics.jsonl").exists():  # which a new run would replace
            raise UserFault(f"run.dir={path} holds metrics.jsonl, but no config.yaml. Choose another run.dir")
        return []
    derived = "trainer.max_steps" if config.trainer.epochs else None
    changes = [change for change in differences(saved, config) if change.key != derived]
    if forbidden := [change for change in changes if change.role == "weights"]:
        listed = "\n".join(f"  {change}" for change in forbidden)
        wrong = f"run.dir={path} was begun with another config; continuing would mix two runs:\n{listed}"
        weights = f" (init.from={path} starts it from these weights)" if list_checkpoints(path / "checkpoints") else ""
        command = path / "command.txt"
        own = f"\nThe run's own command: {command.read_text().strip()}" if command.exists() else ""
        raise UserFault(f"{wrong}\nTake these values back, or start another run with run.dir=NEW_DIR{weights}{own}")
    # Said here, so that a finished run says it, too.
    for change in changes:
        if not change.key.startswith(("logger.", "run.", "experiment", "data.")):
            tell(f"Changed setting: {change}, for further steps")
    return changes


def find_tokens(config: TrainConfig, path: Path, changes: list[Change], *, is_told: bool = False) -> Prepared:
    """Return the tokens to train on: those with which the run in `path` began, or those of a new run's text.

    A run that has begun finds its tokens by their fingerprint, even if the text was changed or removed. `is_told`: the
    screen has the facts of a new run's tokens already.
    """
    saved = RunDirectory(path, writes=False).read_json("data.json")
    moved = any(change.key.startswith("data.") and change.key != "data.dir" for change in changes)
    if saved is not None and not moved and (known := open_prepared(config.data.dir, saved, config.data.mix)):
        tell(f"data: {known.folder}: the tokens that this run began with")
        if changed := changed_sources(config.data, known):
            what = f"{', '.join(changed)} has changed, or is gone, since this run began"
            new = "a new run (run.dir=NEW_DIR) takes the text as it is now"
            tell(f"Note: {what}. The run continues with its own tokens; {new}.")
        return known
    make = find_or_make if is_told else prepare
    prepared = make(config.data, config.tokenizer, given=given_tokenizer(config, path))
    if saved is not None and saved != prepared.facts:
        others = ", ".join(str(change) for change in changes if change.key.startswith("data."))
        what = f"other data ({others})" if moved else f"a text whose tokens are no longer in data.dir={config.data.dir}"
        raise UserFault(f"run.dir={path} was begun with {what}. Put it back, or start another run: run.dir=NEW_DIR")
    return prepared


def given_tokenizer(config: TrainConfig, path: Path) -> Tokenizer | None:
    """Return the tokenizer of `init.from`, with which the text is encoded.

    A run that continues has it in its checkpoints, and doesn't need `init.from` any more.
    """
    source, name = config.init.source, config.tokenizer.name
    if source is None or (name == "file" and config.tokenizer.file is not None):
        return None
    saved = list_checkpoints(path / "checkpoints")
    tokenizer = load.read_tokenizer(saved[-1]) if saved else tokenizer_of(load.find_checkpoint(source), source)
    return None if tokenizer is None or tokenizer.name != name else tokenizer  # load_weights refuses another one


def tokenizer_of(origin: Path, source: str) -> Tokenizer | None:
    """Return the tokenizer of the checkpoint or other program's model in `origin`; None if it has none."""
    if not is_imported(origin):
        return load.read_tokenizer(origin)
    tokenizer = imported_tokenizer(origin)
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer.is_there:
        raise UserFault(f"init.from={source}: its tokenizer can't be used: {tokenizer.reason}")
    return None


def complete_tokenizer(config: TrainConfig, checkpoint: Path | None, prepared: Prepared) -> None:
    """Note whether the training text shows what follows end-of-text: ten times or more in its first tokens.

    The tokenizer of a text also gets the chat_template of the run's checkpoint, or of `init.from`.
    """
    tokenizer, source = prepared.tokenizer, config.init.source
    tokenizer.begins_texts = int((prepared.train.tokens(0, 1 << 24) == tokenizer.eot).sum()) >= 10
    if source is None or config.data.name in CONVERSATIONS:  # which have a form of their own
        return
    known = load.read_tokenizer(checkpoint) if checkpoint else tokenizer_of(load.find_checkpoint(source), source)
    if known is not None and known.hash == tokenizer.hash:
        tokenizer.template = known.template


def refuse_unfit_data(config: TrainConfig, prepared: Prepared) -> None:
    """Refuse data with too few tokens, or a prompt that its tokenizer can't encode, before anything is written."""
    for split in (prepared.train, prepared.val):
        split.check_context(config.model.block_size)
    encode_prompt(prepared.tokenizer, config.samples.prompt)


def load_weights(gpt: GPT, config: TrainConfig, checkpoint: Path | None, prepared: Prepared) -> None:
    """Load the weights of the run's checkpoint, or of `init.from`, which must have the same tokenizer as the data."""
    if checkpoint is not None:  # rank 0 has just verified it
        load.load_weights(gpt, contents.read_tensors(checkpoint / contents.MODEL), str(checkpoint))
        return
    source, tokenizer = config.init.source, prepared.tokenizer
    if source is None:
        return
    origin = load.find_checkpoint(source)
    known = tokenizer_of(origin, source)
    if known is not None:
        refuse_other_tokenizer(config, known, tokenizer)
    else:
        size = read_imported_config(origin)[1]
        # A bpe is of this text, and so is a char, but for nanoGPT's of the same text, which has as many tokens.
        is_other = tokenizer.name == "bpe" or (tokenizer.name == "char" and tokenizer.vocab_size != size)
        if is_other or tokenizer.vocab_size > size:
            remedy = "Put its tokenizer.json (nanoGPT: meta.pkl) there, or type the one it has, like tokenizer=gpt2"
            wrong = f"it has no tokenizer, and its weights do not know the tokens of tokenizer={tokenizer.name}"
            raise UserFault(f"init.from={source}: {wrong}. {remedy}")
    weights = read_imported_weights(origin) if is_imported(origin) else load.read_tensors(origin, contents.MODEL)
    load.load_weights(gpt, load.resize_vocabulary(weights, gpt, known.vocab_size if known else None), str(origin))
    if not is_imported(origin):
        load.merge_own_adapter(gpt, origin)


def refuse_other_tokenizer(config: TrainConfig, known: Tokenizer, tokenizer: Tokenizer) -> None:
    """Refuse data whose tokenizer is not that of the weights, or has control tokens that they can't learn."""
    source, count = f"init.from={config.init.source}", tokenizer.vocab_size - known.vocab_size
    if tokenizer.hash not in (known.hash, with_roles(known).hash):
        is_other_kind = known.name != tokenizer.name
        remedy = f"Use tokenizer={known.name}" if is_other_kind else "Give it as text, not as tokens: data.source=FILE"
        has = f"a {known.name} tokenizer of {known.vocab_size:,} tokens (SHA-256 {known.hash[:12]})"
        got = f"a {tokenizer.name} tokenizer of {tokenizer.vocab_size:,} ({tokenizer.hash[:12]})"
        wrong = f"its weights know {has}, and this data has {got}: the same numbers would be other text"
        raise UserFault(f"{source}: {wrong}. {remedy}")
    if count > 0 and config.objective.name == "grpo":
        remedy = "Teach it conversations first: data=tasks without objective=grpo"
        raise UserFault(f"{source} lacks {count} control tokens, and no answer would be right. {remedy}")


def put_adapter_on(gpt: GPT, config: TrainConfig, checkpoint: Path | None, tokenizer: Tokenizer) -> None:
    """Put the config's adapter, if any, on a model: a new one, or that of the checkpoint.

    The embeddings of control tokens that the base model lacks learn with it, and its file then names the tokenizer.
    """
    if config.adapter.name == "none":
        return
    if checkpoint is not None:
        saved = adapters.read_adapter(lambda name: checkpoint / name, gpt, str(checkpoint))
        is_new = bool(saved.tokenizer)
    else:
        known = tokenizer_of(load.find_checkpoint(str(config.init.source)), str(config.init.source))
        is_new = known is None or known.vocab_size < tokenizer.vocab_size
    size = tokenizer.vocab_size
    put_on(gpt, config.adapter, range(size - len(tokenizer.control) * is_new, size))
    if checkpoint is not None:
        adapter = adapter_of(gpt)
        assert adapter is not None
        for place, pair in adapter.pairs.items():
            for tensor, saved_tensor in zip(pair, saved.pairs[place], strict=True):
                tensor.copy_(saved_tensor)
