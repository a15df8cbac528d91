"""`minigpt demo`: trains a GPT on text that every machine has, and compares it with models that only count."""

import shlex

from minigpt.config.run_names import run_dir_of
from minigpt.config.schema import SampleConfig, TrainConfig
from minigpt.faults import FINISHED
from minigpt.invocation import launched, typed
from minigpt.sampling.sample import sample
from minigpt.stages import train_in_stages
from minigpt.training.run import train


def demo(config: TrainConfig) -> int:
    """Train, then show the result; return what `train` returns. A finished run is shown again."""
    place = launched(config.trainer)
    code = train_in_stages(config, train)
    if code != FINISHED or (place is not None and place.rank):
        return code
    run = run_dir_of(config)
    # A user's own text may hold anything: its sample starts without a prompt.
    prompt, next_prompt = (config.samples.prompt, "def main(") if config.data.name == "stdlib" else ("", "...")
    penalty = config.samples.repetition_penalty
    print(f"\n{f'--- a sample that starts with {prompt.strip()!r} ' if prompt else '--- a sample ':-<65}")
    sample(SampleConfig(checkpoint=str(run), prompt=[prompt], max_new_tokens=160, top_k=50, repetition_penalty=penalty))
    print("-" * 65)
    print(f"\nLoss picture  {run / 'loss.png'}\nThe whole run {run / 'report.html'}")
    words = f'checkpoint={shlex.quote(str(run))} prompt="{next_prompt}" repetition_penalty={penalty}'
    print(f"Now you       {typed('sample')} {words}")
    return code
