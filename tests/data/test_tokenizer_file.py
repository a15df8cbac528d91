"""tokenizer=file: the ids of the `tokenizers` library, for every pattern that is known, and what is refused by name."""

import copy
import json
import random
import re
import unicodedata
from functools import cache
from itertools import accumulate, pairwise, product
from pathlib import Path

import numpy as np
import pytest
import regex
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from minigpt.config.compose import compose
from minigpt.config.schema import DataConfig, SampleConfig, TokenizerConfig
from minigpt.data.prepared import describe
from minigpt.data.preparing.prepare import prepare
from minigpt.data.tokenizer import Tokenizer, load_tokenizer, read_tokenizer_json
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE, grouped
from minigpt.data.tokenizers.file import _LLAMA3, _QWEN2, PATTERNS
from minigpt.data.tokenizers.scheme import END_OF_TEXT, runs
from minigpt.faults import UserFault
from minigpt.files import read_json, write_json
from minigpt.sampling.sample import sample

SENTENCE = "It's 12 o'clock, WE'LL see: naïve 中文。\n中文、 words  go\n\n  on — «we’ll» see…\t🙂 3.14159/2718\r\n"
PIECES = [
    *"aZéßñcd019 .,!?'/-_(){}\"«—…\n\r\t¼²٣Ⅷ中文。、　한국어ไทยकि\u0301\u0308\u00a0\u2003\u3000🙂👩‍💻ſK",
    *["'s", "'LL", "'re", " the", "ing", "    ", "\n\n", "\r\n", "!\n", "e\u0301", "\u1100\u1161", "Å", "..."],
    *[
        "123456",
        "//\n",
        " \n ",
        "<think>",
        "</think>",
        "<thin",
        "  ",
        "<|im_end|>",
        END_OF_TEXT,
        "HTTPServer",
        "iPhone's",
    ],
]


