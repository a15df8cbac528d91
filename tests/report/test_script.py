"""scripts/report.py as it is typed."""

import runpy
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
def test_a_mistake_is_told_in_a_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script puts its checkout there
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
