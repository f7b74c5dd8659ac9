"""Imports PySpark from where pip has installed it, in the Python processes that Spark starts.

Spark names an archive in front of it, without compiled modules, which takes half a second more: for the daemon of the
workers, and for each streaming source in Python. ``spark_session`` names this folder in the import path of these
processes, where Python looks for a module of this name at its start. Other processes import nothing here. The next
module of this name in the import path, such as one of the user's, runs afterwards and takes this one's place.
"""

from __future__ import annotations

import contextlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _import_installed() -> None:
    """Import PySpark from its installed folder, if an import path names its archive."""
    folders = []
    for path in map(Path, sys.path):
        if path.parts[-4:] == ("pyspark", "python", "lib", "pyspark.zip"):
            folder = path.parents[3]
            folders += [str(folder)] if (folder / "pyspark" / "daemon.py").is_file() else []
    paths = list(sys.path)
    sys.path[:0] = folders
    # An error is raised again where Spark imports it, with its own message.
    with contextlib.suppress(Exception):
        import pyspark  # noqa: F401, PLC0415 - its other modules come from where it is found now
    sys.path[:] = paths


def _run_next() -> None:
    """Run the module that Python would have run without this folder."""
    own = str(Path(__file__).parent)
    folders = sys.path[sys.path.index(own) + 1 :] if own in sys.path else []
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if any(argument.startswith("pyspark.") for argument in sys.orig_argv):
    _import_installed()
_run_next()
