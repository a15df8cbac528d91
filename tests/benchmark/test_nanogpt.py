"""nanoGPT's lines and settings, without nanoGPT: its text was recorded."""

import ast
import pickle

import pytest

from minigpt.benchmark import nanogpt
from minigpt.benchmark.process import TurnFailed
from minigpt.benchmark.settings import read_plan

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
    arrivals = iter(range(100))
    lines, texts = nanogpt.read_lines(RECORDED.splitlines(), now=lambda: next(arrivals) ** 2)
    assert [line.iteration for line in lines] == [0, 10, 20, 30, 40]
    assert len(texts) == 14
    found = nanogpt.timing(lines, warm_up=15)  # from iteration 20 (line 11) to 40 (line 13)
    assert found["steps"] == 20
    assert found["ms"] == pytest.approx(1e3 * (13**2 - 11**2) / 20)
    assert found["first_step_at"] == 81


def test_a_run_without_lines_is_no_time():
    with pytest.raises(TurnFailed, match="printed 1 lines"):
        nanogpt.timing([nanogpt.Line(40, 2.0, 1.0)], warm_up=20)


def test_its_settings_are_those_of_our_run_and_have_the_types_it_insists_on():
    plan = read_plan(["preset=c0", "optimizer.lr=3e-3", "model.n_embd=64"])
    choices = {"device": "cpu", "precision": "bf16", "micro_batch": 12, "accumulate": 1}
    command = nanogpt.train_command("python", plan.config, choices, compiled=False, warm_up=20, steps=300)
    assert command[:3] == ["python", "-u", "nanogpt/train.py"]
    values = dict(word[2:].split("=") for word in command[3:])
    assert (values["device"], values["dtype"]) == ("cpu", "float32")
    numbers = {key: ast.literal_eval(text) for key, text in values.items() if key not in ("device", "dtype")
               and key not in ("dataset", "out_dir")}  # fmt: skip
    floats = {"learning_rate", "min_lr", "beta1", "beta2", "weight_decay", "grad_clip", "dropout"}
    assert {key for key, value in numbers.items() if type(value) is float} == floats
    assert {key for key, value in numbers.items() if type(value) is bool} == {
        "compile",
        "bias",
        "always_save_checkpoint",
    }
    assert (numbers["learning_rate"], numbers["n_embd"], numbers["max_iters"]) == (3e-3, 64, 320)
    assert (numbers["batch_size"], numbers["gradient_accumulation_steps"], numbers["bias"]) == (12, 1, False)


def test_the_vocabulary_file_is_what_its_pickle_reads():
    assert pickle.loads(nanogpt.vocabulary_file(65)) == {"vocab_size": 65}


def test_lines_are_as_many_as_the_steps_need():
    assert (nanogpt.log_interval(300), nanogpt.log_interval(4)) == (10, 1)
    assert (nanogpt.up_to(15, 10), nanogpt.up_to(20, 10)) == (20, 20)
