"""A training on a GPU, as far as fake tensors show it: every path ends, and the host waits only where it must."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
SMALL = ("batch_tokens=16384", "trainer.max_steps=3", "validate.every_steps=0", "samples.every_steps=0")


@pytest.fixture
def rehearse(tmp_path_factory, tmp_path):
    data = tmp_path_factory.getbasetemp() / "data"

    def run(*words, card="h100"):
        given = [f"run.dir={tmp_path / str(len(list(tmp_path.iterdir())))}", f"data.dir={data}", "data=stdlib"]
        given += ["tokenizer=byte", "trainer.device=cuda", "trainer.compile=off", "checkpoint.every_steps=1000"]
        done = subprocess.run(
            [sys.executable, ROOT / "tests/gpu/rehearsal.py", *given, *words],
            env=os.environ | {"REHEARSED_GPU": card},
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ("h100", ["model=gpt2"]),
        ("rtx4090", ["model=gpt2", "model.dropout=0.1", "model.checkpoint_activations=true"]),
        ("t4", ["model=gpt2", "trainer.precision=fp16"]),
        ("a100", ["model=gpt2", "trainer.precision=fp32", "optimizer=muon"]),
        ("h200", ["model=qwen3-124m", "optimizer=muon", "data.mask_documents=true"]),
        ("h100", ["model=gpt2", "model.attention=linear"]),
        ("h100", ["experiment=chat_tiny_base"]),
    ],
)
def test_a_training_ends_with_exit_code_0(rehearse, card, words):
    assert rehearse(*SMALL, *words, card=card)["code"] == 0


def waits(result):
    return sum(count for _, place, count in result["waits"] if not place.startswith("training/first_pass"))


def test_no_step_waits_and_a_validation_waits_once(rehearse):
    short = rehearse(*SMALL, "model=gpt2", "logger.every_steps=100")
    longer = rehearse(*SMALL, "model=gpt2", "logger.every_steps=100", "trainer.max_steps=6")
    validated = rehearse(
        *SMALL, "model=gpt2", "logger.every_steps=100", "trainer.max_steps=6", "validate.every_steps=3"
    )
    assert waits(longer) == waits(short)
    assert waits(validated) <= waits(longer) + 2  # one number of the validation, one of its row
