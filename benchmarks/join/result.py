"""Which parquet files a contender's result consists of: a folder's, or those of a Delta table's newest version."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

__all__ = ["count_rows", "result_files"]


def result_files(folder: Path, sink: str) -> list[Path]:
    """List the files that hold the result."""
    if sink == "delta":
        return _delta_files(folder)
    files = sorted(folder.rglob("*.parquet"))
    return [path for path in files if not any(part[0] in "_." for part in path.relative_to(folder).parts)]


def count_rows(files: list[Path]) -> int:
    """Count their rows."""
    return sum(pq.read_metadata(path).num_rows for path in files)


def _delta_files(folder: Path) -> list[Path]:
    """Follow the log from its first version; a benchmark's table is too young for any of it to be cleaned away."""
    names: dict[str, None] = {}
    for version in sorted((folder / "_delta_log").glob("[0-9]*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                names[action["add"]["path"]] = None
            elif "remove" in action:
                names.pop(action["remove"]["path"], None)
    return [folder / unquote(name) for name in names]
