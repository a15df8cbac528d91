"""The training step side by side with others and with other choices, and whether a run of it resumes exactly."""

from collections.abc import Callable
from functools import partial

from minigpt.benchmark import nanogpt
from minigpt.benchmark.bench import Bench, Measurement, Section, say
from minigpt.benchmark.settings import WARM_UP
from minigpt.config.compose import compose
from minigpt.invocation import command_line
from minigpt.verify import verify_resume

OURS = "minigpt train.py"
FAR = 1_000_000  # a step far into a run, which must not be slower than the first
VARIANTS = {
    "compiled": "trainer.compile=on",
    "not compiled": "trainer.compile=off",
    "deterministic": "trainer.deterministic=true",
    "fp16": "trainer.precision=fp16",
    "bf16": "trainer.precision=bf16",
    "fp32": "trainer.precision=fp32",
    "explicit attention": "trainer.attention_kernel=explicit",
    "fused attention": "trainer.attention_kernel=fused",
}
KILLS = 2


def training(bench: Bench) -> Section:
    """Compare the curves with nanoGPT's, then measure all contenders.

    Raises:
        UserFault: a contender of ours failed.
    """
    config, holds = bench.plan.config, True
    about = [
        f"ms/step: {config.steps} optimizer steps after {WARM_UP} that don't count, with rows, screen and saves; the "
        f"median and the ends of {config.rounds} measurements. first, s: from the start of the process, tokens "
        "prepared, to the first optimizer step (nanoGPT: its first line)."
    ]
    contenders: dict[str, Callable[[], Measurement]] = {
        OURS: partial(bench.measure, "steps.train_py"),
        "minigpt bare loop": partial(bench.measure, "steps.bare"),
        "minigpt batches alone, step 0": partial(bench.measure, "steps.batches", start=0),
        f"minigpt batches alone, step {FAR:,}": partial(bench.measure, "steps.batches", start=FAR),
    }
    if config.nanogpt:
        holds, sentence = nanogpt.compare_curves(bench)
        about.append(sentence)
        say(f"Curves     {sentence}")
        contenders |= nanogpt.contenders(bench)
    if config.huggingface:
        about.append("Hugging Face's layers always have biases: the nearest size, not the same mathematics.")
        contenders["Hugging Face fp32"] = partial(bench.measure, "huggingface.train", bf16=False)
        contenders["Hugging Face bf16"] = partial(bench.measure, "huggingface.train", bf16=True)
    found, notes = bench.in_turn(contenders)
    return bench.section("Training step", found, [*about, *notes], baseline=lambda _: OURS, void=not holds)


def variants(bench: Bench) -> Section:
    """Measure all of train.py with other choices; those that fail on this machine are left out, with the reason."""
    contenders = {name: partial(bench.measure, "steps.train_py", change) for name, change in VARIANTS.items()}
    found, notes = bench.in_turn({OURS: partial(bench.measure, "steps.train_py"), **contenders})
    return bench.section("Choices of the trainer", found, notes, baseline=lambda _: OURS)


def resuming(bench: Bench) -> Section:
    """Kill a deterministic run of this size and compare its bytes with those of one that was not killed."""
    total = WARM_UP + (bench.plan.config.steps or 0)
    often = (f"checkpoint.every_steps={total // 6}", "logger.every_steps=1", "trainer.deterministic=true")
    words, folder = bench.words(*often, steps=total), bench.folder / "resuming"
    folder.mkdir()
    code = verify_resume(compose("train", words), [*command_line("train"), *words], kills=KILLS, folder=folder)
    result = "OTHER bytes at its end" if code else "the same bytes at its end"
    return Section("Exact resume", [[f"deterministic, killed {KILLS} times", result, "", "", ""]], void=code != 0)
