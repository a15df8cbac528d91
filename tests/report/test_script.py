"""scripts/report.py as it is typed."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "report.py"


def type_report(*arguments, folder):
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True)


def test_the_folder_is_taken_literally(run):
    odd = run.parent / "a=b, ${oc.env:HOME} [é]"
    run.rename(odd)
    done = type_report(f"run.dir={odd.name}", folder=odd.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{odd.name}/report.html" in done.stdout
    assert (odd / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "run.dir is missing: the folder, like runs/"),
        (["run.dir="], "run.dir is missing"),
        (["runs/x"], "'runs/x' is not how a setting is written"),
        (["run.dir=nowhere"], "run.dir=nowhere: no such folder"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(tmp_path, arguments, sentence):
    refused = type_report(*arguments, folder=tmp_path)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []
