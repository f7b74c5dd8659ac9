"""Columns that come while a query runs: the result is that of inputs that had them from the beginning, then null."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.operator import Batch
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.values import codec
from cojoin.engine.values.tables import concat
from tests.segments import MemoryStore
from tests.streams import SCHEMAS, SLICES, Delivery, Streams, assert_conserved, deliveries, map_side, streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.input_spec import InputSpec

ADDED = (pa.field("note", pa.string()), pa.field("rank", pa.int64()))
"""The column that each input gets; the left's comes last, the right's first."""

OPERATIONS = [
    AsofJoin("left", suffixes=("", "_customer")),
    AsofJoin("inner", "5 ms", suffixes=("", "_customer")),
    TemporalJoin("left", suffixes=("", "_customer")),
    IntervalJoin("-5 ms", "5 ms", "full", suffixes=("", "_customer")),
]


def evolved(inputs: tuple[InputSpec, InputSpec]) -> tuple[InputSpec, InputSpec]:
    left, right = inputs
    return (
        replace(left, schema=pa.schema([*left.schema, ADDED[0]])),
        replace(right, schema=pa.schema([ADDED[1], *right.schema])),
    )


def wider(batch: Batch, number: int | None) -> Batch:
    """Give a batch's rows the new columns; None is a batch from before, whose rows have null."""
    left, right = batch.rows
    notes = [None if number is None else f"{number}" for _ in range(left.num_rows)]
    ranks = [number] * right.num_rows
    left = left.append_column(ADDED[0], pa.array(notes, pa.string()))
    right = right.add_column(0, ADDED[1], pa.array(ranks, pa.int64()))
    return replace(batch, rows=(left, right))


def of_group(operation: Any, batches: Sequence[Batch], inputs: Any, since: int, limit: int | None) -> list[Any]:
    """Run a key group's batches, which have the new columns from one on."""
    store, found = MemoryStore(), []
    options = None if limit is None else SegmentOptions(limit, memory_bytes=SLICES)
    operator = operation.create_operator(*inputs)
    for number, batch in enumerate(batches):
        if number == since:
            saved = codec.encode(*operator.flush()[:2])
            operator.close()
            operator = operation.create_operator(*evolved(inputs))
            operator.segmenting = options and SegmentContext(store)
            operator.restore(saved)
        operator.segmenting = options and SegmentContext(store, options, 0, number)
        own = batch if number < since else wider(batch, number)
        for emission in operator.process(replace(own, end_of_input=number == len(batches) - 1)):
            found += [{"note": None, "rank": None, **row, "kind": emission.kind} for row in emission.table.to_pylist()]
        operator.flush()
        assert_conserved([operator.report()])
    operator.close()
    return found


def at_once(operation: Any, batches: Sequence[Batch], inputs: Any, since: int) -> list[Any]:
    """Run the same rows in one batch, of inputs that had the columns all along."""
    own = [wider(batch, None if number < since else number) for number, batch in enumerate(batches)]
    left, right = (concat([each.rows[side] for each in own]) for side in (0, 1))
    operator = operation.create_operator(*evolved(inputs))
    whole = Batch((left, right), [control for each in own for control in each.controls], end_of_input=True)
    found = [
        {**row, "kind": emission.kind} for emission in operator.process(whole) for row in emission.table.to_pylist()
    ]
    operator.close()
    return found


@given(st.data(), streams(), st.sampled_from(OPERATIONS))
def test_rows_that_wait_have_null_in_columns_that_come(data: st.DataObject, given: Streams, operation: Any) -> None:
    delivery: Delivery = data.draw(deliveries(given))
    since = data.draw(st.integers(0, len(delivery.batches)))
    groups = list(
        zip(*(map_side(given, rows, delivery.key_groups) for rows in [*delivery.batches, ([], [])]), strict=True)
    )
    for batches in groups:
        found = of_group(operation, batches, given.inputs, since, delivery.segment_bytes)
        expected = at_once(operation, batches, given.inputs, since)
        assert sorted(map(spelled, found)) == sorted(map(spelled, expected))


def spelled(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def test_the_columns_are_those_that_were_drawn() -> None:
    assert all(field.name not in schema.names for field, schema in zip(ADDED, SCHEMAS, strict=True))
