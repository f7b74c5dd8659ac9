"""Which version's rows a batch of a change feed reads as the snapshot, by the lines of Spark's offset log."""

from __future__ import annotations

import json

import pytest

from cojoin.spark.query.input_progress import snapshot_of


def line(version: int, index: int = -1, *, snapshot: bool = False) -> str:
    """Return a position as Delta's source writes it."""
    at = {"reservoirVersion": version, "index": index, "isStartingVersion": snapshot}
    return json.dumps({"sourceVersion": 1, "reservoirId": "id", **at})


@pytest.mark.parametrize(
    ("begin", "end", "version"),
    [
        ("-", line(3, 0, snapshot=True), 3),
        (line(3, 0, snapshot=True), line(3, 1, snapshot=True), 3),
        (line(3, 1, snapshot=True), line(4), 3),
        # The rest of the snapshot, and commits after it.
        (line(3, 1, snapshot=True), line(9, 2), 3),
        # All of it in the first batch, also of an empty table.
        ("-", line(4), 3),
        ("-", line(1), 0),
        (line(4), line(9), None),
        (line(4, 2), line(4, 5), None),
        ("-", "-", None),
    ],
)
def test_the_snapshot_is_where_delta_takes_it(begin: str, end: str, version: int | None) -> None:
    assert snapshot_of(begin, end) == version
