"""A key group takes a load whole or not at all, and tells a damaged one; no Spark is needed for that."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.key_groups import group_labels
from cojoin.spark.batch.control_input import LoadedRows, closing_messages, load_id
from cojoin.spark.batch.packing import CONTROL_TAG, GROUP_COLUMN, LOADED_TAG, Packer
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

import cojoin as cj

CUSTOMERS = pa.schema([("id", pa.int64()), ("since", pa.timestamp("us", "UTC")), ("tier", pa.string())])
SPEC = InputSpec("customers", CUSTOMERS, ("id",), "since", static=True)
GROUPS, LABELS = 2, group_labels(2)
ONE, TWO = (f"load-{number}-{digit * 32}" for number, digit in ((1, "a"), (2, "b")))


def message(name: str, payload: bytes, checksum: int | None = None) -> pa.Buffer:
    """Return what Spark makes of a row of a load."""
    found = zlib.crc32(payload) if checksum is None else checksum
    return pa.py_buffer(load_id(name) + found.to_bytes(8, "big") + payload)


def load(name: str, rows: int, tasks: int = 2, *, timed: bool = True) -> tuple[list[tuple[int, pa.Buffer]], pa.Table]:
    """Return a load's messages with the labels of their key groups, and its closing messages."""
    spec = SPEC if timed else InputSpec("customers", CUSTOMERS, ("id",), None, static=True)
    packed: list[tuple[int, pa.Buffer]] = []
    notes: list[tuple[int, str]] = []
    for task in range(tasks):
        ids = np.arange(task, rows, tasks)
        table = pa.table([ids, pa.array(ids * 1_000, CUSTOMERS.field(1).type), ids.astype(str)], schema=CUSTOMERS)
        columns = [*table.columns, pa.array((ids % GROUPS).astype(np.int32))]
        chunk = pa.table(columns, names=["c0", "c1", "c2", GROUP_COLUMN])
        for batch in Packer(spec, LOADED_TAG, LABELS)(chunk.to_batches()):
            for row in batch.to_pylist():
                if row["tag"] == CONTROL_TAG:
                    notes.append((row["key_group"], row["payload"].decode()))
                else:
                    packed.append((row["key_group"], message(name, row["payload"])))
    return packed, closing_messages(name, "some-id", 7, GROUPS, notes)


def closings(table: pa.Table, label: int) -> Iterator[pa.Buffer]:
    for row in table.to_pylist():
        if row["key_group"] == label:
            assert row["tag"] == LOADED_TAG
            assert row["load"] == load_id(ONE if b"load-1" in row["payload"] else TWO)
            yield message(ONE if b"load-1" in row["payload"] else TWO, row["payload"], row["checksum"])


def collected(label: int, *loads: tuple[list[tuple[int, pa.Buffer]], pa.Table | None]) -> LoadedRows:
    rows = LoadedRows(SPEC, 4)
    for packed, closing in loads:
        for own, found in packed:
            if own == label:
                rows.add(found)
        for found in [] if closing is None else closings(closing, label):
            rows.add(found)
    return rows


@pytest.mark.parametrize("rows", [0, 1, 5_000])
def test_each_key_group_takes_its_rows_with_their_count(rows: int) -> None:
    taken = []
    for label in LABELS:
        found, pieces = collected(label, load(ONE, rows)).take()
        assert found is not None
        assert (found.load, found.table_id, found.version, found.batch_id) == (ONE, "some-id", 7, 4)
        assert found.largest == (rows - 1 if rows else None)
        assert found.rows == sum(piece.num_rows for piece in pieces)
        taken += [each for piece in pieces for each in piece.column(0).to_pylist()]
    assert sorted(taken) == [*range(rows)]


def test_rows_without_event_time_tell_no_largest_one() -> None:
    found, _ = collected(LABELS[0], load(ONE, 9, timed=False)).take()
    assert found is not None
    assert found.largest is None


def test_rows_that_nothing_closes_are_those_of_a_run_that_was_fenced_off() -> None:
    whole, half = load(TWO, 30), load(ONE, 20)
    found, pieces = collected(LABELS[1], (half[0], None), whole).take()
    assert found is not None
    assert found.load == TWO
    assert sum(piece.num_rows for piece in pieces) == 15
    assert collected(LABELS[1], (half[0], None)).take() == (None, [])


def test_of_two_loads_in_one_batch_the_later_one_holds() -> None:
    found, _ = collected(LABELS[0], load(TWO, 8), load(ONE, 12)).take()
    assert found is not None
    assert found.load == TWO


def test_a_load_that_lacks_rows_or_has_too_many_is_refused() -> None:
    packed, closing = load(ONE, 100)
    for wrong in (packed[:-1], [*packed, packed[-1]]):
        rows = collected(packed[-1][0], (wrong, closing))
        with refused("the load " + "a" * 32 + " of input 'customers'", "rows in place of 50", kind=cj.CheckpointError):
            rows.take()


def test_a_damaged_message_is_refused() -> None:
    packed, _ = load(ONE, 10)
    whole = packed[0][1].to_pybytes()
    for at in (20, 30, len(whole) - 1):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with refused("another checksum", "put the checkpoint back", kind=cj.CheckpointError):
            LoadedRows(SPEC, 0).add(pa.py_buffer(damaged))
    for cut in (whole[:24], whole[:7], b""):
        with refused("another checksum", kind=cj.CheckpointError):
            LoadedRows(SPEC, 0).add(pa.py_buffer(cut))
