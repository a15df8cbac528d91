"""minigpt beside nanoGPT and Hugging Face's GPT-2 on this machine, measured in turn, each time in a process of its own.

    python benchmarks/peers.py preset=c0 what=training nanogpt=DIR rounds=3     (DIR: a checkout of nanoGPT)
    python benchmarks/peers.py preset=c1 what=sampling nanogpt=DIR huggingface=true
    python benchmarks/peers.py preset=c1 what=curves nanogpt=DIR                     compares the losses, step by step

Other words are settings of `minigpt train`. The last line holds, for each contender, how many times as long as minigpt
it takes: the median of the rounds, then the ends. With nanogpt= the losses are compared first, from the same weights on
the same batches: in fp32 they must agree to 1e-3 nats, else the speeds are void (exit code 1).
"""

import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minigpt.benchmark import measure
from minigpt.benchmark.presets import PRESETS, WARM_UP, Preset, text_words
from minigpt.config.compose import compose
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault, run_script
from minigpt.formats.names import GPT2_NAMES, other_names
from minigpt.machine.choices import choose
from minigpt.machine.hardware import find_device
from minigpt.machine.torch_setup import set_up_torch
from minigpt.model.gpt import GPT
from minigpt.rundir.rows import read_rows
from minigpt.screen import table
from minigpt.seeds import fold
from minigpt.training.first_pass import text_batches
from minigpt.training.optimizer import adamw
from minigpt.training.run import train

OPTIONS = {"preset": "c0", "what": "training", "rounds": "3", "steps": "", "nanogpt": "", "huggingface": "false"}
LIMIT = 1e-3  # nats between the losses in fp32
CURVE_STEPS = 50
PROMPT, BATCHES = 16, (1, 8, 32)

Loss = Callable[[Tensor, Tensor], Tensor]  # of tokens and targets
Times = dict[str, list[float]]  # contender -> ms per step, or per token of each text; a value a round


def main(arguments: list[str]) -> int:
    """Measure what the command line asks for; return 1 if the losses differ from nanoGPT's."""
    if arguments[:1] == ["--job"]:
        name, file = arguments[1:]
        task = json.loads(Path(file).read_text())
        Path(file).write_text(json.dumps(JOBS[name](**task)))
        return 0
    options = OPTIONS | {key: value for key, _, value in (word.partition("=") for word in arguments) if key in OPTIONS}
    if not arguments or {"-h", "--help"} & set(arguments) or options["preset"] not in PRESETS:
        print(__doc__, f"preset: {', '.join(PRESETS)}", sep="\n")
        return 0 if arguments else 2
    checkout, preset = options["nanogpt"], PRESETS[options["preset"]]
    if checkout and not Path(checkout, "train.py").is_file():
        raise UserFault(f"nanogpt={checkout} is no checkout of nanoGPT: git clone https://github.com/karpathy/nanoGPT")
    typed = [word for word in arguments if word.partition("=")[0] not in OPTIONS]
    with tempfile.TemporaryDirectory(prefix="minigpt-peers-", ignore_cleanup_errors=True) as name:
        folder, summary, agrees = Path(name), "", True
        words = [*preset.settings, *typed, *text_words(folder, preset.vocab_size)]
        if checkout:
            agrees = compare_curves(folder, words, checkout)
        if options["what"] in ("training", "sampling"):
            contenders = (training if options["what"] == "training" else sampling)(folder, words, preset, options)
            times = in_turn(contenders, int(options["rounds"]))
            summary = describe(times, f"{options['what']} {options['preset']}")
        print(f"{'' if agrees else 'VOID: the losses differ. '}{summary}")
    return 0 if agrees else 1


def in_turn(contenders: dict[str, Callable[[], float]], rounds: int) -> Times:
    """Measure all contenders in each round, A B C A B C ...; one that fails is left out, unless it is ours."""
    times: Times = {name: [] for name in contenders}
    for number in range(1, rounds + 1):
        for name in list(times):
            try:
                times[name].append(contenders[name]())
            except UserFault as fault:
                if name.startswith("minigpt"):
                    raise
                print(f"WARNING: {name} is left out: {fault}", flush=True)
                del times[name]
                continue
            print(f"round {number}/{rounds}  {name:<32}{times[name][-1]:>12,.3f} ms", flush=True)
    return times


