"""A line in a notebook's cell that is replaced in place: an output of its own, which IPython updates by its id.

What is written to a stream runs together with all else that the cell prints meanwhile, and some programs keep each of
its frames. A widget loses its last state where a notebook is saved without it, as for a page of a repository.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["NotebookCell", "is_notebook"]


def is_notebook() -> bool:
    """Return whether standard output is a notebook's cell."""
    return type(sys.stdout).__module__.startswith("ipykernel")


class NotebookCell:
    """An output of the cell that runs, made by the first text that is shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show a text in the place of the one before."""
        from IPython.display import display  # noqa: PLC0415 - a kernel has it, others need not

        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)
