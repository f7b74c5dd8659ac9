"""Random streams as inputs in memory: in every form in which people have rows, with Spark's types and with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import cojoin as cj
from tests.engine.joins.tombstones import CLOSED
from tests.streams import SCHEMAS, Streams, table

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMS", "connect", "rows_of"]


def as_it_is(rows: pa.Table) -> Any:
    return rows


def in_chunks(rows: pa.Table) -> Any:
    return pa.Table.from_batches(rows.to_batches(max_chunksize=3), schema=rows.schema)


def as_reader(rows: pa.Table) -> Any:
    return rows.to_reader(max_chunksize=2)


def as_categories(rows: pa.Table) -> Any:
    """Return texts as categories and as large ones, and times in nanoseconds of another zone, as pandas has them."""
    columns = []
    for column in rows.columns:
        if pa.types.is_string(column.type):
            columns.append(column.dictionary_encode() if len(columns) % 2 else column.cast(pa.large_string()))
        elif pa.types.is_timestamp(column.type):
            columns.append(column.cast(pa.timestamp("ns", "Asia/Kolkata")))
        else:
            columns.append(column)
    return pa.table(columns, names=rows.column_names)


def as_pandas(rows: pa.Table) -> Any:
    """Return the rows as pandas has them, with Arrow's types where its own would change a null or a NaN."""
    import pandas as pd

    return rows.to_pandas(types_mapper=pd.ArrowDtype)


class Streamed:
    """Rows that are known by the C data interface alone."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)


FORMS = st.sampled_from([as_it_is, in_chunks, as_reader, as_categories, as_pandas, Streamed])


def connect(
    streams: Streams, forms: tuple[Callable[[pa.Table], Any], Callable[[pa.Table], Any]], *, closed: bool = False
) -> cj.ConnectedInputs:
    """Connect streams in memory; ``closed`` adds the column that says which customers are deleted."""
    inputs = []
    for spec, rows, schema, form in zip(streams.inputs, streams.rows, SCHEMAS, forms, strict=True):
        frame = table(rows, schema)
        if closed and spec.name == "customers":
            frame = frame.append_column(CLOSED, closed_of(frame))
        delay = spec.watermark.generator.out_of_orderness_ms  # type: ignore[attr-defined]
        inputs.append(
            cj.Input(
                form(frame),
                key=spec.key,
                event_time=spec.event_time,
                name=spec.name,
                partition=spec.partition,
                sequence=spec.sequence,
                watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{delay} ms"),
            )
        )
    return cj.connect(*inputs)


def closed_of(customers: pa.Table) -> pa.ChunkedArray:
    """Return which customers are deleted, as ``tombstones`` has it."""
    known = pc.is_in(customers.column("tier"), value_set=pa.array(["silver", "gold"]))
    return pc.if_else(known, pc.equal(customers.column("tier"), "silver"), pa.scalar(None, pa.bool_()))


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.to_pylist()]