def describe(times: Times, title: str) -> str:
    """Print a table, and return the ratios to minigpt in a line. A ratio is taken within a round."""
    rows, ratios = [("", "ms", "times as long as minigpt")], []
    for name, values in times.items():
        peer = " ".join(name.split()[-3:])  # sampling: minigpt in the same precision, at the same batch
        reference = times["minigpt" if "minigpt" in times else f"minigpt {peer}"]
        ratio = [value / base for value, base in zip(values, reference, strict=True)]
        rows.append((name, _spread(values), _spread(ratio) if values is not reference else "1"))
        ratios += [f"{name} {_spread(ratio)}"] if values is not reference else []
    print(f"\n{table(rows)}\n")
    return f"{title}, times as long: {'; '.join(ratios)}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


# --- contenders: each measurement is a job in a process of its own ---


def training(folder: Path, words: list[str], preset: Preset, options: dict[str, str]) -> dict[str, Callable[[], float]]:
    """Return complete trainings: minigpt's with rows, screen and saves, nanoGPT's train.py as shipped."""
    steps = int(options["steps"] or preset.steps)
    task = {"words": words, "steps": steps, "vocab_size": preset.vocab_size}
    contenders = {"minigpt": partial(job, folder, "train_minigpt", **task)}
    words = [*words, f"trainer.max_steps={WARM_UP + steps}"]
    choices = job(folder, "chosen", words=words)
    print(f"choices  {json.dumps(choices)}", flush=True)
    if options["nanogpt"]:
        root, checkout = folder / "nanogpt", Path(options["nanogpt"]).resolve()
        job(folder, "write_nanogpt_data", words=words, data=str(root / "data" / "made"))
        (root / "checkout").symlink_to(checkout)  # a path without "=", which nanoGPT's settings can't hold
        (root / "configurator.py").symlink_to(checkout / "configurator.py")
        for name, compiled in (("nanoGPT", False), ("nanoGPT compiled", True)):
            contenders[name] = partial(run_nanogpt, root, nanogpt_command(words, choices, compiled), choices["threads"])
    for precision in ("fp32", "bf16") if options["huggingface"] == "true" else ():
        task = {"words": words, "precision": precision}
        contenders[f"Hugging Face {precision}"] = partial(job, folder, "train_huggingface", **task)
    return contenders


def sampling(folder: Path, words: list[str], preset: Preset, options: dict[str, str]) -> dict[str, Callable[[], float]]:
    """Return all writers at all batch sizes; nanoGPT, which has no cache, only at 1."""
    writers = {f"minigpt {precision}": (precision, BATCHES) for precision in ("fp32", "bf16", "int8")}
    if options["huggingface"] == "true":
        writers |= {f"Hugging Face {precision}": (precision, BATCHES) for precision in ("fp32", "bf16")}
    if options["nanogpt"]:
        writers["nanoGPT fp32"] = ("fp32", (1,))
    task = {"words": words, "new_tokens": preset.new_tokens, "nanogpt": options["nanogpt"]}
    return {
        f"{name}, batch {batch}": partial(job, folder, "sample", name=name, precision=precision, batch=batch, **task)
        for name, (precision, batches) in writers.items()
        for batch in batches
    }


def job(folder: Path, function: str, **task: Any) -> Any:
    """Call the function JOBS[function] in a process of its own, and return its result."""
    file = folder / f"{function}-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(task))
    run([sys.executable, str(Path(__file__).resolve()), "--job", function, str(file)], folder)
    return json.loads(file.read_text())