@cache
def fuzz(count: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return ["".join(dice.choices(PIECES, k=dice.randrange(30))) for _ in range(count)]


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def theirs(pre_tokenizer: pre_tokenizers.PreTokenizer, *, nfc: bool = False, ignore_merges: bool = False):
    """A tokenizer of that library, learned from a little text, with control tokens and added words."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoders.ByteLevel()
    if nfc:
        made.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=[*CHARACTER_TO_BYTE], show_progress=False)
    made.train_from_iterator([SENTENCE * 3, *fuzz(500, seed=5)], trainer)
    made.add_special_tokens([END_OF_TEXT, "<|im_end|>"])
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    made.encode_special_tokens = True  # control tokens in a text are text, as here
    return made


def read(made: tokenizers.Tokenizer, folder: Path, **changes: object) -> Tokenizer:
    made.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer.json", read_json(folder / "tokenizer.json") | changes)
    return read_tokenizer_json(folder / "tokenizer.json")


@cache
def content() -> dict:
    return json.loads(theirs(split_by(_LLAMA3)).to_str())


PRE_TOKENIZERS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
} | {f"pattern {number}": split_by(pattern) for number, pattern in enumerate([*PATTERNS][2:])}


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_ids_are_those_of_the_tokenizers_library(kind: str, tmp_path, monkeypatch):
    """10,000 strings and more in all, and a text with many places to cut at."""
    made = theirs(PRE_TOKENIZERS[kind])
    monkeypatch.setattr("minigpt.data.tokenizers.file.RUN_BYTES", 256)  # 65536, but for a text with many cuts
    tokenizer = read(made, tmp_path)
    texts = fuzz(1200, seed=7)
    for text in texts:
        assert tokenizer.encode(text) == made.encode(text).ids, repr(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    long = "".join(texts)
    assert len([*tokenizer._encoder.runs([long.encode()])]) > 40
    assert tokenizer.encode(long) == made.encode(long).ids


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_ids_with_a_normalizer_and_whole_words(ignore_merges: bool, tmp_path):
    made = theirs(split_by(_QWEN2), nfc=True, ignore_merges=ignore_merges)
    tokenizer = read(made, tmp_path)
    for text in fuzz(2000):
        assert tokenizer.encode(text) == made.encode(text).ids, repr(text)
        assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
    assert (
        tokenizer.decode_bytes(tokenizer.encode_bytes(b"e\xcc\x81 \xff e\xcc\x81"))
        == "é".encode() + b" \xff " + "é".encode()
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_grouped_pattern_splits_every_text_alike(pattern: str):
    """What tiktoken is given (`grouped`); that its engine agrees is what the ids above say."""
    texts = [*fuzz(1000, seed=9), *map("".join, product("as1 \n.'", repeat=4))]
    assert [regex.findall(grouped(pattern), text) for text in texts] == [regex.findall(pattern, text) for text in texts]
    words = grouped(pattern).partition(r")|\s+(?!")[0]
    assert not re.search(r"\?[!=<]|[+?*]\+", words)  # or its engine would go step by step: half as fast


@pytest.mark.parametrize("pattern", PATTERNS)
def test_text_is_cut_only_where_the_pattern_begins_anew(pattern: str):
    """Cut where a run may end, a text has the pieces that it has whole."""
    border, cuts = PATTERNS[pattern], 0
    for data in map(str.encode, fuzz(3000, seed=3)):
        ends = list(accumulate(map(len, runs([data], 20, border))))[:-1]
        free = [end for end in ends if (found := border.match(data, 0, end + 2)) and found.end() == end]  # not forced
        cuts += len(free)
        parts = [data[start:end].decode() for start, end in pairwise([0, *free, len(data)])]
        pieces = [piece for part in parts for piece in regex.findall(pattern, part)]
        assert pieces == regex.findall(pattern, data.decode()), data
    assert cuts > 1500


def test_added_words_are_found_and_control_tokens_are_text_unless_asked_for(tmp_path):
    made = theirs(split_by(_LLAMA3))
    tokenizer = read(made, tmp_path)
    text = f"a <think>b</think>{END_OF_TEXT}<|im_end|>"
    think, end = (made.token_to_id(name) for name in ("<think>", "<|im_end|>"))
    tokens = tokenizer.encode(text)
    assert (tokens.count(think), tokens.count(end), tokens.count(tokenizer.eot)) == (1, 0, 0)
    assert tokenizer.decode(tokens) == text
    made.encode_special_tokens = False
    asked = tokenizer.encode(text, allow_special=True)
    assert asked == made.encode(text).ids
    assert asked[-2:] == [tokenizer.eot, end]
    assert tokenizer.decode(asked) == "a <think>b</think>"


def test_whole_blanks_are_added_words_as_gpt_neox_has_them(tmp_path):
    made = theirs(pre_tokenizers.ByteLevel(add_prefix_space=False), nfc=True)
    made.add_tokens([AddedToken(" " * size) for size in (4, 3, 2)])
    tokenizer = read(made, tmp_path)
    for text in fuzz(1000):
        assert tokenizer.encode(text) == made.encode(text).ids, repr(text)


def test_added_words_are_taken_out_before_text_is_brought_into_nfc(tmp_path):
    made = theirs(split_by(_QWEN2), nfc=True)
    tokenizer = read(made, tmp_path)
    for text in ("<think>\u0338 a", "e<think>\u0301</think>\u0338", "<think\u0338> e\u0301"):
        assert tokenizer.encode(text) == made.encode(text).ids, repr(text)
    file = copy.deepcopy(json.loads(made.to_str()))
    file["added_tokens"][-1]["normalized"] = True
    write_json(tmp_path / "tokenizer.json", file)
    with pytest.raises(UserFault, match="added token '</think>' is looked for in Unicode's form NFC"):
        read_tokenizer_json(tmp_path / "tokenizer.json")


def test_an_added_word_may_be_a_merged_token_too(tmp_path):
    made = theirs(split_by(_LLAMA3))
    merged = [name for name in made.get_vocab() if name.isascii() and name.isalpha()]
    made.add_tokens([AddedToken(name, normalized=False) for name in (*sorted(merged, key=len)[-3:], "th", "//", "a")])
    tokenizer = read(made, tmp_path)
    for text in (SENTENCE, *fuzz(500), *merged):
        assert tokenizer.encode(text) == made.encode(text).ids, repr(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    file = json.loads(made.to_str())
    next(token for token in file["added_tokens"] if token["content"] == "th")["special"] = True
    write_json(tmp_path / "tokenizer.json", file)
    with pytest.raises(UserFault, match="'th' is also what merges make of a text"):
        read_tokenizer_json(tmp_path / "tokenizer.json")


def test_numbers_need_not_begin_at_0_nor_be_without_gaps(tmp_path):
    """Mistral's begin with the control tokens, Qwen's have a gap at the end."""
    content_ = copy.deepcopy(content())
    content_["model"]["vocab"] = {text: number + 1000 for text, number in content_["model"]["vocab"].items()}
    for token in content_["added_tokens"]:
        token["id"] += 70_000 if token["special"] else 1000
    write_json(tmp_path / "tokenizer.json", content_)
    tokenizer = read_tokenizer_json(tmp_path / "tokenizer.json")
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    made.encode_special_tokens = True
    assert (tokenizer.vocab_size, tokenizer.dtype) == (tokenizer.special["<|im_end|>"] + 1, np.uint32)
    assert tokenizer.encode(SENTENCE) == made.encode(SENTENCE).ids
    assert tokenizer.token_bytes(5) == tokenizer.token_bytes(69_000) == b""


@pytest.mark.parametrize(
    ("eot", "config", "wanted"),
    [
        (None, None, END_OF_TEXT),
        (None, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        (None, {"eos_token": {"content": "<|im_end|>"}}, "<|im_end|>"),
        (None, {"eos_token": None}, END_OF_TEXT),
        ("</think>", {"eos_token": "<|im_end|>"}, "</think>"),
    ],
)
def test_end_of_text_is_named_by_a_setting_or_the_files(eot, config, wanted, tmp_path):
    write_json(tmp_path / "tokenizer.json", content())
    if config is not None:
        write_json(tmp_path / "tokenizer_config.json", config)
    tokenizer = read_tokenizer_json(tmp_path / "tokenizer.json", eot)
    assert tokenizer.eot == tokenizer.special[wanted]
    assert tokenizer.eot not in tokenizer.encode(f"a {wanted} b")


def test_it_survives_its_file_and_the_checkpoints(tmp_path):
    tokenizer = read(theirs(split_by(_QWEN2), nfc=True), tmp_path)
    write_json(tmp_path / "ours.json", tokenizer.to_json())
    twin = load_tokenizer(read_json(tmp_path / "ours.json"))
    assert (twin.hash, twin.eot, twin.special, twin.rules) == (
        tokenizer.hash, tokenizer.eot, tokenizer.special, tokenizer.rules,
    )  # fmt: skip
    assert [twin.encode(text) for text in fuzz(50)] == [tokenizer.encode(text) for text in fuzz(50)]


def _model(**changes):
    return lambda file: file | {"model": file["model"] | changes}


def _step(number: int, **changes):
    def change(file):
        file["pre_tokenizer"]["pretokenizers"][number] |= changes
        return file

    return change


def _merges(change):
    return lambda file: file | {"model": file["model"] | {"merges": change(file["model"]["merges"])}}


def _other_split(file):
    """One token's merge names two other parts of it, which are tokens as well."""
    merges, vocab = file["model"]["merges"], file["model"]["vocab"]
    for place, (left, right) in enumerate(merges):
        whole = left + right
        for cut in range(1, len(whole)):
            if cut != len(left) and whole[:cut] in vocab and whole[cut:] in vocab:
                merges[place] = [whole[:cut], whole[cut:]]
                return file
    raise AssertionError("no such token")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda file: [file], "not a tokenizer.json in Hugging Face's format"),
        (lambda file: {"version": "1.0"}, "not a tokenizer.json in Hugging Face's format"),
        (lambda file: file | {"added_tokens": 5}, "not a tokenizer.json in Hugging Face's format"),
        (_model(type="Unigram"), "no byte-level BPE but a 'Unigram'"),
        (_model(type="WordPiece"), "no byte-level BPE but a 'WordPiece'"),
        (_model(byte_fallback=True), "SentencePiece, Unigram, WordPiece and BPE of characters can't be used"),
        (_model(dropout=0.1), "dropout=0.1"),
        (_model(end_of_word_suffix="</w>"), "end_of_word_suffix='</w>'"),
        (_model(vocab={"a": 2**40}), "below 2,097,152"),
        (_model(vocab={"a": "b"}), "different numbers"),
        (_model(vocab={"a": 700, "b": 700}), "different numbers"),
        (_model(merges=[]), "comes about in another way than its merges say"),
        (_merges(lambda merges: merges[::-1]), "not numbered in the order of its merges"),
        (_merges(lambda merges: [*merges[1:], merges[0]]), "not numbered in the order of its merges"),
        (_other_split, "comes about in another way than its merges say"),
        (_merges(lambda merges: merges[:-1]), "comes about in another way than its merges say"),
        (lambda file: file | {"pre_tokenizer": None}, "with the pre-tokenizer 'none'"),
        (lambda file: file | {"pre_tokenizer": {"type": "Metaspace"}}, "with the pre-tokenizer 'Metaspace'"),
        (_step(0, type="Punctuation"), "pre-tokenizer 'Punctuation + ByteLevel' with these options is not known"),
        (_step(0, behavior="MergedWithPrevious"), "'Split + ByteLevel' with these options"),
        (_step(0, pattern={"String": " "}), "'Split + ByteLevel' with these options"),
        (_step(0, pattern={"Regex": "(a+)+$"}), "none of the 9 known ones .*'(a+)+$'"),
        (_step(1, add_prefix_space=True), "add_prefix_space=true"),
        (_step(1, use_regex=True), "'Split + ByteLevel' with these options"),
        (lambda file: file | {"normalizer": {"type": "Lowercase"}}, "normalizer 'Lowercase'"),
        (lambda file: file | {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}, "'NFKC'"),
        (lambda file: file | {"added_tokens": file["added_tokens"][1:]}, "nothing says which token ends a text"),
    ],
)  # fmt: skip
def test_what_would_give_other_tokens_is_refused_by_name(change, sentence: str, tmp_path):
    write_json(tmp_path / "tokenizer.json", change(copy.deepcopy(content())))
    with pytest.raises(UserFault, match=re.escape(sentence).replace(r"\.\*", ".*")) as fault:
        read_tokenizer_json(tmp_path / "tokenizer.json")
    assert str(tmp_path / "tokenizer.json") in str(fault.value)


