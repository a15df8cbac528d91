"""Turns tokens into text as they come, without showing half a character or the beginning of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text that can be shown immediately.

    A token may end inside a character or a stop string. Bytes that could still become either are held back until it is
    decided. At the end `text` is `cut_at_stop(all bytes).decode(errors="replace")`.

    Args:
        stop: strings before which the text ends, each at least one character.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self.stop = [text.encode("utf-8", "surrogateescape") for text in stop]
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = b""
        self.stopped = False
        self.text = ""

    def feed(self, data: bytes) -> str:
        """Take one token's bytes; return the text that is now certain. After a stop string, call `finish`."""
        self.held += data
        kept = cut_at_stop(self.held, self.stop)
        self.stopped, self.held = len(kept) < len(self.held), kept
        return self._release(len(kept) - self.undecided())

    def undecided(self) -> int:
        """Return how many bytes at the end could be the beginning of a stop string: the most that fit."""
        ends = (self.held[start:] for start in range(len(self.held)))  # the longest first
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stop)), 0)

    def finish(self) -> str:
        """Return what was held back: no more tokens come."""
        return self._release(len(self.held), final=True)

    def _release(self, size: int, *, final: bool = False) -> str:
        piece = self.decoder.decode(self.held[:size], final)
        self.held = self.held[size:]
        self.text += piece
        return piece


def cut_at_stop(data: bytes, stop: Sequence[bytes]) -> bytes:
    """Return the bytes before the stop string that is completed first (of those completed together, the longest).

    That is the one found first when reading byte by byte, so the cut does not depend on how the text happens to be
    divided into tokens.
    """
    places = [(begin + len(text), begin) for text in stop if (begin := data.find(text)) >= 0]
    return data[: min(places)[1]] if places else data
