"""The tokenizers, one file each. A new one is a `Scheme` (scheme.py) in a file of its own and its line here."""

from minigpt.data.tokenizers.bpe import BPE
from minigpt.data.tokenizers.byte import BYTE
from minigpt.data.tokenizers.char import CHAR
from minigpt.data.tokenizers.file import FILE
from minigpt.data.tokenizers.gpt2 import GPT2
from minigpt.data.tokenizers.scheme import Scheme

TOKENIZERS: dict[str, Scheme] = {"byte": BYTE, "char": CHAR, "bpe": BPE, "gpt2": GPT2, "file": FILE}
