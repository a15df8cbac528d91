"""The tokenizers, one file each. A new one is a class of the form of encoder.py and its line here."""

from minigpt.data.tokenizers.bpe import BPEEncoder
from minigpt.data.tokenizers.byte import ByteEncoder
from minigpt.data.tokenizers.char import CharEncoder
from minigpt.data.tokenizers.encoder import Encoder
from minigpt.data.tokenizers.gpt2 import GPT2Encoder

ENCODERS: dict[str, type[Encoder]] = {
    "byte": ByteEncoder,
    "char": CharEncoder,
    "bpe": BPEEncoder,
    "gpt2": GPT2Encoder,
}
