"""The notebooks of the documentation, run as a reader runs them."""

import nbformat
import pytest
from helpers.project import ROOT
from nbclient import NotebookClient

NOTEBOOKS = ROOT / "docs" / "notebooks"


@pytest.fixture
def run(monkeypatch):
    """Run a notebook in a folder; returns what its cells printed and showed, as one text."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def executed(name: str, folder) -> str:
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        where = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, resources=where, iopub_timeout=60)  # 4 s lose outputs
        client.execute()
        outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
        shown = [str(one.get("text") or one.get("data")) for one in outputs]
        assert not [one for one in outputs if one.get("name") == "stderr"], shown
        return "\n".join(shown)

    return executed


def test_they_are_in_the_repository_without_outputs():
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells), path.name


def test_the_researchers_on_results_of_a_run(run, reported, tmp_path):
    """On a smaller sweep in place of the one that it names."""
    (tmp_path / "results").mkdir()
    small = reported.folder / "results" / "small"
    (tmp_path / "results" / "vocabulary-width-tying").symlink_to(small)
    shown = run("researcher.ipynb", tmp_path)
    assert "counts agree" in shown
    assert "Wider models spend a smaller share on their vocabulary" in shown


def test_the_teachers(run, tmp_path):
    shown = run("teacher.ipynb", tmp_path)
    for counted in (
        "d_model*n_vocab = 1280",
        "4 heads: 256 = 256",
        "by hand: 1851  by formula: 1851",
        "1851 parameters in the module; agrees: True",
        "540,356,474,880 agrees: True",
        "The MLPs take most of a large model",
    ):
        assert counted in shown
