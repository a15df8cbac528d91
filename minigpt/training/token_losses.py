"""The loss of each token of some validation text, by a run's best model: measured once, for its report."""

import math
from collections.abc import Mapping

import numpy as np

from minigpt.checkpoint import folder, load
from minigpt.data.batch import document_end
from minigpt.data.chat.packing import Split
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import pieces
from minigpt.evaluation.texts import score_text
from minigpt.model.counting import flops_per_token
from minigpt.training.state import TrainingJob

MOST_TOKENS, SHOWN_TOKENS = 1 << 13, 600
CPU_FLOPS, GPU_FLOPS = 2.5e10, 5e12  # that all passes may take: about a second
MOST_SECONDS = 20  # for one window; a larger model is not measured


def keep_token_losses(job: TrainingJob) -> None:
    """Write tokens.json: the loss of tokens from the beginning of the validation text, and the mean by place.

    It holds step, of (which source of a mixture), tokens (text and nats; None: not predicted) and positions (first,
    last, nats, error). There is none of conversations, and of a model too large for a few seconds.
    """
    config, tokenizer, T = job.config, job.prepared.tokenizer, job.config.model.block_size
    parts: Mapping[str, Split] = job.prepared.val.parts
    name, text = next(iter(parts.items()))
    device = "cpu" if config.trainer.strategy == "fsdp" else job.hardware.device  # one GPU may not hold it
    flops = flops_per_token(config.model, tokenizer.vocab_size) / 3  # without the backward pass
    affordable = (GPU_FLOPS if device == "cuda" else CPU_FLOPS) / flops
    checkpoint = folder.best_checkpoint(job.run.checkpoints)
    if checkpoint is None or text.answers is not None or MOST_SECONDS * affordable < T:
        return
    windows = max(1, int(min(MOST_TOKENS, affordable)) // T)
    ids = text.tokens(0, min(len(text), windows * T + 1))
    loaded, end = load.load_checkpoint(checkpoint), document_end(config.data, tokenizer)
    split = TokenSplit(name, tokenizer, [ids], bytes=0, fingerprint="")
    nats = score_text(loaded.model.to(device), split, document_end=end).nats.astype(float)
    predicted = np.ones(len(nats), bool) if end is None else ids[:-1] != end
    places = np.arange(len(nats)) % T  # 0: one token was read before
    positions, doublings = [], np.ceil(np.log2(1 + places)).astype(int)  # places 1, 2, 3-4, 5-8, ... together
    for k in np.unique(doublings[predicted]).tolist():
        part, first, last = nats[predicted & (doublings == k)], 1 + 2**k // 2, min(2**k, T)
        error = float(part.std() / math.sqrt(len(part)))
        positions.append({"first": first, "last": last, "nats": float(part.mean()), "error": error})
    texts = pieces(tokenizer, ids[: SHOWN_TOKENS + 1].tolist())
    shown = [None, *(round(float(loss), 3) if known else None for loss, known in zip(nats, predicted, strict=True))]
    tokens = [{"text": piece, "nats": loss} for piece, loss in zip(texts, shown, strict=False)]
    source = "" if text.name == name else f" of {name}"
    losses = {"step": loaded.state["step"], "of": source, "tokens": tokens, "positions": positions}
    job.run.write_json("tokens.json", losses)
