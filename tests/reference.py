"""Build the reference of the public API from its docstrings, as HTML: ``python -m tests.reference FOLDER``."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path

import pdoc

__all__ = ["MODULES", "build"]

MODULES = (
    "cojoin",
    "cojoin.kafka",
    "cojoin.testing",
    "cojoin.errors",
    "cojoin.spark.sinks.sinks",
    "cojoin.spark.sources.sources",
)
"""The public modules; the last two are ``cojoin.sinks`` and ``cojoin.sources``."""


def build(folder: Path) -> None:
    """Write the reference into a folder; a warning of pdoc is an error."""
    for name in MODULES:
        module = import_module(name)
        # pdoc looks into a module's dictionary, where names that are imported lazily are not yet.
        vars(module).update({each: getattr(module, each) for each in module.__all__})
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # pdoc 16 evaluates the annotations of a NamedTuple without the names of its module.
        warnings.filterwarnings(
            "ignore", r"Error parsing type annotation ForwardRef\(.* for \S+\.(Record|Timer)\.__init__"
        )
        # The pattern leaves out what a module has below it.
        specs = [spec for name in MODULES for spec in (name, rf"!{name}\..+")]
        pdoc.pdoc(*specs, output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
