"""Makes each notebook from its source: ``python notebooks/build.py``.

The source is the ``.py`` file, in jupytext's percent format. It is executed; the notebook keeps its tables and pictures, and none of
what Spark or Java say while they start.
"""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent


def execute(source: Path) -> nbformat.NotebookNode:
    """Run a source from top to bottom; an error in a cell is raised."""
    notebook = jupytext.read(source)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr" and "ivy" not in str(each)]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    return notebook


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("[0-9]*.py")):
        nbformat.write(execute(each), each.with_suffix(".ipynb"))