def run(command: list[str], folder: Path, threads: int = 0) -> list[tuple[float, str]]:
    """Run a program to its end, and return the lines of its output, each after the moment when it came."""
    variables = os.environ | {"PYTHONUNBUFFERED": "1"}
    variables |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, cwd=folder, env=variables, **pipe) as process:
        lines = [(time.time(), line.strip()) for line in process.stdout or ()]
    if process.returncode:
        reason = next((text for _, text in reversed(lines) if text), "it printed nothing")
        raise UserFault(f"{' '.join(command[1:4])} ended with exit code {process.returncode}: {reason[:400]}")
    return lines


def set_up(words: Sequence[str]) -> tuple[Any, Any, Any]:
    """Return the config, tokens and choices of a training, with torch set up as it sets it up."""
    config = compose("train", list(words))
    prepared = prepare(config.data, config.tokenizer)
    choices = choose(config, find_device(config), prepared.tokenizer.vocab_size)
    set_up_torch(choices, deterministic=False)
    return config, prepared, choices


def chosen(words: Sequence[str]) -> dict[str, Any]:
    """Return the automatic choices of a training."""
    return dict(vars(set_up(words)[2]))


def train_minigpt(words: list[str], steps: int, vocab_size: int) -> float:
    """Return the ms per step of a complete training."""
    with tempfile.TemporaryDirectory() as folder:
        return float(measure.training(words, steps, vocab_size, Path(folder, "run"))["ms"])


def train_huggingface(words: list[str], precision: str) -> float:
    """Return the ms per step of GPT2LMHeadModel with fused AdamW; its layers always have biases."""
    config, prepared, choices = set_up(words)
    model = huggingface_model(config.model, prepared.tokenizer.vocab_size).to(choices.device).train()

    def loss_of(tokens: Tensor, _: Tensor) -> Tensor:
        with torch.autocast(choices.device, torch.bfloat16, enabled=precision == "bf16"):
            return model(input_ids=tokens, labels=tokens).loss  # it shifts the labels itself

    return shortest_loop(config, prepared, choices, loss_of, adamw(config.optimizer, model))["ms"]


