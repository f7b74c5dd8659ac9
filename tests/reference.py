"""Build the reference of the public API from its docstrings, as HTML: ``python -m tests.reference FOLDER``."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pdoc

__all__ = ["MODULES", "build"]

MODULES = (
    "cojoin",
    "cojoin.kafka",
    "cojoin.plots",
    "cojoin.testing",
    "cojoin.errors",
    "cojoin.sources",
    "cojoin.spark.sinks.sinks",
    "cojoin.types",
)
"""The public modules; ``cojoin.spark.sinks.sinks`` is ``cojoin.sinks``."""


def build(folder: Path) -> None:
    """Write the reference into a folder; a warning of pdoc is an error."""
    for name in MODULES:
        module = import_module(name)
        # pdoc looks into a module's dictionary, where names that are imported lazily are not yet.
        vars(module).update({each: getattr(module, each) for each in module.__all__})
        for each in module.__all__:
            if isinstance(kind := getattr(module, each), type):
                _show_inherited(kind)
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


def _show_inherited(kind: type) -> None:
    """Give a class the methods and properties of cojoin's bases, which pdoc would leave out of its page."""
    for base in kind.__mro__[1:]:
        for name, member in vars(base).items() if base.__module__.startswith("cojoin.") else ():
            if isinstance(member, (FunctionType, property)) and not name.startswith("_") and name not in vars(kind):
                setattr(kind, name, member)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
