"""A block, loss, optimizer, schedule, reader, tokenizer, template is a few lines: the diffs of docs/EXTEND.md work."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "EXTEND.md").read_text()
SMALL = ["model=gpt-nano", "model.block_size=16", "batch_tokens=64", "trainer.max_steps=2", "trainer.device=cpu"]


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of minigpt with every diff of the page."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("minigpt", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    diffs = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    assert len(diffs) == 7
    for diff in diffs:
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)
    return folder


def run(folder, *command):
    """Run Python in the copy, whose minigpt comes first on the path."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # the second command reads what the first has compiled
    result = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_block_loss_optimizer_schedule_and_reader_train_together(extended):
    (extended / "page.html").write_text("<html><b>Hello</b> world, " + "more text " * 300 + "</html>")
    parts = ["model.activation=mish", "objective.smoothing=0.1", "optimizer=sgd", "schedule=square_root"]
    text = ["data=text", "data.source=page.html", "tokenizer=byte", "data.mask_documents=true"]
    for steps in (1, 2):  # the second command continues, with the optimizer's averages
        words = [*text, *parts, *SMALL, f"trainer.max_steps={steps}", "run.dir=runs/a"]
        run(extended, "-m", "minigpt", "train", *words)
    row = json.loads((extended / "runs/a/metrics.jsonl").read_text().splitlines()[-1])
    assert row["step"] == 2
    assert row["val/loss"] == pytest.approx(5.5, abs=0.3)  # ln 256, before anything is learned
    tokens = b"".join(file.read_bytes()[::2] for file in (extended / "data").rglob("*.bin"))
    assert b"Hello world, more text" in tokens
    assert b"<b>" not in tokens


def test_tokenizer_and_template(extended):
    (extended / "genome.txt").write_text("GATTACA\nNNCAT\n" * 300)
    run(
        extended,
        "-m",
        "minigpt",
        "train",
        "data=text",
        "data.source=genome.txt",
        "tokenizer=dna",
        *SMALL,
        "run.dir=runs/b",
    )
    text = run(extended, "-m", "minigpt", "sample", "checkpoint=runs/b", "prompt=GATTA", "max_new_tokens=8")
    assert re.search(r"GATTA[ACGNT\n]{8}", text)
    code = (
        "import minigpt.data.chat.roles as roles, minigpt.formats.tokenizer_json as out; print(roles.END, out.TEMPLATE)"
    )
    assert run(extended, "-c", code).count("<|im_end|>") == 2


def test_a_callback_prints(tmp_path):
    (tmp_path / "text.txt").write_text("One line after another.\n" * 200)
    small = ["data=text", "data.source=text.txt", "tokenizer=byte", *SMALL]
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
    (tmp_path / "mine.py").write_text(code.replace('["experiment=demo", "trainer.max_steps=2"]', repr(small)))
    assert re.search(r"^(gpt\.)?blocks\S+$|^\S+\.weight$", run(tmp_path, "mine.py"), re.M)
