"""A trained model behind the interface of EleutherAI's lm-eval (the extra `lm-eval`). minigpt doesn't import this file.

    python -m minigpt.evaluation.lm_eval run --model minigpt --model_args checkpoint=runs/NAME --tasks lambada_openai

or from Python: `lm_eval.simple_evaluate(model=MiniGPT("runs/NAME"), tasks=[...])`.
"""

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from minigpt.checkpoint.load import load_checkpoint
from minigpt.evaluation.questions import Pair, encode_pair, score_pairs
from minigpt.machine.hardware import probe
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.write import encode_prompt, start_tokens, write


@register_model("minigpt")
class MiniGPT(LM):
    """A run or checkpoint of minigpt.

    lm-eval's command says device cuda:0 on every machine, which is auto here, and hands batch sizes to every model.
    """

    def __init__(self, checkpoint: str, which: str = "best", device: str = "auto", **ignored: object):
        super().__init__()
        loaded = load_checkpoint(checkpoint, which)
        self.model = loaded.model.to(probe("auto" if device == "cuda:0" else device).device)
        self.tokenizer, self.block_size = loaded.tokenizer, loaded.config.model.block_size

    def loglikelihood(self, requests: "list[Instance]") -> list[tuple[float, bool]]:
        """Return for each (context, continuation) its log-likelihood, and whether greedy decoding gives it."""
        asked = []
        for request in requests:  # a continuation longer than the context is predicted in windows, side by side
            context, following = encode_pair(self.tokenizer, *request.args)
            starts = range(0, len(following), size := self.block_size)
            asked.append([(context + following[:start], following[start : start + size]) for start in starts])
        return self._score(asked)

    def loglikelihood_rolling(self, requests: "list[Instance]") -> list[float]:
        """Return the log-likelihood of each (text,), every token of it predicted, in lm-eval's windows."""
        asked = []
        for request in requests:
            tokens, start = self.tokenizer.encode(request.args[0]), start_tokens(self.tokenizer)[0][0]
            windows = get_rolling_token_windows(tokens, start, self.block_size, 1)
            asked.append([make_disjoint_window(window) for window in windows])
        return [nats for nats, _ in self._score(asked)]

    def _score(self, asked: list[list[Pair]]) -> list[tuple[float, bool]]:
        """Return for each list of pairs the sum of log-likelihoods, and whether greedy decoding gives all of them."""
        scores = iter(score_pairs(self.model, [pair for pairs in asked for pair in pairs]))
        sums = [[next(scores) for _ in pairs] for pairs in asked]
        return [(sum(nats for nats, _ in parts), all(right for _, right in parts)) for parts in sums]

    def generate_until(self, requests: "list[Instance]") -> list[str]:
        """Return what the model writes after each (context, options), up to the first of options["until"]."""
        return [self._write(*request.args) for request in requests]

    def _write(self, context: str, options: dict) -> str:
        until = options.get("until") or []
        config = SamplingOptions(
            stop=[until] if isinstance(until, str) else list(until),
            max_new_tokens=options.get("max_gen_toks", 256),
            temperature=options.get("temperature", 0.0) if options.get("do_sample") else 0.0,
        )
        return write(self.model, self.tokenizer, [encode_prompt(self.tokenizer, context)], config)[0].text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
