"""nanoGPT's lines and settings, without nanoGPT: its text was recorded."""

import ast
import pickle
from dataclasses import replace

import pytest

from minigpt.benchmark import nanogpt
from minigpt.benchmark.bench import Bench
from minigpt.benchmark.settings import read_plans
from minigpt.faults import UserFault

RECORDED = """\
Overriding: max_iters = 40
tokens per iteration will be: 768
found vocab_size = 65 (inside data/made/meta.pkl)
Initializing a new model from scratch
number of parameters: 0.80M
num decayed parameter tensors: 18, with 802,944 parameters
num non-decayed parameter tensors: 9, with 1,152 parameters
using fused AdamW: False
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2660, time 44.17ms, mfu -100.00%
iter 10: loss 3.1422, time 31.49ms, mfu 0.05%
iter 20: loss 2.7277, time 30.11ms, mfu 0.05%
iter 30: loss 2.6178, time 31.05ms, mfu 0.05%
iter 40: loss nan, time 30.30ms, mfu 0.05%
"""


def test_times_come_from_the_arrival_of_its_lines_and_the_first_are_dropped():
    lines = [(float(number**2), line) for number, line in enumerate(RECORDED.splitlines())]
    found = nanogpt.timing(lines)  # from iteration 10 (line 10) to 40 (line 13)
    assert found["ms"] == pytest.approx(1e3 * (13**2 - 10**2) / 30)
    assert found["first"] == 81


def test_a_run_without_lines_is_no_time():
    with pytest.raises(UserFault, match="printed 1 lines"):
        nanogpt.timing([(1.0, "iter 40: loss 2.0, time 3.0ms, mfu 0.05%")])


def settings_of(choices, *arguments, compiled=False):
    (plan,) = read_plans(["preset=c0", *arguments])
    bench = Bench(plan, None, {"device": "cpu", "micro_batch": 12, "accumulate": 1} | choices)
    program, *words = nanogpt.train_command(bench, compiled=compiled)
    assert program == "train.py"
    return dict(word.removeprefix("--").split("=") for word in words)


def test_its_settings_are_those_of_our_run_and_have_the_types_it_insists_on():
    values = settings_of({"precision": "bf16"}, "optimizer.lr=3e-3", "model.n_embd=64")
    assert (values["device"], values["dtype"]) == ("cpu", "float32")
    texts = {"device", "dtype", "dataset", "out_dir"}
    numbers = {key: ast.literal_eval(text) for key, text in values.items() if key not in texts}
    floats = {"learning_rate", "min_lr", "beta1", "beta2", "weight_decay", "grad_clip", "dropout"}
    assert {key for key, value in numbers.items() if type(value) is float} == floats
    flags = {"compile", "bias", "always_save_checkpoint"}
    assert {key for key, value in numbers.items() if type(value) is bool} == flags
    assert (numbers["learning_rate"], numbers["n_embd"], numbers["max_iters"]) == (3e-3, 64, 310)
    assert (numbers["batch_size"], numbers["gradient_accumulation_steps"], numbers["bias"]) == (12, 1, False)


def test_on_a_gpu_it_computes_in_bf16_as_we_do():
    assert settings_of({"device": "cuda", "precision": "bf16"}, compiled=True)["dtype"] == "bfloat16"
    assert settings_of({"device": "cuda", "precision": "fp32"})["dtype"] == "float32"


def test_lines_are_as_many_as_the_steps_need():
    many, few = (settings_of({"precision": "fp32"}, f"steps={steps}") for steps in (295, 4))
    assert (many["log_interval"], many["max_iters"]) == ("10", "305")
    assert (few["log_interval"], few["max_iters"]) == ("1", "14")


@pytest.mark.parametrize(("device", "names"), [
    ("cpu", ["nanoGPT", "nanoGPT compiled"]), ("cuda", ["nanoGPT compiled", "nanoGPT bench.py"]),
])  # fmt: skip
def test_it_finds_its_data_and_runs_as_it_is_shipped(device, names, bench_of, checkout, at_once):
    (checkout / "bench.py").write_text("print('time per iteration: 3.25ms, MFU: 40%')")
    bench = bench_of(f"nanogpt={checkout}", device=device)
    if device == "cuda":
        bench.plan = replace(bench.plan, config=replace(bench.plan.config, preset="124m"))
    found = nanogpt.contenders(bench)
    assert list(found) == names
    made = bench.folder / "nanogpt" / "data" / "made"
    assert pickle.loads((made / "meta.pkl").read_bytes()) == {"vocab_size": 65}
    train, val = ((made / f"{name}.bin").stat().st_size // 2 for name in ("train", "val"))
    assert (train + val, val > 500) == (60_065, True)
    if device == "cuda":
        assert found["nanoGPT bench.py"]() == {"ms": 3.25, "tokens": 32}