def test_prepare_uses_it_in_32_bits_and_tells_the_files_apart(tmp_path):
    (tmp_path / "text").mkdir()
    for name in ("a", "b"):
        (tmp_path / "text" / name).write_text("".join(fuzz(200, seed=9)))
    file = content() | {"normalizer": {"type": "NFC"}}
    file["added_tokens"] = [*file["added_tokens"][:1], file["added_tokens"][1] | {"id": 80_000}]
    write_json(tmp_path / "tokenizer.json", file)
    data = DataConfig(name="text", source=str(tmp_path / "text"), dir=str(tmp_path / "data"))
    config = TokenizerConfig(name="file", file=str(tmp_path / "tokenizer.json"))
    prepared = prepare(data, config, say=str)
    assert prepared.tokenizer.vocab_size == 80_001
    assert prepared.train.tokens(0, 9).dtype == np.uint32
    assert prepared.train.tokens(0, 99_999).tolist().count(prepared.tokenizer.eot) == 1
    assert "form NFC" in "\n".join(describe(prepared))
    (tmp_path / "tokenizer.json").rename(tmp_path / "moved.json")
    moved = TokenizerConfig(name="file", file=str(tmp_path / "moved.json"))
    assert prepare(data, moved, say=str).folder == prepared.folder
    other = TokenizerConfig(name="file", file=str(tmp_path / "moved.json"), eot="<|im_end|>")
    assert prepare(data, other, say=str).folder != prepared.folder
    with pytest.raises(UserFault, match=r"Add tokenizer\.file=PATH"):
        prepare(data, TokenizerConfig(name="file"), say=str)


