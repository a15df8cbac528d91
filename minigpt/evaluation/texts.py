"""Whole texts, from a file or from Python: their tokens in memory, and how well a model predicts them.

The rule is that of val/loss: windows of the model's context length lie side by side, and each token is predicted from
the 1 to block_size tokens before it in its window. A text's first token is only read: nothing stands before it. With a
stride below block_size windows overlap, and each token has at least block_size - stride + 1 tokens before it, except
near the beginning of the text. A model trained with data.mask_documents keeps the documents of a text apart, and the
first token of each is only read.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.readers import read
from minigpt.data.readers.document import File, ReadOptions
from minigpt.data.readers.plain import kind_of_binary
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.files import replaced
from minigpt.model.evaluate import Score, nats_and_right, token_losses, windows_at_once
from minigpt.model.gpt import GPT


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[Iterable[bytes]], progress: Callable[[int], object] = lambda n_bytes: None
) -> TokenSplit:
    """Return documents, each as chunks of bytes, as one text with end-of-text between them.

    Raises:
        UserFault: a character that the tokenizer does not know.
    """
    pieces, counts = list[NDArray[Any]](), Counter[str]()

    def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
        in_word = False
        for chunk in filter(None, chunks):
            yield chunk
            words = len(chunk.split()) - (in_word and not chunk[:1].isspace())  # a word may be cut
            in_word = not chunk[-1:].isspace()
            counts.update(bytes=len(chunk), words=words, lines=chunk.count(b"\n"))
            progress(len(chunk))

    for chunks in documents:
        border = [tokenizer.eot] if pieces and tokenizer.eot is not None else []
        before = [np.array([*border, *tokenizer.start], tokenizer.dtype)]
        for piece in tokenizer.encode_chunks(counted(chunks)):  # none of a record without text
            pieces += [*before, piece]
            before = []
    tokens = np.concatenate([np.zeros(0, tokenizer.dtype), *pieces])
    if len(tokens) < 2:
        raise UserFault(f"the text has {len(tokens)} tokens; at least 2 are needed to predict one")
    # Texts are compared with themselves only: the same tokenizer gives the same tokens.
    return TokenSplit("text", tokenizer, [tokens], counts["bytes"], tokenizer.hash, counts["words"], counts["lines"])


def read_text(path: Path, tokenizer: Tokenizer, options: ReadOptions, progress: Callable[[int], object]) -> TokenSplit:
    """Read a file as `data.source` is read, JSON lines and .gz too.

    `progress` is called with the number of bytes read since the last call.

    Raises:
        UserFault: it can't be read or is no text, or it holds a character that the tokenizer does not know, or too
            few tokens to predict one.
    """
    file = File(path, path.name)
    if kind := kind_of_binary(file, options.encoding):
        raise UserFault(f"{path} is {kind}; wanted text")
    try:
        return encode_documents(tokenizer, (document.chunks for document in read(file, options)), progress)
    except UserFault as fault:
        raise UserFault(str(fault) if str(fault).startswith(str(path)) else f"{path}: {fault}") from None


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text."""

    text: TokenSplit
    nats: NDArray[np.float32]  # of each token but the first
    right: NDArray[np.bool_]  # whether it was the likeliest one
    document_end: int | None  # the token after each document, if documents were kept apart

    @property
    def score(self) -> Score:
        """The sums over the text; bytes are those of the predicted tokens."""
        return Score(float(self.nats.sum(dtype=np.float64)), *self.text.predicted(1, self.document_end))

    def figures(self) -> dict[str, Any]:
        """Return the figures, as JSON. Words are those between white space, and line ends, as wikitext counts them."""
        score, words = self.score, self.text.words + self.text.lines
        return {
            "nats_per_token": score.loss,
            "bits_per_byte": score.bits_per_byte,
            "perplexity": score.perplexity,
            "word_perplexity": math.exp(min(score.nats / words, 700.0)) if words else None,
            "accuracy": float(self.right.sum() / score.tokens),
            "tokens": score.tokens,
            "bytes": score.bytes,
            "words": self.text.words,
            "lines": self.text.lines,
        }


def score_text(
    model: GPT,
    text: TokenSplit,
    *,
    stride: int | None = None,
    document_end: int | None = None,
    progress: Callable[[int], object] = lambda tokens: None,
) -> TextScore:
    """Score a whole text of two tokens or more with a model in fp32.

    Args:
        stride: tokens from a window to the next, block_size at most; None: block_size.
        document_end: the token after each document, if no document is to see another.
        progress: called with the number of tokens predicted since the last call.
    """
    block_size = model.config.block_size
    batch = windows_at_once(block_size, text.tokenizer.vocab_size)
    device = model.token_embedding.weight.device
    pieces = []
    windows: Any = {"block_size": block_size, "batch": batch, "stride": stride, "document_end": document_end}
    for piece in token_losses(model, text, device=device, precision="fp32", measure=nats_and_right, **windows):
        pieces.append(piece.cpu().numpy())
        progress(len(piece))
    losses, right = np.concatenate(pieces).T
    return TextScore(text, losses, right > 0, document_end)


def write_tokens(path: Path, names: Sequence[str], scores: Sequence[TextScore]) -> None:
    """Write a JSON line for each token of some texts, the first included, in order."""
    with replaced(path) as temporary, open(temporary, "x", encoding="utf-8") as file:
        for name, score in zip(names, scores, strict=True):
            tokenizer, place = score.text.tokenizer, 0
            measured = [(None, None), *zip(score.nats.tolist(), score.right.tolist(), strict=True)]
            for skipped in score.text.unpredicted_places(score.document_end).tolist():
                measured[skipped] = (None, None)
            tokens = score.text.tokens(0, len(score.text)).tolist()
            for token, (loss, right) in zip(tokens, measured, strict=True):
                piece = tokenizer.token_bytes(token)
                row = {"file": name, "place": place, "token": token, "text": piece.decode(errors="replace")}
                file.write(json.dumps(row | {"nats": loss, "right": right}, ensure_ascii=False) + "\n")
                place += len(piece)
