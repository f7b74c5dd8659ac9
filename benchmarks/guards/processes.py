"""The ways that need no shared session: frames in memory, an empty batch, a first row, a state beyond its memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import batch, first_row
from benchmarks.frames import ARROW, PANDAS, frames, least_seconds
from benchmarks.join.generate import generate
from benchmarks.state.memory import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PROCESSES"]

_FRAME_ROWS, _BATCHES, _BUDGET, _TIMES = 300_000, 32, 32 << 20, 10


def _frames() -> float:
    """Return the CPU of the join of two Arrow tables, over that of pandas' ``merge_asof``."""
    least = least_seconds(*frames(_FRAME_ROWS), rounds=5)
    return least[ARROW] / least[PANDAS]


def _empty_batch() -> float:
    """Return the time of a batch without rows, over that of plain Spark's batch of three rows."""
    ours, floor = (batch.run_in_process(*way, _BATCHES) for way in (("empty", "cojoin"), ("few rows", "plain")))
    return float(ours["triggerExecution"] / floor["triggerExecution"])


def _first_row() -> float:
    """Return the time to the first rows of a session's second query, over that of plain Spark's copy."""
    with tempfile.TemporaryDirectory(prefix="cojoin-first-row-") as name:
        generate(first_row.SIZE, Path(name) / "data")
        ours, floor = (first_row.run_in_process(way, Path(name)) for way in ("files", "plain"))
    return ours["warm"]["first row"] / floor["warm"]["first row"]


def _memory() -> float:
    """Return a worker's peak over its budget of memory, of which its state has ten times as much."""
    own, _, (is_right, *_), _ = measure(_BUDGET, _TIMES)
    assert is_right, "rows of the state are missing, or wrong"
    return own / _BUDGET


def _again(measured: Callable[[], float], way: str) -> Iterator[float]:
    while True:
        ratio = measured()
        print(f"{way}: {ratio:.2f}", flush=True)
        yield ratio


PROCESSES = {
    way: _again(measured, way)
    for way, measured in {
        "frames": _frames,
        "empty-batch": _empty_batch,
        "first-row": _first_row,
        "memory": _memory,
    }.items()
}
"""For each way its ratios, each measured when it is asked for; a wrong result is an ``AssertionError``."""
