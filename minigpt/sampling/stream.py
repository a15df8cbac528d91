"""Tokens to text as they come: never half a character, never the beginning of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text that can be shown at once.

    A token may hold a part of a character, or a part of a stop string. What could still become either is held
    back until it is decided. All pieces joined are `cut_at_stop(all bytes).decode(errors="replace")`.

    Args:
        stop: strings before which the text ends, each at least one character.
    """

    def __init__(self, stop: Sequence[str] = ()):
        if "" in stop:
            raise ValueError('stop: got an empty string; wanted at least one character in each, e.g. stop=["\\n"]')
        self.stop = [text.encode("utf-8", "surrogateescape") for text in stop]
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = b""
        self.stopped = False

    def feed(self, data: bytes) -> str:
        """Take one token's bytes; the text that is now certain. Nothing more comes after a stop string."""
        if self.stopped:
            return ""
        self.held += data
        kept = cut_at_stop(self.held, self.stop)
        if len(kept) < len(self.held):
            self.stopped, self.held = True, b""
            return self.decoder.decode(kept, final=True)
        certain = len(self.held) - self.undecided()
        text = self.decoder.decode(self.held[:certain])
        self.held = self.held[certain:]
        return text

    def undecided(self) -> int:
        """Bytes at the end that could be the beginning of a stop string: the most that fit."""
        for length in range(min(len(self.held), max(map(len, self.stop), default=1) - 1), 0, -1):
            if any(stop.startswith(self.held[-length:]) for stop in self.stop):
                return length
        return 0

    def finish(self) -> str:
        """No more tokens: what was held back."""
        if self.stopped:
            return ""
        self.stopped, held = True, self.held
        return self.decoder.decode(held, final=True)


def cut_at_stop(data: bytes, stop: Sequence[bytes]) -> bytes:
    """The bytes before the stop string that is completed first (of those completed together, the longest).

    That is the one a reader of single bytes would notice first, so the cut does not depend on how the text
    happens to be divided into tokens.
    """
    found = [(at + len(text), at) for text in stop if (at := data.find(text)) >= 0]
    return data[: min(found)[1]] if found else data
