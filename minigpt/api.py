"""The functions of `import minigpt`: compose a config, train with it, load a run to sample from it and score text."""

from __future__ import annotations

import base64
import html
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.config.compose import compose as compose_command
from minigpt.config.run_names import run_dir_of
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.faults import FINISHED, STOPPED, UserFault
from minigpt.rundir.rows import read_rows

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from minigpt.data.tokenizer import Tokenizer
    from minigpt.model.gpt import GPT

NAMED = ("max_new_tokens", "temperature", "seed")
OPTIONS = ("top_k", "top_p", "min_p", "repetition_penalty", "stop")  # of generate(), besides the named ones


@dataclass(frozen=True)
class TrainedGPT:
    """A trained model with its tokenizer.

    Attributes:
        model: `model(tokens)` maps (B, T) token ids to (B, T, V) logits; in eval mode, in fp32. Move it with
            `model.to(device)`; `generate` and `loss` follow it.
        tokenizer: `tokenizer.encode(text)` gives token ids, `tokenizer.decode(tokens)` text.
        config: the settings that it was trained with.
        path: its checkpoint folder.
    """

    model: GPT
    tokenizer: Tokenizer
    config: TrainConfig
    path: Path

    def __repr__(self) -> str:
        sizes = f"{self.config.model.n_layer} layers x {self.config.model.n_embd}, {self.model.vocab_size:,} tokens"
        return f"TrainedGPT({str(self.path)!r}: {sizes})"

    def generate(
        self, prompt: str = "", *, max_new_tokens: int = 200, temperature: float = 0.8, seed: int = 1337, **options: Any
    ) -> str:
        """Continue a prompt.

        Args:
            prompt: text; an empty one starts from the end-of-text token, and a newline where texts never followed it.
            max_new_tokens: tokens to write at most; the model may end its text earlier.
            temperature: 0 takes the likeliest token each time.
            seed: the same seed and options give the same text.
            **options: more of `minigpt sample`: top_k, top_p, min_p, repetition_penalty, and stop, a text or a list of
                texts before which the output ends.

        Returns:
            The text that was written, without the prompt.
        """
        if unknown := options.keys() - set(OPTIONS):
            raise TypeError(f"generate() has no option {min(unknown)!r}; it takes {', '.join(NAMED + OPTIONS)}")
        from minigpt.config.check import find_faults
        from minigpt.sampling.filters import options_of
        from minigpt.sampling.write import encode_prompt, write

        if isinstance(options.get("stop"), str):
            options["stop"] = [options["stop"]]
        options |= {"checkpoint": str(self.path), "max_new_tokens": max_new_tokens, "seed": seed}
        config = SampleConfig(temperature=temperature, **options)
        if faults := find_faults(config):
            raise UserFault(*(fault.sentence for fault in faults))
        return write(self.model, self.tokenizer, [encode_prompt(self.tokenizer, prompt)], options_of(config))[0].text

    def loss(self, text: str) -> float:
        """Return the mean loss on a text, in nats per token.

        Each token but the first is predicted once, in windows of the model's context length side by side, as
        `val/loss` is measured while training.
        """
        from minigpt.data.batch import document_end
        from minigpt.data.tokenizer import utf8
        from minigpt.evaluation.texts import encode_documents, score_text

        tokens = encode_documents(self.tokenizer, [[utf8(text)]])
        return score_text(self.model, tokens, document_end=document_end(self.config.data, self.tokenizer)).score.loss


@dataclass(frozen=True)
class Run:
    """A run: what `train` returns. A notebook shows its loss and its last sample.

    Attributes:
        dir: the run directory.
        code: 0 when the run is finished, 75 when a signal stopped it with a checkpoint.
    """

    dir: Path
    code: int = FINISHED

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl: step, tokens, train/loss, val/loss and so on."""
        return read_rows(self.dir / "metrics.jsonl")

    @property
    def best(self) -> Path | None:
        """The checkpoint folder with the lowest validation loss."""
        from minigpt.checkpoint.folder import best_checkpoint

        return best_checkpoint(self.dir / "checkpoints")

    def load(self, which: str = "best") -> TrainedGPT:
        """Load the trained model; see `load`."""
        return load(self.dir, which)

    def _repr_html_(self) -> str:
        picture, samples = self.dir / "loss.png", read_rows(self.dir / "samples.jsonl")
        data = base64.b64encode(picture.read_bytes()).decode() if picture.is_file() else ""
        sample = f"<pre>{html.escape(samples[-1]['text'])}</pre>" if samples else ""
        return f'<p>{html.escape(str(self.dir))}</p><img src="data:image/png;base64,{data}" alt="loss">{sample}'


def load(run: str | Path, which: str = "best") -> TrainedGPT:
    """Load a trained model. Lightning is not imported, and nothing in the folder is run or changed.

    `run` is a run directory (`runs/NAME`) or a checkpoint folder in it; `which`, of a run, is "best" (lowest validation
    loss) or "latest".
    """
    from minigpt.checkpoint.load import load_checkpoint

    checkpoint = load_checkpoint(run, which)
    return TrainedGPT(checkpoint.model, checkpoint.tokenizer, checkpoint.config, checkpoint.path)


def compose(arguments: Sequence[str] = ()) -> TrainConfig:
    """Return the config that these arguments of `minigpt train` describe, like `["experiment=demo", "seed=2"]`.

    A text is split as a shell does: "experiment=demo seed=2".
    """
    return compose_command("train", shlex.split(arguments) if isinstance(arguments, str) else list(arguments))


def train(config: TrainConfig | Sequence[str], callbacks: Sequence[Callback] = ()) -> Run:
    """Train: begin or continue the run in `config.run.dir`, after the experiment that `init.experiment` names, if any.

    Args:
        config: of `compose`, or the arguments that `compose` takes. If another experiment is trained first, a config's
            `init.from` is then set to its run.
        callbacks: Lightning callbacks of your own; docs/ARCHITECTURE.md says which hooks they get.
            An experiment that is trained first does not get them.

    Returns:
        The run. Exceptions: see minigpt.faults.
    """
    from minigpt.ranks.launch import start_ranks

    config = config if isinstance(config, TrainConfig) else compose(config)
    if (code := start_ranks(config.trainer)) is None:
        from minigpt.stages import train_in_stages
        from minigpt.training.run import train as train_run

        code = train_in_stages(config, lambda stage: train_run(stage, callbacks if stage is config else ()))
    elif code not in (FINISHED, STOPPED):
        raise SystemExit(code)  # a rank has printed the cause
    return Run(run_dir_of(config), code)
