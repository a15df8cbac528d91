"""docs/tutorial.ipynb runs from top to bottom, and ends with a judgement."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


@pytest.mark.timeout(1200)
def test_the_tutorial_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png;base64" in output.get("data", {}).get("text/html", "") for output in outputs)  # the run
    assert any("image/png" in output.get("data", {}) for output in outputs)  # the attention
    said = "".join(output.get("text", "") for output in outputs)
    assert "is better by" in said or "cannot tell" in said
