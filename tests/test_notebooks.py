"""Every notebook runs from top to bottom, and what is shown in the repository was made from its source."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import jupytext
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9]*.py"))


def build_module():
    spec = importlib.util.spec_from_file_location("notebooks_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs(source, monkeypatch):
    # The kernel is a process of its own, in the notebooks' folder.
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = build_module().execute(source)
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_made_from_its_source(source):
    made, shown = jupytext.read(source), jupytext.read(source.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in shown.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ]
    text = source.with_suffix(".ipynb").read_text("utf-8")
    assert "/tmp/" not in text
    assert "/home/" not in text
