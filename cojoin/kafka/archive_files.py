"""The archive's parquet files, read by the tasks with pyarrow: only the row groups and columns that are needed.

Rows have the same columns and faults as those of Kafka, in pieces of the same maximal size. A row group is read page by
page, because those that Spark writes hold 128 MB and more. An offset that occurs twice ends the query. It costs about a
microsecond a record; a file whose offsets are not in order is read completely by each batch that needs some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.kafka.client import name_of
from cojoin.kafka.records import (
    DECODED,
    DECODED_KEY,
    FAULT,
    HEADERS,
    KEY,
    PARTS,
    PIECE_BYTES,
    PIECE_RECORDS,
    TIME,
    TOMBSTONE,
    VALUE,
    Record,
    decode_all,
    decode_parts,
)
from cojoin.storage.file_systems import open_file
from cojoin.storage.parquet_files import read_footer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.kafka.archive_index import Piece
    from cojoin.kafka.client import Partition
    from cojoin.kafka.records import RecordFormat
    from cojoin.kafka.tasks import ArchivedSpan
    from cojoin.storage.object_store_settings import Settings

# How much of a column's pages is read at once, so that a row group is never in memory as a whole.
_READ_BYTES = 2 << 20
_NO_TIME = pa.scalar(-1_000, PARTS[TIME])


class Footer(NamedTuple):
    """The number of rows of a parquet file and the names of its columns, from its footer."""

    rows: int
    columns: frozenset[str]


def footer(uri: str, label: str, places: Mapping[str, Settings]) -> Footer:
    """Read a parquet file's footer; a file that can't be read is a ConfigurationError."""
    try:
        with open_file(uri, label, places) as file:
            metadata = read_footer(file)
        return Footer(metadata.num_rows, frozenset(metadata.schema.to_arrow_schema().names))
    except (pa.ArrowException, OSError) as error:
        msg = f"{label}: pyarrow, by which the tasks read its files, can't read {uri}: {error}"
        raise ConfigurationError(msg) from error


def archived(
    spans: Sequence[ArchivedSpan], form: RecordFormat, label: str, held: dict[Partition, set[int]]
) -> Iterator[pa.RecordBatch]:
    """Read a task's records from the archive; ``held`` receives the offsets read where the brokers fill holes."""
    for span in spans:
        seen: list[Any] = []
        for piece in span.pieces:
            if piece.end <= span.begin or span.end <= piece.begin:
                continue
            try:
                for batch in _rows(piece, span, form):
                    seen.append(batch.column("offset").to_numpy())
                    yield batch
            except FileNotFoundError as error:
                msg = (
                    f"{label}: the archive's file {piece.path} is gone: the archive was rewritten or cleaned since the "
                    f"query started; start it again"
                )
                raise QueryFailedError(msg) from error
            except (pa.ArrowException, OSError) as error:
                msg = f"{label}: the archive's file {piece.path} can't be read: {error}"
                raise QueryFailedError(msg) from error
        _check_once(seen, span, label)
        if span.is_filled:
            held.setdefault(span.partition, set()).update(*(each.tolist() for each in seen))


def _check_once(seen: Sequence[Any], span: ArchivedSpan, label: str) -> None:
    offsets = np.sort(np.concatenate(seen)) if seen else np.empty(0, np.int64)
    twice = offsets[1:][offsets[1:] == offsets[:-1]]
    if len(twice):
        files = ", ".join(each.path for each in span.pieces if each.begin <= twice[0] < each.end)
        msg = (
            f"{label}: the archive has offset {twice[0]:,} of {name_of(span.partition)} twice, in {files}; "
            f"rewrite it with each record once"
        )
        raise QueryFailedError(msg)


def _rows(piece: Piece, span: ArchivedSpan, form: RecordFormat) -> Iterator[pa.RecordBatch]:
    assert form.archive is not None
    # Spark writes timestamps as INT96 by default, which pyarrow would convert to nanoseconds; those end in 2262.
    options: dict[str, Any] = {"coerce_int96_timestamp_unit": "us", "pre_buffer": False, "buffer_size": _READ_BYTES}
    with open_file(piece.path, "the archive", form.archive.places) as stored, pq.ParquetFile(stored, **options) as file:
        own = {name.lower(): name for name in file.schema_arrow.names}
        names, wanted = form.archive.names, [*form.archive.names.values(), *(form.archive.fields or ())]
        columns = {own[name.lower()]: name for name in wanted if name.lower() in own}
        # A file without these columns lies in a folder whose name has their values, so all its rows have the same ones.
        places = zip(("topic", "partition"), piece.partition, strict=True)
        place = {names[name]: value for name, value in places if names[name].lower() in own}
        for group in range(file.metadata.num_row_groups):
            rows = _rows_at_once(file.metadata.row_group(group), set(columns), own[names["offset"].lower()], span)
            if not rows:
                continue
            for batch in file.iter_batches(rows, [group], list(columns), use_threads=False):
                chosen = _chosen(batch.rename_columns(columns), names["offset"], place, span)
                if chosen.num_rows:
                    yield _converted(chosen, piece, form)


