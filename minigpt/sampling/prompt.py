"""What a text begins with: a prompt's tokens, or a token to start from when the prompt is empty."""

from minigpt.data.tokenizer import END_OF_TEXT, Tokenizer
from minigpt.faults import UserFault


def encode_prompt(tokenizer: Tokenizer, prompt: str | bytes, *, allow_special: bool = False) -> list[int]:
    """A prompt as tokens; at least one.

    Args:
        tokenizer: the model's.
        prompt: text, or a file's bytes, which need not be UTF-8 where the tokenizer takes any bytes.
        allow_special: let `<|endoftext|>` become the control token. Otherwise it is text like any other.

    Returns:
        Its tokens; the one of `start_token` if it is empty.

    Raises:
        UserFault: not text where text is needed, or a character the tokenizer does not know.
    """
    if not prompt:
        return [start_token(tokenizer)[0]]
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, allow_special=allow_special)
    if not allow_special:
        return tokenizer.encode_bytes(prompt).tolist()
    try:
        return tokenizer.encode(prompt.decode(), allow_special=True)
    except UnicodeDecodeError as error:
        raise UserFault(
            f"the prompt is not UTF-8 text, which allow_special=true needs: byte {prompt[error.start]:#04x} at offset "
            f"{error.start}. Leave allow_special out (then any bytes will do), or save the file as UTF-8"
        ) from None


def start_token(tokenizer: Tokenizer) -> tuple[int, str]:
    """Where a text without a prompt starts: end-of-text, else a newline, else token 0. Token and name."""
    if tokenizer.eot is not None:
        return tokenizer.eot, END_OF_TEXT
    try:
        return tokenizer.encode("\n")[0], "a newline"
    except UserFault:  # the alphabet has none
        return 0, f"{tokenizer.decode([0])!r}, the first character of its alphabet"