def test_a_run_trains_continues_and_gives_its_tokenizer_on(run, tmp_path, capsys):
    write_json(tmp_path / "tokenizer.json", content())
    mine = run("tokenizer=file", f"tokenizer.file={tmp_path / 'tokenizer.json'}", "trainer.max_steps=2")
    (tmp_path / "tokenizer.json").rename(tmp_path / "moved.json")
    run("tokenizer=file", f"tokenizer.file={tmp_path / 'moved.json'}", "trainer.max_steps=3")
    assert run.rows()[-1]["step"] == 3
    (tmp_path / "moved.json").unlink()
    assert sample(SampleConfig(checkpoint=str(mine), max_new_tokens=3, device="cpu")) == 0
    assert f"starts from {END_OF_TEXT}" in "".join(capsys.readouterr())
    run(f"init.from={mine}", "tokenizer=file", "trainer.max_steps=2", f"run.dir={tmp_path / 'next'}")
    tokenizers_ = [next(path.glob("checkpoints/*/tokenizer.json")).read_bytes() for path in (mine, tmp_path / "next")]
    assert tokenizers_[0] == tokenizers_[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["tokenizer.file=x.json"],
            "tokenizer=bpe would ignore tokenizer.file='x.json'. To use it, add tokenizer=file.",
        ),
        (["tokenizer.eot=x"], "tokenizer=bpe would ignore tokenizer.eot='x'"),
        (["tokenizer=file", "tokenizer.file=x.json"], "tokenizer.file='x.json' is not a file"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(words, sentence):
    with pytest.raises(UserFault, match=re.escape(sentence)):
        compose("prepare", words)
