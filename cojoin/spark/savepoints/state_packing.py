"""Packs the parts of a state by key group, in Spark tasks: each key group's tables become one row of a snapshot.

Spark computes the key group of each row as it does for an input. A task of the first stage checks its rows and cuts
them by key group. A task of the second stage has all rows of a key group, looks for duplicate keys, and encodes the
tables. Faults are returned, and a state with a fault is not written. Packing costs one shuffle of the rows as packed
Arrow, and the memory of one key group for each task.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.key_state import BUFFERS, STATE
from cojoin.engine import rescaling
from cojoin.engine.display import show_row
from cojoin.engine.key_groups import group_labels
from cojoin.engine.values import codec
from cojoin.engine.values.codec import binary_column
from cojoin.engine.values.keys import encode_keys
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import take_rows
from cojoin.errors import CheckpointError
from cojoin.session.sealed import for_workers
from cojoin.spark.batch.packing import chunks, key_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.savepoints.state_parts import PartShape

CONTENT_DDL = "key_group int, content binary, statistics string"
"""A key group's number, its tables as bytes, and JSON: ``faults``, the rows of each table, and the largest times."""

_PIECE_DDL, _FAULTS = "label int, name string, payload binary", "@faults"
_PIECE = pa.schema([("label", pa.int32()), ("name", pa.string()), ("payload", pa.binary())])
_TIMERS = ("timers", "processing_timers")


@dataclass(frozen=True)
class Part:
    """One part of a state: its rows, with columns named by position, and its shape."""

    frame: DataFrame
    shape: PartShape


def packed_contents(
    spark: SparkSession,
    parts: Sequence[Part],
    schemas: Mapping[str, pa.Schema],
    inputs: tuple[InputSpec, InputSpec],
    key_groups: int,
) -> DataFrame:
    """Return the content of each key group, as rows of ``CONTENT_DDL``, with all tables of ``schemas``."""
    labels = group_labels(key_groups)
    # An empty piece per key group, so that a key group without keys has a row, too.
    pieces = spark.createDataFrame(
        pa.table([pa.array(labels, pa.int32()), [""] * key_groups, [b""] * key_groups], schema=_PIECE)
    )
    for part in parts:
        pieces = pieces.unionByName(_pieces(part, labels))
    numbers = {label: number for number, label in enumerate(labels)}

    def assemble(table: pa.Table) -> pa.Table:
        label, names = int(table.column("label")[0].as_py()), table.column("name").to_pylist()
        payloads = [each.as_buffer() for each in table.column("payload")]
        tables, faults = assemble_group(zip(names, payloads, strict=True), schemas, inputs)
        return content_row(numbers[label], tables, faults, largest=largest_times(tables, inputs))

    # Otherwise Spark would coalesce small key groups into one task, and one core would encode them all.
    return pieces.repartition(key_groups, "label").groupBy("label").applyInArrow(for_workers(assemble), CONTENT_DDL)


def _pieces(part: Part, labels: tuple[int, ...]) -> DataFrame:
    shape = part.shape
    hashed, spread = ([F.col(f"c{at}") for at in places] for places in (shape.keys, shape.spreading))
    group = key_group(hashed, len(labels), spread).alias("group")

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (pack_rows(chunk, shape, labels) for chunk in chunks(batches))

    return part.frame.select("*", group).mapInArrow(for_workers(pack), _PIECE_DDL)


