"""A block, loss, optimizer, schedule, reader, tokenizer, template is a few lines: the diffs of docs/EXTEND.md work."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "EXTEND.md").read_text()
SMALL = ["model=gpt-nano", "model.block_size=16", "batch_tokens=64", "trainer.max_steps=2", "trainer.device=cpu"]


# All commands in one process: minigpt of the copy comes first on its path.
COMMANDS = """
import json, sys
from minigpt.cli import _dispatch
from minigpt.training import finish
finish.write_report = finish.keep_token_losses = lambda *_: None
for words in json.loads(sys.argv[1]):
    assert not _dispatch(words), words
import minigpt.data.chat.roles as roles, minigpt.formats.tokenizer_json as out
print(roles.END, out.TEMPLATE)
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of minigpt with every diff of the page, in which they were used, and what was printed."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("minigpt", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    diffs = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    assert len(diffs) == 7
    for diff in diffs:
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)
    (folder / "page.html").write_text("<html><b>Hello</b> world, " + "more text " * 300 + "</html>")
    (folder / "genome.txt").write_text("GATTACA\nNNCAT\n" * 300)
    parts = ["model.activation=mish", "objective.smoothing=0.1", "optimizer=sgd", "schedule=square_root"]
    text = ["data=text", "data.source=page.html", "tokenizer=byte", "data.mask_documents=true"]
    commands = [["train", *text, *parts, *SMALL, f"trainer.max_steps={steps}", "run.dir=runs/a"] for steps in (1, 2)]
    commands += [["train", "data=text", "data.source=genome.txt", "tokenizer=dna", *SMALL, "run.dir=runs/b"]]
    commands += [["sample", "checkpoint=runs/b", "prompt=GATTA", "max_new_tokens=8"]]
    words = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_block_loss_optimizer_schedule_and_reader_train_together_and_continue(extended):
    folder, said = extended
    assert "continuing after step 1" in said  # with the optimizer's averages
    row = json.loads((folder / "runs/a/metrics.jsonl").read_text().splitlines()[-1])
    assert row["step"] == 2
    assert row["val/loss"] == pytest.approx(5.5, abs=0.3)  # ln 256, before anything is learned
    tokens = b"".join(file.read_bytes()[::2] for file in (folder / "data").rglob("text-page*/*.bin"))
    assert b"Hello world, more text" in tokens
    assert b"<b>" not in tokens


def test_tokenizer_and_template(extended):
    assert re.search(r"GATTA[ACGNT\n]{8}", extended[1])
    assert extended[1].count("<|im_end|>") == 2


def test_a_callback_prints(folder, capsys):
    (folder / "text.txt").write_text("One line after another.\n" * 200)
    small = ["data=text", "data.source=text.txt", "tokenizer=byte", *SMALL]
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
    exec(code.replace('["experiment=demo", "trainer.max_steps=2"]', repr(small)), {"__name__": "__main__"})
    assert re.search(r"^(gpt\.)?blocks\S+$|^\S+\.weight$", capsys.readouterr().out, re.M)