def huggingface_model(sizes: Any, vocab_size: int) -> Any:
    """Return a GPT2LMHeadModel of these sizes, without special tokens."""
    transformers: Any = importlib.import_module("transformers")
    shape = {name: getattr(sizes, name) for name in ("n_embd", "n_layer", "n_head")}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes.dropout)
    kind = {"activation_function": "gelu", "attn_implementation": "sdpa", "bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(vocab_size=vocab_size, n_positions=sizes.block_size, **shape, **dropout, **kind)
    return transformers.GPT2LMHeadModel(config)


def sample(name: str, precision: str, batch: int, words: list[str], new_tokens: int, nanogpt: str) -> float:
    """Return the ms for a token of each of `batch` texts."""
    config, prepared, choices = set_up(words)
    if name.startswith("minigpt"):
        measured = measure.sampling(words, new_tokens, precisions=(precision,), batches=(batch,))
        return float(measured[0]["ms"])
    length = min(PROMPT, config.model.block_size // 4)
    prompts = torch.tensor([prepared.val.tokens(100 * row, 100 * row + length).tolist() for row in range(batch)])
    prompts = prompts.to(choices.device)
    dtype, V = torch.bfloat16 if precision == "bf16" else torch.float32, prepared.tokenizer.vocab_size
    options: dict[str, Any] = {"temperature": 0.8}
    if name.startswith("nanoGPT"):
        model = nanogpt_model(nanogpt, config.model, V).to(choices.device).eval()
    else:
        model = huggingface_model(config.model, V).to(choices.device, dtype).eval()
        options |= {"do_sample": True, "top_k": 0, "pad_token_id": 0, "attention_mask": torch.ones_like(prompts)}

    def write_tokens(count: int) -> object:
        lengths = {"max_new_tokens": count} | ({} if name.startswith("nanoGPT") else {"min_new_tokens": count})
        return model.generate(prompts, **lengths, **options).tolist()  # the list waits for the device

    with torch.inference_mode():
        return measure.ms_per_token(write_tokens, min(new_tokens, config.model.block_size - length))


# --- nanoGPT ---


def write_nanogpt_data(words: list[str], data: str) -> None:
    """Write our tokens as nanoGPT's train.py reads them: {train,val}.bin and meta.pkl."""
    _, prepared, _ = set_up(words)
    folder = Path(data)
    folder.mkdir(parents=True)
    for name, split in (("train", prepared.train), ("val", prepared.val)):
        split.tokens(0, len(split)).astype("<u2").tofile(folder / f"{name}.bin")
    if (V := prepared.tokenizer.vocab_size) < 50257:  # without the file nanoGPT takes GPT-2's size
        # {"vocab_size": V} as a pickle (protocol 0: a dictionary, a text, a number, set).
        (folder / "meta.pkl").write_bytes(f"(dVvocab_size\nI{V}\ns.".encode())


def nanogpt_command(words: list[str], choices: dict[str, Any], compiled: bool) -> list[str]:
    """Return the command for nanoGPT's train.py with our run's settings, and enough lines to time the steps."""
    config = compose("train", words)
    model, optimizer, total = config.model, config.optimizer, config.trainer.max_steps
    bf16 = choices["device"] == "cuda" and choices["precision"] == "bf16"
    settings = f"""
        --dataset=made --out_dir=out --always_save_checkpoint=False --eval_interval=1000000 --eval_iters=1
        --device={choices["device"]} --dtype={"bfloat16" if bf16 else "float32"} --compile={compiled}
        --batch_size={choices["micro_batch"]} --gradient_accumulation_steps={choices["accumulate"]}
        --block_size={model.block_size} --n_layer={model.n_layer} --n_head={model.n_head} --n_embd={model.n_embd}
        --dropout={float(model.dropout)} --bias={model.bias} --weight_decay={float(optimizer.weight_decay)}
        --learning_rate={float(optimizer.lr)} --min_lr={float(optimizer.lr * config.schedule.final_lr_fraction)}
        --beta1={float(optimizer.beta1)} --beta2={float(optimizer.beta2)} --grad_clip={float(optimizer.grad_clip)}
        --warmup_iters={config.schedule.warmup_steps} --lr_decay_iters={total} --max_iters={total}
        --log_interval={10 if total >= WARM_UP + 20 else 1}
    """
    return [sys.executable, "-u", "checkout/train.py", *settings.split()]


def run_nanogpt(root: Path, command: list[str], threads: int) -> float:
    """Return the ms per step of nanoGPT's train.py, between its first line at or after the warm-up and its last."""
    matches = [(re.match(r"iter (\d+): loss \S+, time", text), at) for at, text in run(command, root, threads)]
    timed = [(int(match[1]), at) for match, at in matches if match and int(match[1]) >= WARM_UP]
    if len(timed) < 2:
        raise UserFault(f"nanoGPT printed {len(timed)} lines `iter N: ...` from step {WARM_UP} on; 2 are needed")
    (first, began), (last, ended) = timed[0], timed[-1]
    return 1e3 * (ended - began) / (last - first)


def nanogpt_model(checkout: str, sizes: Any, vocab_size: int) -> Any:
    """Return a GPT of the checkout's model.py, with these sizes."""
    sys.path.insert(0, str(Path(checkout).resolve()))
    module = importlib.import_module("model")
    names = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")
    return module.GPT(module.GPTConfig(vocab_size=vocab_size, **{name: getattr(sizes, name) for name in names}))


def compare_curves(folder: Path, words: list[str], nanogpt: str) -> bool:
    """Train ours and nanoGPT's model from the same weights on the same batches; return whether they agree in fp32.

    In bf16, whose rounding grows with the steps, the difference is only printed. The warm-up is nanoGPT's own.
    """
    words = [*words, "logger.every_steps=1", "schedule.warmup_steps=100", f"trainer.max_steps={CURVE_STEPS}"]
    weights, curves, rates = str(folder / "begin.safetensors"), dict[str, list[float]](), list[float]()
    for precision in ("fp32", "bf16"):
        ours = [*words, f"trainer.precision={precision}", f"run.dir={folder / precision}"]
        curves[precision], rates = job(folder, "our_curve", words=ours, weights=weights)
    task = {"words": [*words, "trainer.precision=fp32"], "weights": weights, "checkout": nanogpt, "rates": rates}
    reference = job(folder, "their_curve", **task)
    far = {name: max(abs(a - b) for a, b in zip(curve, reference, strict=True)) for name, curve in curves.items()}
    agrees = far["fp32"] <= LIMIT  # NaN never agrees
    print(
        f"losses   {CURVE_STEPS} steps {'agree' if agrees else 'do NOT agree'} with nanoGPT's model.py and AdamW: "
        f"in fp32 they differ by at most {far['fp32']:.2g} nats (limit {LIMIT:g}), ours in bf16 by {far['bf16']:.2g}",
        flush=True,
    )
    return agrees


def our_curve(words: list[str], weights: str) -> tuple[list[float], list[float]]:
    """Return each step's loss and learning rate in train(); write its first weights to a file, with nanoGPT's names."""
    config, prepared, choices = set_up(words)
    torch.manual_seed(fold(config.seed))
    state = GPT(config.model, prepared.tokenizer.vocab_size, kernel=choices.attention_kernel).state_dict()
    save_file({other_names(name, GPT2_NAMES)[0]: tensor.contiguous() for name, tensor in state.items()}, weights)
    assert train(config) == 0
    rows = [row for row in read_rows(Path(str(config.run.dir)) / "metrics.jsonl") if "train/loss" in row]
    return [row["train/loss"] for row in rows], [row["lr"] for row in rows]


def their_curve(words: list[str], weights: str, checkout: str, rates: list[float]) -> list[float]:
    """Return the losses of nanoGPT's model and optimizer from those weights, on our batches, at our learning rates."""
    config, prepared, choices = set_up(words)
    V, optimizer = prepared.tokenizer.vocab_size, config.optimizer
    model = nanogpt_model(checkout, config.model, V)
    state = load_file(weights)
    state["transformer.wte.weight"] = state["transformer.wte.weight"][:V]  # without the rows that pad ours
    missing, strange = model.load_state_dict(state, strict=False)
    assert not strange, strange
    assert all(name == "lm_head.weight" or name.endswith(".attn.bias") for name in missing), missing  # tied; masks
    model.to(choices.device).train()
    betas = (optimizer.beta1, optimizer.beta2)
    adam = model.configure_optimizers(optimizer.weight_decay, optimizer.lr, betas, choices.device)
    return shortest_loop(config, prepared, choices, lambda x, y: model(x, y)[1], adam, rates)["losses"]


def shortest_loop(
    config: Any,
    prepared: Any,
    choices: Any,
    loss_of: Loss,
    optimizer: torch.optim.Optimizer,
    rates: Sequence[float] = (),
) -> dict[str, Any]:
    """Train for the config's steps on its batches with nothing around a step; return `ms` a step, and all `losses`."""
    batches = text_batches(config, choices, prepared)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses, moments = [], []
    for step in range(config.trainer.max_steps):
        loss = torch.zeros((), device=choices.device)
        for part in range(choices.accumulate):
            batch = batches[step * choices.accumulate + part].to(choices.device)
            share = loss_of(batch.tokens, batch.targets) / choices.accumulate
            share.backward()
            loss = loss + share.detach()
        if config.optimizer.grad_clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.grad_clip)
        if choices.device == "cuda" and step in (WARM_UP, config.trainer.max_steps - 1):
            torch.cuda.synchronize()
        moments.append(time.perf_counter())
        for group in optimizer.param_groups if rates else ():
            group["lr"] = rates[step]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    ms = 1e3 * (moments[-1] - moments[WARM_UP]) / (len(moments) - 1 - WARM_UP)
    return {"ms": ms, "losses": torch.stack(losses).tolist()}


JOBS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (chosen, train_minigpt, train_huggingface, sample, write_nanogpt_data, our_curve, their_curve)
}

if __name__ == "__main__":
    run_script(main)