def pack_rows(numbered: pa.Table, shape: PartShape, labels: Sequence[int]) -> pa.RecordBatch:
    """Return rows of a part, cut by key group, as pieces of the state's tables; or their faults.

    The last column of ``numbered`` is the key group's number.
    """
    groups = numbered.column(numbered.num_columns - 1).to_numpy()
    try:
        rows = shape.convert(numbered.select(range(numbered.num_columns - 1)))
    except CheckpointError as error:
        faults: Counter[str] = Counter({f"{shape.label}: {error}": numbered.num_rows})
    else:
        faults = shape.faults(rows)
    if faults:
        return _batch([labels[0]], [_FAULTS], [json.dumps(faults).encode()])
    pieces: list[tuple[int, str, bytes]] = []
    order = np.argsort(groups, kind="stable")
    in_order = take_rows(rows, order)
    bounds = np.searchsorted(groups[order], np.arange(len(labels) + 1)).tolist()
    for group, (start, stop) in enumerate(pairwise(bounds)):
        tables = shape.tables(in_order.slice(start, stop - start)) if stop > start else {}
        pieces += [(labels[group], name, codec.encode({}, {"": own})) for name, own in tables.items() if own.num_rows]
    return _batch([label for label, _, _ in pieces], [name for _, name, _ in pieces], [rows for *_, rows in pieces])


def _batch(labels: list[int], names: list[str], payloads: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(labels, pa.int32()), pa.array(names, pa.string()), binary_column(payloads)], schema=_PIECE
    )


def assemble_group(
    pieces: Iterable[tuple[str, pa.Buffer]], schemas: Mapping[str, pa.Schema], inputs: tuple[InputSpec, InputSpec]
) -> tuple[dict[str, pa.Table], Counter[str]]:
    """Return the tables of a key group, and their faults, from the pieces of ``pack_rows`` with their tables' names."""
    faults: Counter[str] = Counter()
    tables_by_name: defaultdict[str, list[pa.Table]] = defaultdict(list)
    for name, payload in pieces:
        if name == _FAULTS:
            faults.update(json.loads(payload.to_pybytes()))
        elif name:
            tables_by_name[name].append(codec.decode(payload.to_pybytes())[1][""])
    empty = {name: schema.empty_table() for name, schema in schemas.items()}
    tables = rescaling.assemble([empty, *({name: table} for name, each in tables_by_name.items() for table in each)])
    for name, table in tables.items():
        if not table.num_rows or not (name.startswith(STATE) or name in _TIMERS):
            continue
        keys = table if name in _TIMERS else table.select(rescaling.key_columns(name, inputs))
        (codes,), count = encode_keys([keys])
        if count == table.num_rows:
            continue
        first = np.sort(np.unique(codes, return_index=True)[1])
        if name in _TIMERS:
            # Equal timers are one timer, as in Flink.
            tables[name] = take_rows(table, first)
        else:
            twice = np.setdiff1d(np.arange(table.num_rows), first)
            key = decode_rows(take_rows(keys, twice[:1]), beyond=str)[0].as_dict()
            why = f"state {name.removeprefix(STATE)!r}: a key occurs more than once, such as {show_row(key)}"
            faults[why] += len(twice)
    return {name: table.combine_chunks() for name, table in tables.items()}, faults


def largest_times(tables: Mapping[str, pa.Table], inputs: tuple[InputSpec, InputSpec]) -> list[int | None]:
    """Return the largest timestamp of each input's rows, in epoch milliseconds; None where there is none."""
    owners = {name: side for name, (side, _) in BUFFERS.items()} | {"versions": 1}
    largest: list[int | None] = [None, None]
    for name, side in owners.items():
        spec = inputs[side]
        if name in tables and tables[name].num_rows and spec.event_time is not None:
            newest = int(spec.millis(tables[name]).max())
            largest[side] = max(newest, newest if largest[side] is None else int(largest[side]))  # type: ignore[arg-type]
    return largest


def content_row(group: int, tables: Mapping[str, pa.Table], faults: Mapping[str, int], **statistics: Any) -> pa.Table:
    """Return a key group's row of ``CONTENT_DDL``."""
    rows = {name: table.num_rows for name, table in tables.items()}
    text = json.dumps({"faults": dict(faults), "rows": rows, **statistics})
    content = codec.encode({}, {} if faults else tables)
    return pa.table(
        [pa.array([group], pa.int32()), pa.array([content], pa.binary()), [text]],
        names=["key_group", "content", "statistics"],
    )
