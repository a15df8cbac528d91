"""The tokenizers. A new one is a `Scheme` (scheme.py) and its line here."""

from minigpt.data.tokenizers.bpe import BPE, GPT2
from minigpt.data.tokenizers.file import FILE
from minigpt.data.tokenizers.scheme import Scheme
from minigpt.data.tokenizers.simple import BYTE, CHAR

TOKENIZERS: dict[str, Scheme] = {"byte": BYTE, "char": CHAR, "bpe": BPE, "gpt2": GPT2, "file": FILE}
