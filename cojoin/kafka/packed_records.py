"""Records whose rows the reading task packs, so that they never become rows of Spark.

The task decodes values and keys, hashes the key columns as Spark does, and packs the rows by key group. A record of
which it is not sure that Spark would make the same row stays a record, and Spark decodes it (``record_columns``): such
as one with a fault, without a value, or whose JSON is not *settled* (``formats.arrow_json``). So do marks. The map side
passes on what is packed, and packs the rest (``spark.batch.packing``).

Before the start it is decided whether an input's tasks pack its rows. They do so where that gives the same rows as the
general way, in which Spark makes rows of the records. Both ways have the same offsets, so a checkpoint continues with
either. A task holds the rows of one chunk, and packing costs about 1 microsecond a record of 100 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.key_groups import is_hashed
from cojoin.engine.values.codec import binary_column
from cojoin.engine.values.types import parse_type, type_to_ddl
from cojoin.kafka.formats.arrow_json import is_settled_type, narrowed, parsed_json
from cojoin.kafka.records import DECODED, DECODED_KEY, FAULT, KEY, MARK, NEWEST, TIME, VALUE
from cojoin.session.sessions import active_session, is_left_to_spark
from cojoin.spark.batch.packing import CHUNK_BYTES, CHUNK_ROWS, READY_COLUMNS, cut, limits_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.kafka.record_columns import RecordColumn, RecordDescription
    from cojoin.spark.batch.packing import Grouping


Part: TypeAlias = Literal["value", "key", "column", "place"]
"""The origin of a row's column: the value, the key, a ``RecordColumn``, or the record's place in its topic."""

Json: TypeAlias = "Mapping[str, pa.Schema]"
"""The columns of JSON, by the record's column in which it is (``VALUE``, ``KEY`` or ``DECODED_KEY``)."""

_WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"
_DECODED_IN = {"value": DECODED, "key": DECODED_KEY}


@dataclass(frozen=True)
class PackedRecords:
    """Packs the rows of a task's records; it is sent to the workers.

    ``parts`` are the origins of the columns of ``grouping``, ``columns`` those of ``"column"`` by name. ``json`` are
    the columns of JSON that is parsed here; other values and keys are decoded already.
    """

    grouping: Grouping
    parts: tuple[Part, ...]
    columns: Mapping[str, RecordColumn]
    json: Json

    @staticmethod
    def schema(records: pa.Schema) -> pa.Schema:
        """Return the columns of the yielded batches, those of the records first."""
        group, payload = READY_COLUMNS
        return records.append(pa.field(group, pa.int32())).append(pa.field(payload, pa.binary()))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield packed rows, and the records and marks that Spark must see."""
        waiting: list[pa.Table] = []
        rows = size = 0
        for batch in batches:
            settled, others = self._split(batch)
            if others.num_rows:
                nothing = [pa.nulls(others.num_rows, dtype) for dtype in (pa.int32(), pa.binary())]
                yield pa.RecordBatch.from_arrays([*others.columns, *nothing], schema=self.schema(batch.schema))
            if not settled.num_rows:
                continue
            waiting.append(settled)
            rows, size = rows + settled.num_rows, size + settled.nbytes
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield self._packed(waiting, batch.schema)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield self._packed(waiting, batch.schema)

    def _split(self, batch: pa.RecordBatch) -> tuple[pa.Table, pa.RecordBatch]:
        """Return the rows of the settled records, and the other records."""
        signs = [batch.column(name).is_null().to_numpy(zero_copy_only=False) for name in (MARK, FAULT, NEWEST)]
        is_sure = np.logical_and.reduce(signs)
        parsed: dict[str, pa.Table] = {}
        for source, schema in self.json.items() if is_sure.any() else ():
            parsed[source], is_parsed = parsed_json(batch.column(source), schema)
            is_sure &= is_parsed
        if not is_sure.any():
            return self.grouping.schema.empty_table(), batch
        columns = []
        for field, part in zip(self.grouping.schema, self.parts, strict=True):
            column, fits = self._column(batch, field, part, parsed)
            is_sure &= fits
            columns.append(column)
        rows = pa.Table.from_arrays(columns, schema=self.grouping.schema)
        if is_sure.all():
            return rows, batch.slice(0, 0)
        sure = pa.array(is_sure)
        return rows.filter(sure), batch.filter(pc.invert(sure))

    def _column(
        self, batch: pa.RecordBatch, field: pa.Field, part: Part, parsed: Mapping[str, pa.Table]
    ) -> tuple[pa.Array, NDArray[np.bool_]]:
        """Return a column of the rows, and where it equals the column that Spark would make of the record."""
        surely = np.ones(batch.num_rows, np.bool_)
        if part == "place":
            return batch.column(field.name).cast(field.type), surely
        if part == "column":
            return _recorded(batch, self.columns[field.name])
        for source, rows in parsed.items():
            if (source == VALUE) == (part == "value"):
                return rows.column(field.name).combine_chunks().cast(field.type), surely
        return pc.struct_field(batch.column(_DECODED_IN[part]), field.name).cast(field.type), surely

    def _packed(self, waiting: list[pa.Table], records: pa.Schema) -> pa.RecordBatch:
        rows = pa.concat_tables(waiting).combine_chunks()
        pieces = [
            (piece.group, message) for piece in cut(rows, self.grouping.groups(rows)) for message in piece.messages
        ]
        nothing = [pa.nulls(len(pieces), dtype) for dtype in records.types]
        groups = pa.array([group for group, _ in pieces], pa.int32())
        return pa.RecordBatch.from_arrays(
            [*nothing, groups, binary_column([message for _, message in pieces])], schema=self.schema(records)
        )


def _recorded(batch: pa.RecordBatch, column: RecordColumn) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the timestamps or keys of records, and where they fit the column's type."""
    surely = np.ones(batch.num_rows, np.bool_)
    if column.part == "timestamp":
        return batch.column(TIME), surely
    keys, dtype = batch.column(KEY), parse_type(column.dtype)
    if pa.types.is_binary(dtype):
        return keys, surely
    texts, surely = _texts(keys)
    if pa.types.is_string(dtype):
        return texts, surely
    fits = pc.match_substring_regex(texts, _WHOLE_NUMBER).fill_null(True)
    numbers, is_held = narrowed(pc.if_else(fits, texts, None).cast(pa.int64()), dtype)
    return numbers, surely & fits.to_numpy(zero_copy_only=False) & is_held


