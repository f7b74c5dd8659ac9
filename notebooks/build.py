"""Makes notebooks from their sources: ``python notebooks/build.py``, or ``python notebooks/build.py 04`` for some.

The source is the ``.py`` file, in jupytext's percent format. It is executed; the notebook keeps its tables and pictures, and none of
what Spark or Java say while they start. A Kafka broker is started for those that need one, unless ``KAFKA`` names one.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent


def execute(source: Path) -> nbformat.NotebookNode:
    """Run a source from top to bottom; an error in a cell is raised."""
    notebook = jupytext.read(source)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        coalesce_streams=True,  # else each redrawn progress line stays
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    return notebook


def build(names: list[str]) -> None:
    """Make those whose names begin so; all without any."""
    sources = sorted(FOLDER.glob("[0-9]*.py"))
    chosen = [each for each in sources if not names or each.name.startswith(tuple(names))]
    with ExitStack() as stack:
        if "KAFKA" not in os.environ and any('"KAFKA"' in each.read_text("utf-8") for each in chosen):
            sys.path.insert(0, str(FOLDER.parent))
            from tests.servers.broker import Broker

            os.environ["KAFKA"] = stack.enter_context(Broker()).bootstrap_servers
        for each in chosen:
            nbformat.write(execute(each), each.with_suffix(".ipynb"))


if __name__ == "__main__":
    build(sys.argv[1:])
