"""Prepare the sources of a mixture (data.mix)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.mix import short_names
from minigpt.data.prepared import DamagedShards, Prepared, mixed, open_folder, read_prepared, refuse_conversations
from minigpt.data.sources.find import typed_path
from minigpt.data.tokenizer import Tokenizer, scheme_of
from minigpt.faults import UserFault
from minigpt.screen import Say


def prepare_mix(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    prepare: Callable[..., Prepared],
    *,
    given: Tokenizer | None,
    say: Say,
) -> Prepared:
    """Prepare each source of a mixture, with the tokenizer of the first for all.

    Args:
        data: the mixture, and data.dir.
        tokenizer: name and vocabulary size.
        prepare: (data, tokenizer, given=) prepares one source.
        given: a tokenizer to use instead of learning one from the first source.
        say: takes lines for the user.

    Raises:
        UserFault: a source is at fault, or its tokens are those of another tokenizer.
    """
    parts: dict[str, Prepared] = {}
    for name, source in short_names(data.mix).items():
        folder = typed_path(source)
        if (folder / "prepared.json").is_file():
            refuse_conversations(read_prepared(folder), f"data.mix: {name}")
            try:
                part = open_folder(folder, say)
            except DamagedShards as fault:  # the user's own folder: `mend` must not make it anew
                remedy = f"Copy {folder} again from where it was made, or make it again there"
                raise UserFault(f"{fault.what}. {remedy}") from None
        else:
            corpus: Any = source if source in ("stdlib", "shakespeare_char") else "text"
            alone = replace(data, name=corpus, source=source if corpus == "text" else None, mix={})
            fixed = not scheme_of(tokenizer.name).is_learned and tokenizer.name != "file"
            fixed &= given is None or not given.control
            part = prepare(alone, tokenizer, given=None if fixed else given)
        given = given or part.tokenizer
        if part.tokenizer.hash != given.hash:
            raise UserFault(
                f"data.mix: {name} holds tokens of a {part.tokenizer.name} tokenizer, SHA-256 "
                f"{part.tokenizer.hash[:12]}, and the first source has another, {given.name}, {given.hash[:12]}. "
                "Name its text instead, or prepare both with one tokenizer"
            )
        parts[name] = part
    if part.tokenizer.name != tokenizer.name:
        theirs = part.tokenizer.name
        raise UserFault(f"data.mix holds tokens of tokenizer={theirs}, got tokenizer={tokenizer.name}. Use the former")
    return mixed(parts, dict(zip(parts, data.mix.values(), strict=True)))
