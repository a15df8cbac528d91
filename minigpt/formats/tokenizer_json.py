"""Our tokenizers as Hugging Face's tokenizer.json, out and in: the same ids, text and merges."""

import itertools
import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from minigpt.data.chat.roles import END, end_of_turn, has_roles
from minigpt.data.chat.template import ChatTemplate
from minigpt.data.tokenizer import Tokenizer, read_tokenizer_json
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE
from minigpt.data.tokenizers.file import bpe_json
from minigpt.faults import UserFault
from minigpt.files import read_json
from minigpt.imported_models import kind_of_tokenizer

# The form of minigpt/data/chat/roles.py as a Jinja template, which Hugging Face and llama.cpp read, and as a Go one,
# which Ollama reads (if the last message is an answer, the model continues it). Lines are joined: no line end is text.
_FILES = (Path(__file__).with_suffix(end) for end in (".jinja", ".tmpl"))
TEMPLATE, GO_TEMPLATE = ("".join(file.read_text(encoding="utf-8").splitlines()) for file in _FILES)
BYTE_TO_CHARACTER = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer.json of a tokenizer, for the `tokenizers` library."""
    is_char, names = tokenizer.name == "char", tokenizer.special
    if tokenizer.rules:  # its own file, and the control tokens that were added since
        content: dict[str, Any] = json.loads(tokenizer.rules.content)
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        new = [{"id": names[name], "content": name, **plain, "special": True} for name in tokenizer.control]
        return content | {"added_tokens": [*content["added_tokens"], *new]}
    apart = set(names.values())
    ids = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size) if token not in apart}
    vocab = {token.decode() if is_char else as_text(token): number for token, number in ids.items()} | names
    as_texts = [(as_text(first), as_text(second)) for first, second in ([] if is_char else merges_of(ids))]
    control = sorted(names, key=names.__getitem__)
    return bpe_json(vocab, as_texts, control, is_bytes=not is_char, pattern=tokenizer.pattern)


def tokenizer_config(tokenizer: Tokenizer, block_size: int) -> dict[str, Any]:
    """Return the tokenizer_config.json: text never becomes a control token, and nothing is cleaned up.

    For a tokenizer with roles, or of a chat model that was imported, it holds the chat template. The template makes one
    text of a conversation, so there names of control tokens in a message become control tokens: a program with messages
    of strangers must look for them.
    """
    names: dict[int | None, str] = {token: name for name, token in tokenizer.special.items()}
    end, template = names.get(tokenizer.eot), {"chat_template": TEMPLATE} if has_roles(tokenizer) else {}
    if imported := tokenizer.template:
        template = {**imported.names, "chat_template": imported.source}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not template,
        "bos_token": names[tokenizer.start[0]] if tokenizer.start else end,
        "eos_token": names.get(end_of_turn(tokenizer)),
        "pad_token": end,
        **template,
        **({"add_bos_token": bool(tokenizer.start)} if tokenizer.rules else {}),
    }


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, with the chat template beside it, unless that is ours."""
    tokenizer = _read_vocabulary(path)
    config, generation = (_json_beside(path, name) for name in ("tokenizer_config.json", "generation_config.json"))
    source, file = config.get("chat_template"), path.with_name("chat_template.jinja")
    source = file.read_text(errors="replace") if file.is_file() else source
    try:
        if isinstance(source, list):  # several, each with its name
            source = {template["name"]: template["template"] for template in source}.get("default")
        if source and source != TEMPLATE:
            words = {key: word for key, word in config.items() if key.endswith("_token") and word}
            names = {key: word["content"] if isinstance(word, dict) else word for key, word in words.items()}
            ends = generation.get("eos_token_id")
            ends = {tokenizer.special.get(names.get("eos_token", "")), *(ends if isinstance(ends, list) else [ends])}
            tokenizer.template = ChatTemplate(source, names, ends - {None})
    except (LookupError, TypeError) as error:
        raise UserFault(f"the settings beside {path} can't be read ({type(error).__name__}: {error})") from None
    return tokenizer


def _json_beside(path: Path, name: str) -> dict[str, Any]:
    beside = path.with_name(name)
    return dict(read_json(beside)) if beside.is_file() else {}


def _read_vocabulary(path: Path) -> Tokenizer:
    """Return one of our tokenizers if the tokens are numbered as in ours, else tokenizer=file.

    An exported chat model's eos_token ends a message; documents end as they did before the export.
    """
    if not path.is_file():
        raise UserFault(f"{path.parent} has no tokenizer.json, so text can't become tokens. Put the model's own there")
    content, named = read_json(path), _json_beside(path, "tokenizer_config.json")
    is_chat = named.get("eos_token") == END and "pad_token" in named
    name, size, control = kind_of_tokenizer(content)
    if name == "char":
        ids = content["model"]["vocab"]
        return Tokenizer(name, [character.encode() for character in sorted(ids, key=ids.__getitem__)])
    whole = read_tokenizer_json(path, named["pad_token"] if is_chat else None)
    if name != "file":
        tokenizer = Tokenizer(name, [whole.token_bytes(token) for token in range(size)], control=control)
        merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in content["model"]["merges"]]
        if name == "gpt2" or merges == tokenizer_json(tokenizer)["model"]["merges"]:
            return tokenizer
    return whole


def as_text(token: bytes) -> str:
    """Return a token as byte-level BPE files write it."""
    return "".join(BYTE_TO_CHARACTER[byte] for byte in token)


def merges_of(ids: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the merges that make these tokens, by rank.

    The two pieces that a token joins are left of its bytes when all tokens of lower rank have been merged.
    """
    merges = []
    for token, rank in sorted(ids.items(), key=itemgetter(1)):
        pieces = [token[place : place + 1] for place in range(len(token))]
        while len(pieces) > 2:
            joined = [ids.get(first + second, rank) for first, second in itertools.pairwise(pieces)]
            best = min(range(len(joined)), key=joined.__getitem__)
            if joined[best] >= rank:
                break
            pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        if len(pieces) > 2:
            raise UserFault("a token is no merge of two others: no tokenizer.json can say that")
        if len(pieces) == 2:
            merges.append((pieces[0], pieces[1]))
    return merges
