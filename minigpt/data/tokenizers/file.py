"""tokenizer=file: the byte-level BPE of a tokenizer.json, Hugging Face's format, with its pattern and special tokens.

The file is data: nothing in it is run. A file that would give other tokens here than with Hugging Face's library is
refused, with the reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

from minigpt.config.convert import shown
from minigpt.config.foreign import MAX_CONFIG, MAX_TOKENIZER
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE, PATTERN, BPEEncoder
from minigpt.data.tokenizers.scheme import END_OF_TEXT, GPT2_BORDER, NO_SPACE, RUN_BYTES, Scheme
from minigpt.faults import UserFault
from minigpt.files import read_json

MAX_TOKENS, MAX_TOKEN_BYTES, MAX_NAMES = 1 << 21, 512, 10_000
EOT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>")  # looked for if no tokenizer_config.json names the token

# GPT-2's pattern after each digit was taken out (SmolLM, StarCoder): text ends before a digit.
_DIGITS = PATTERN.replace(r" ?\p{N}++", r"\p{N}").replace(r"\s+(?!\S)", r"\s+(?![^\s\p{N}])")
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACE  # and GPT-4's
_QWEN2 = _LLAMA3.replace("{1,3}", "")  # 2, 2.5 and 3
_QWEN3_5 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACE
_TEKKEN = (  # Mistral's
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACE
)
_O200K = (  # GPT-4o's
    _TEKKEN.replace(r"\p{M}]+|", rf"\p{{M}}]+{_SUFFIX}?|")
    .replace(r"\p{M}]*|", rf"\p{{M}}]*{_SUFFIX}?|")
    .replace(r"|\p{N}|", r"|\p{N}{1,3}|")
)
_CL100K = (  # GPT-4's as tiktoken had it; today's has {1,3}+, which is another expression to the tokenizers library
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_NANOCHAT = _CL100K.replace("{1,3}", "{1,2}")
# GPT-4's and its relatives': punctuation takes the newlines behind it along, but no piece goes on from anything else
# than white space into a blank or tab, nor from a newline into what is neither white space nor a slash.
_GPT4_BORDER = re.compile(
    rb"(?s).*(?:" + NO_SPACE + rb"(?=[ \t])|[\r\n](?=[0-9A-Za-z\xc3-\xe0\xe4-\xf4]|\xe3[\x81-\xbf]))"
)

# Pattern -> where its text may be cut. A stranger's expression can take hours for a line, so only these are run.
PATTERNS = {PATTERN: GPT2_BORDER, _DIGITS: GPT2_BORDER} | dict.fromkeys(
    [_LLAMA3, _QWEN2, _QWEN3_5, _CL100K, _NANOCHAT, _O200K, _TEKKEN], _GPT4_BORDER
)


@dataclass(frozen=True)
class Rules:
    """What a file's tokenizer has besides the bytes of its tokens. A checkpoint's tokenizer.json holds these fields.

    Attributes:
        pattern: the regular expression that splits text into words; one of PATTERNS.
        eot: the end-of-text token; one of the control tokens.
        special: control tokens, name -> token. A text never becomes one unless that is asked for.
        added: words that are tokens of their own wherever they stand in a text, word -> token.
        nfc: text is brought into Unicode's form NFC first, so its bytes are not kept exactly.
    """

    pattern: str
    eot: int
    special: dict[str, int]
    added: dict[str, int]
    nfc: bool


def file_encoder(tokens: Sequence[bytes], rules: Rules) -> BPEEncoder:
    """Make the encoder; `tokens[i]` are the bytes of token i, none for a control token or an unused number.

    Raises:
        ValueError: a pattern that is not known, or rules that don't fit the tokens.
    """
    if rules.pattern not in PATTERNS:
        raise ValueError(
            f"it splits text by a pattern that is none of the {len(PATTERNS)} known ones (of GPT-2, GPT-4, GPT-4o, "
            f"Llama 3, Qwen, Mistral ...): {shown(rules.pattern)}. A regular expression can take hours for a line; one "
            "that you trust is a line in PATTERNS of minigpt/data/tokenizers/file.py"
        )
    if len(rules.special) + len(rules.added) > MAX_NAMES:
        raise ValueError(f"it has more than {MAX_NAMES:,} special and added tokens")
    for name, token in chain(rules.special.items(), rules.added.items()):
        whole = b"" if name in rules.special else name.encode()
        if type(token) is not int or token not in range(len(tokens)) or tokens[token] != whole:
            raise ValueError(f"its token {shown(token)} can't be {shown(name)}")
    if rules.eot not in rules.special.values():
        raise ValueError(f"its end-of-text {shown(rules.eot)} is no control token")
    added = set(rules.added.values())
    ranks = {token: rank for rank, token in enumerate(tokens) if token and rank not in added}
    if len(ranks) + len(added) + tokens.count(b"") != len(tokens):
        raise ValueError("a token appears twice")
    ranks = {token: rank for rank, token in enumerate(tokens) if len(token) == 1} | ranks  # added or not
    border, limit = PATTERNS[rules.pattern], 4 * RUN_BYTES  # fewer texts without a place to cut at
    return BPEEncoder(ranks, rules.pattern, border=border, limit=limit, added=rules.added, nfc=rules.nfc)


def read_vocabulary(path: Path, eot: str | None = None) -> tuple[list[bytes], Rules]:
    """Read a tokenizer.json.

    Args:
        path: the file. A tokenizer_config.json beside it may name the end-of-text token.
        eot: the name of the end-of-text token, if it should be another one, or if none is named there.

    Returns:
        The bytes of each token, and the rules.

    Raises:
        UserFault: it can't be read, or holds something that would give other tokens here; the sentence names it.
    """
    content = read_json(path, MAX_TOKENIZER)
    config = path.with_name("tokenizer_config.json")
    try:
        if eot is None and config.is_file():
            named = read_json(config, MAX_CONFIG).get("eos_token")
            eot = named["content"] if isinstance(named, dict) else named
        return _vocabulary(content, eot)
    except (LookupError, TypeError, AttributeError) as error:
        raise UserFault(
            f"{path} is not a tokenizer.json in Hugging Face's format ({type(error).__name__}: {shown(str(error))})"
        ) from None
    except ValueError as fault:
        raise UserFault(f"{path} can't be used: {fault}") from None


def _vocabulary(content: dict[str, Any], eot: str | None) -> tuple[list[bytes], Rules]:
    model = content["model"]
    pattern, nfc = _pattern(content["pre_tokenizer"], model), _is_nfc(content["normalizer"])
    special = {token["content"]: token["id"] for token in content["added_tokens"] if token["special"]}
    others = {token["content"]: token for token in content["added_tokens"] if not token["special"]}
    eot = eot or next((name for name in EOT_NAMES if name in special or name in others), None)
    if eot not in special and eot not in others:
        wrong = "nothing says which token ends a text" if eot is None else f"{shown(eot)} is none of its added tokens"
        there = ", ".join([*special, *others][:12]) or "none"
        raise ValueError(f"{wrong}. Name one of them with tokenizer.eot=TOKEN; it has {there}")
    if eot in others:
        special[eot] = others.pop(eot)["id"]
    for name, token in others.items():
        if not re.fullmatch(r"\S+|\s+", name) or token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise ValueError(f"its added token {shown(name)} depends on the text around it, which is not done here")
        if nfc and token["normalized"] and name.strip(" \t\r\n"):
            raise ValueError(
                f"its added token {shown(name)} is looked for in Unicode's form NFC, which is not done here"
            )
    added = {name: token["id"] for name, token in others.items()}
    names = special | added
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    made = {left + right for left, right in merges} | CHARACTER_TO_BYTE.keys()
    twice = {name: id for name, id in model["vocab"].items() if name in names and name in made}  # merged, and added
    if bad := [name for name, id in twice.items() if name in special or id != added[name]]:
        raise ValueError(f"its added token {shown(bad[0])} is also what merges make of a text, which is not done here")
    ids = {_bytes(text): id for text, id in model["vocab"].items() if text not in names}
    numbers = [*ids.values(), *names.values()]
    if any(type(id) is not int or not 0 <= id < MAX_TOKENS for id in numbers) or len({*numbers}) != len(numbers):
        raise ValueError(f"its tokens don't all have different numbers below {MAX_TOKENS:,}")
    if max(map(len, ids)) > MAX_TOKEN_BYTES:
        raise ValueError(f"it has a token of more than {MAX_TOKEN_BYTES} bytes")
    in_bytes = [tuple(map(_bytes, pair)) for pair in merges]
    whole = model.get("ignore_merges", False)
    _check_merges(ids | {_bytes(text): id for text, id in twice.items()}, in_bytes, whole=whole)
    tokens = [b""] * (max(numbers) + 1)
    for token, id in ids.items():
        tokens[id] = token
    for word, id in added.items():
        tokens[id] = word.encode()
    return tokens, Rules(pattern, names[eot], special, added, nfc)


def _bytes(text: str) -> bytes:
    return bytes(CHARACTER_TO_BYTE[character] for character in text)


def _pattern(pre_tokenizer: dict[str, Any] | None, model: dict[str, Any]) -> str:
    """Return the split pattern that does what the pre-tokenizer does.

    Raises:
        ValueError: it is no byte-level BPE, or does more than splitting.
    """
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {"type": "none"}])
    kinds = [step["type"] for step in steps]
    if model["type"] != "BPE" or model.get("byte_fallback") or kinds[-1:] != ["ByteLevel"]:
        raise ValueError(
            f"it is no byte-level BPE but a {shown(model['type'])} with the pre-tokenizer {shown(' + '.join(kinds))}: "
            "SentencePiece, Unigram, WordPiece and BPE of characters can't be used. Wanted one like GPT-2's, Llama 3's"
        )
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ValueError(f"its {name}={shown(model[name])} changes tokens, and is not done here")
    if steps[-1]["add_prefix_space"]:
        raise ValueError("its add_prefix_space=true puts a blank before each text, which is not done here")
    by_words = steps[-1].get("use_regex", True)
    if kinds == ["ByteLevel"] and (by_words or not (model["merges"] or model.get("ignore_merges"))):
        return PATTERN  # without merges, words are all the same
    if kinds == ["Digits", "ByteLevel"] and by_words and steps[0]["individual_digits"]:
        return _DIGITS
    if kinds == ["Split", "ByteLevel"] and not by_words:
        how = steps[0]["behavior"], steps[0]["invert"]
        if how in (("Isolated", False), ("Removed", True)) and "Regex" in steps[0]["pattern"]:
            return str(steps[0]["pattern"]["Regex"])
    raise ValueError(f"its pre-tokenizer {shown(' + '.join(kinds))} with these options is not known")


def _is_nfc(normalizer: dict[str, Any] | None) -> bool:
    """Return whether text is brought into NFC.

    Raises:
        ValueError: text is changed in another way.
    """
    steps = (normalizer or {"normalizers": []}).get("normalizers", [normalizer])
    kinds = {step["type"] for step in steps}
    if kinds - {"NFC"}:
        raise ValueError(f"its normalizer {shown(' + '.join(kinds))} changes text, and only NFC is done here")
    return bool(kinds)


def _check_merges(ids: dict[bytes, int], merges: list[tuple[bytes, ...]], *, whole: bool) -> None:
    """Check that merging by the tokens' numbers, as tiktoken does, gives what these merges give.

    What merges to a token in a longer text went through the same steps as the token's own bytes alone, for no step
    crossed its ends. So the last pair of those bytes is the only one that is ever merged to the token; the merges
    must have it, and in the place that the token's number says.

    Args:
        ids: the number of each token, special and added ones aside.
        merges: the pairs, in their order.
        whole: a word that is a token needs no merges (ignore_merges).

    Raises:
        ValueError: for some token it does not, or tokens and merges don't fit each other.
    """
    place: dict[bytes, int] = {}
    pairs: dict[tuple[bytes, ...], int] = {}
    for number, (token, group) in enumerate(groupby(merges, b"".join)):
        place.setdefault(token, number)
        pairs |= dict.fromkeys(group, number)
    if [*place] != sorted(place, key=ids.__getitem__):
        raise ValueError("its tokens are not numbered in the order of its merges (as RoBERTa's), which tiktoken needs")
    for token in ids:
        pair = _last_pair(token, ids)
        if len(token) > 1 and (pairs.get(pair, -1) != place.get(token) if pair else not whole):
            raise ValueError(f"its token {shown(token)} comes about in another way than its merges say")


def _last_pair(token: bytes, ids: dict[bytes, int]) -> tuple[bytes, ...] | None:
    """Return the two parts that a token's bytes merge to before they become the token; None if they don't."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        numbers = [ids.get(left + right, MAX_TOKENS) for left, right in pairwise(parts)]
        least = min(numbers)
        if least == MAX_TOKENS:
            return None
        at = numbers.index(least)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts)


FILE = Scheme(file_encoder, vocabulary=lambda vocab_size, alphabet, train: [])