def _rows_at_once(group: Any, columns: set[str], offset: str, span: ArchivedSpan) -> int:
    """Return how many rows of a row group make a piece; 0 where it holds nothing of a range."""
    size, count = 1, int(group.num_rows)
    for number in range(group.num_columns):
        column = group.column(number)
        name = column.path_in_schema
        known = column.statistics if name == offset and column.is_stats_set else None
        if known is not None and known.has_min_max and (known.max < span.begin or span.end <= known.min):
            return 0
        # The names of a nested column's parts begin with its name.
        if any(name == each or name.startswith(f"{each}.") for each in columns):
            size += column.total_uncompressed_size
    return max(1, min(PIECE_RECORDS, count * PIECE_BYTES // size))


def _chosen(batch: pa.RecordBatch, offset: str, place: Mapping[str, Any], span: ArchivedSpan) -> pa.RecordBatch:
    offsets = batch.column(offset)
    chosen = pc.and_(pc.greater_equal(offsets, span.begin), pc.less(offsets, span.end))
    for name, value in place.items():
        chosen = pc.and_(chosen, pc.equal(batch.column(name), value))
    return batch if pc.all(chosen, skip_nulls=False).as_py() else batch.filter(chosen)


def _converted(batch: pa.RecordBatch, piece: Piece, form: RecordFormat) -> pa.RecordBatch:
    """Return rows of a file in the form of those of Kafka."""
    assert form.archive is not None
    count, names, fields = batch.num_rows, form.archive.names, form.archive.fields
    topic, number = piece.partition
    made = {DECODED, DECODED_KEY}
    columns = {own.name: _column(batch, names.get(own.name), own.type) for own in form.schema if own.name not in made}
    if TIME in columns:
        columns[TIME] = _times(columns[TIME])
    columns["topic"] = pa.repeat(pa.scalar(topic, pa.string()), count)
    columns["partition"] = pa.repeat(pa.scalar(number, pa.int32()), count)
    faults: list[str | None] = [None] * count
    if fields is None or form.decoded is None:
        parts = [_column(batch, names[VALUE], pa.binary())]
    else:
        parts = [_column(batch, name, field.type) for name, field in zip(fields, form.decoded, strict=True)]
        columns[DECODED] = pa.StructArray.from_arrays(parts, fields=list(form.decoded))
    if not form.keeps_tombstones:
        nothing = np.logical_and.reduce([part.is_null().to_numpy(zero_copy_only=False) for part in parts])
        faults = [TOMBSTONE if each else None for each in nothing.tolist()]
    if fields is None and form.decode is not None and form.decoded is not None:
        records = _records(batch, piece, parts[0], names)
        columns[DECODED] = decode_all(records, form.decode, form.decoded, faults)
    if form.value is not None or form.key is not None:
        keys = [] if form.key is None else _column(batch, names.get(KEY), pa.binary()).to_pylist()
        in_columns = fields is not None
        raw = [None] * count if in_columns else parts[0].to_pylist()
        headers = _headers(batch, names) if HEADERS in names else None
        decoded = decode_parts(form, raw, keys, faults, headers)
        # The archive's own columns stay, where it has them instead of values.
        columns |= {name: each for name, each in decoded.items() if not in_columns or name == DECODED_KEY}
    columns[FAULT] = pa.array(faults, pa.string())
    return pa.RecordBatch.from_arrays([columns[name] for name in form.schema.names], schema=form.schema)


def _column(batch: pa.RecordBatch, name: str | None, dtype: pa.DataType) -> pa.Array:
    """Return a column in its type; one that the file or the archive does not have is all nulls."""
    if name is None or name not in batch.schema.names:
        return pa.nulls(batch.num_rows, dtype)
    column = batch.column(name)
    return column if column.type == dtype else column.cast(dtype)


def _headers(batch: pa.RecordBatch, names: Mapping[str, str]) -> list[list[tuple[str, bytes | None]]]:
    lists = _column(batch, names.get(HEADERS), PARTS[HEADERS]).to_pylist()
    return [[(each["key"], each["value"]) for each in some or ()] for some in lists]


def _times(times: pa.Array) -> pa.Array:
    """Return timestamps, null where Spark's Kafka source has made a moment of the -1 that stands for none."""
    return pc.if_else(pc.equal(times, _NO_TIME), pa.scalar(None, times.type), times)


def _records(
    batch: pa.RecordBatch, piece: Piece, values: pa.Array, names: Mapping[str, str]
) -> Iterator[Record | None]:
    """Yield rows as records for a user's ``decode``; a tombstone is None, and so is a missing key or time."""
    offsets = batch.column(names["offset"]).to_pylist()
    times = _times(_column(batch, names[TIME], PARTS[TIME])).cast(pa.int64()).to_pylist()
    keys = _column(batch, names.get(KEY), pa.binary()).to_pylist()
    headers = _headers(batch, names)
    for offset, time, key, value, named in zip(offsets, times, keys, values.to_pylist(), headers, strict=True):
        if value is None:
            yield None
        else:
            yield Record(*piece.partition, offset, None if time is None else time // 1000, key, value, named)