def _texts(keys: pa.BinaryArray) -> tuple[pa.StringArray, NDArray[np.bool_]]:
    """Return bytes as texts, and which of them are."""
    try:
        return keys.cast(pa.string()), np.ones(len(keys), np.bool_)
    except pa.ArrowInvalid:
        fits = np.array([_is_text(each) for each in keys.to_pylist()])
        return pc.if_else(pa.array(fits), keys, None).cast(pa.string()), fits


def _is_text(content: bytes | None) -> bool:
    try:
        (content or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


_SETTING = "spark.cojoin.kafka"
_TIMES, _CORRECTED = "spark.sql.legacy.timeParserPolicy", "CORRECTED"


def why_through_spark(records: RecordDescription, spec: InputSpec, *, has_archive: bool) -> str | None:
    """Return why Spark makes rows of an input's records, in words; None where the tasks that read them pack them."""
    session = active_session()
    reasons = {
        "no Spark session is active": session is None,
        "it has an archive": has_archive,
        "its records are changes of rows": spec.changes is not None,
        "its event time is an expression": records.parts(spec.source_schema.names) is None,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is None and session is not None:
        why = _why_by_session(session)
    return why or _why_by_key(spec) or _why_unsettled(records.json, records.columns)


def _why_by_session(session: SparkSession) -> str | None:
    if is_left_to_spark(session, _SETTING):
        return f"{_SETTING} is spark"
    policy = str(session.conf.get(_TIMES, _CORRECTED))
    if policy.upper() != _CORRECTED:
        return f"{_TIMES} is {policy}"
    # A packed row may have megabytes.
    if not limits_bytes(session):
        return f"Spark {session.version} does not limit the bytes of a batch of rows"
    return None


def _why_by_key(spec: InputSpec) -> str | None:
    for name in spec.key:
        dtype = spec.source_schema.field(name).type
        if not is_hashed(dtype):
            return f"its key {name!r} is of the type {type_to_ddl(dtype)}"
    return None


def _why_unsettled(json: Json, columns: Mapping[str, RecordColumn]) -> str | None:
    """Return why the rows of no record can be settled; None if they can."""
    for field in [field for schema in json.values() for field in schema]:
        if not is_settled_type(field.type):
            return f"Spark alone parses JSON as its column {field.name!r}, of the type {type_to_ddl(field.type)}"
    for name, column in columns.items():
        dtype = parse_type(column.dtype)
        types = pa.types
        plain = types.is_string(dtype) or types.is_binary(dtype) or types.is_signed_integer(dtype)
        if column.part == "header" or (column.part == "key" and not plain):
            return f"Spark alone makes its column {name!r}, {column} as {column.dtype}"
    return None
