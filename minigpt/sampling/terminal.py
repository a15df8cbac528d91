"""Where sampling prints: the model's text to stdout, words of our own to stderr."""

import sys

# An untrained model writes any byte, and some would move the cursor or rename the window. On a terminal they
# are shown as pictures (U+2400 ...); tabs and newlines are left.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def show(text: str) -> None:
    """Print text of the model at once, as it is where it goes to a file, harmless where it goes to a terminal."""
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))  # a terminal without é gets a ?
    sys.stdout.flush()


def say(text: str) -> None:
    """Tell the user something that is not the model's text."""
    print(text, file=sys.stderr, flush=True)
