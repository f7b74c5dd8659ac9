"""Rows in memory as the two inputs of a join: read as Arrow tables with Spark's types, their columns found and checked.

pandas, pyarrow, and whatever has ``__arrow_c_stream__`` are read. Rows keep their order. It costs one copy where a type
must change, and none where it is Spark's already; of a pandas DataFrame always one (``pandas_frames``). The memory that
a run needs is estimated from its inputs' sizes before it starts.

A column without any value, such as that of an empty day, has no type in pandas. As a key it takes the other input's
type, as event time, or as the begin or end of a row's validity, it becomes a timestamp. Rows with a span of validity
are made into versions and deletes at once (``row_changes``), so batches count both.

The lateness of rows in memory (``engine.lateness``) is counted after they are sorted by partition and arrival. It costs
a sort unless they are in order, and some 50 bytes a row besides the rows.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.embedded.libraries import is_pandas, is_polars, library_of, value_faults
from cojoin.engine.display import format_bytes
from cojoin.engine.input import Input, InputColumns, check_names, check_pair
from cojoin.engine.lateness import Lateness, LatenessCounter, arrival_order
from cojoin.engine.row_changes import check_validity
from cojoin.engine.values.tables import as_spark_column
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.embedded.libraries import Library
    from cojoin.engine.input import Advice
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.lateness import ArrivalOrder
    from cojoin.engine.values.arguments import Duration

_PEAK = 3
"""How many times its inputs' bytes a run needs at least: the inputs, their sorted copies and the output."""

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _check_memory(held: int, coming: int, label: str) -> None:
    """Check that a run fits into memory: bytes that are held already, and bytes still to be copied or read."""
    free = available_memory()
    needed = (_PEAK - 1) * held + _PEAK * coming
    if free is not None and needed > free:
        msg = (
            f"{label}: their {format_bytes(held + coming)} would need about {format_bytes(needed)} more memory in this "
            f"process, and {format_bytes(free)} are free; select fewer columns or a shorter time, or join them on "
            f"Spark, which spills to disk: Input(spark.read.parquet(...), ...)"
        )
        raise ConfigurationError(msg)


def available_memory() -> int | None:
    """Return how many bytes this process may still use, by the machine and by its container; None if unknown."""
    limits = [free for free in (_of_machine(), *(_of_cgroup(*files) for files in _CGROUP_LIMITS)) if free is not None]
    return min(limits, default=None)


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_cgroup(limit: str, used: str) -> int | None:
    try:
        return int(Path(limit).read_text("ascii")) - int(Path(used).read_text("ascii"))
    except (OSError, ValueError):
        return None


_READ: WeakSet[Any] = WeakSet()
"""The readers that were read; each can be read only once."""


def is_frame(source: Any) -> bool:
    """Return whether a value is rows in memory: a frame, a table, or a stream of Arrow batches."""
    if any(each.__module__.split(".")[0] == "pyspark" for each in type(source).__mro__):
        return False
    return is_pandas(source) or any(hasattr(source, name) for name in ("__arrow_c_stream__", "__arrow_c_array__"))


def _size_of(source: Any) -> int:
    """Return the size of rows in memory in bytes, as far as it is known before they are read; 0 if it is not."""
    if is_pandas(source):
        return int(source.memory_usage(index=False).sum())
    if not isinstance(source, (pa.Table, pa.RecordBatch)):
        return 0
    try:
        return int(source.nbytes)
    except pa.ArrowTypeError:
        # Older versions of pyarrow can't compute which bytes of a column of views are used.
        return int(source.get_total_buffer_size())


def check_size(left: Any, right: Any, label: str) -> None:
    """Check that a join of rows in memory fits into memory, as far as their sizes are known before they are read.

    Raises:
        ConfigurationError: It does not fit.
    """
    _check_memory(0, _size_of(left) + _size_of(right), label)


def read_frame(source: Any, label: str) -> pa.Table:
    """Return rows in memory as an Arrow table with Spark's types."""
    library = library_of(source, label)
    return with_spark_types(read_as_is(source, label, library), label, library)


def read_as_is(
    source: Any, label: str, library: Library, names: Sequence[str] | None = None, *, shared: bool = False
) -> pa.Table:
    """Return rows in memory as an Arrow table with the types of their library.

    Of a frame of pandas only the columns in ``names``, if any are named, and with ``shared`` in its own memory.

    Raises:
        ConfigurationError: A reader was read before, or its rows do not fit into memory.
        SchemaError: A column has a name or a type that is not allowed.
    """
    if is_pandas(source):
        check_pandas(label)
        from cojoin.embedded.pandas_frames import pandas_columns  # noqa: PLC0415 - it imports pandas

        columns = dict(pandas_columns(source, label, library, names, shared=shared))
        return pa.Table.from_arrays(list(columns.values()), names=list(columns))
    table = read_arrow(source, label)
    check_names(table.column_names, label)
    for field in table.schema:
        if _is_variant(field):
            msg = f"{label}: column {field.name!r} is a variant, in its internal bytes; take its parts as columns"
            raise SchemaError(msg)
    return table


def with_spark_types(table: pa.Table, label: str, library: Library) -> pa.Table:
    """Return a table with its columns in Spark's types.

    Raises:
        SchemaError: A column has a type that is not allowed, or a value that its type can't hold.
    """
    typed = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        place = f"{label}: column {name!r}"
        fault = value_faults(column)
        if fault is not None:
            msg = f"{place} has a value that its type can't hold: {fault}; cast it: {library.cast(name, 'string')}"
            raise SchemaError(msg)

        def cure(dtype: pa.DataType, name: str = name) -> str:
            return library.about_misfit(name, dtype, "make it a column of texts")

        typed[name] = as_spark_column(column, place, cure)
        try:
            type_to_ddl(typed[name].type)
        except SchemaError as error:
            msg = (
                f"{place} has the type {column.type}, which Spark does not have; drop it, or make it a column of "
                f"texts: {library.text(name, column.type)}"
            )
            raise SchemaError(msg) from error
    # Fields are nullable, as those of Spark's DataFrames from memory are.
    return pa.Table.from_arrays(list(typed.values()), names=list(typed))


def _is_variant(field: pa.Field) -> bool:
    """Return whether a field, or one within it, is a variant, which Arrow marks in the field's metadata."""
    marked = (field.metadata or {}).get(b"ARROW:extension:name") == b"arrow.parquet.variant"
    return marked or any(map(_is_variant, (field.type.field(place) for place in range(field.type.num_fields))))


def read_arrow(source: Any, label: str) -> pa.Table:
    """Return rows that have Arrow's interface as a table, in their own types.

    Raises:
        ConfigurationError: A reader was read before, or the rows can't be read or do not fit into memory.
    """
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    is_reader = isinstance(source, pa.RecordBatchReader)
    if is_reader and source in _READ:
        msg = f"{label}: the reader was read before, and gives its rows once; keep them: table = reader.read_all()"
        raise ConfigurationError(msg)
    try:
        if hasattr(source, "__arrow_c_stream__"):
            table = _read_all(source if is_reader else pa.RecordBatchReader.from_stream(source), label)
        else:
            table = pa.Table.from_batches([pa.record_batch(source)])
    except ConfigurationError:
        raise
    except Exception as error:
        # A relation runs its query only now, so any error of its library's may come.
        once = "; a reader gives its rows once: table = reader.read_all()" if is_reader else ""
        msg = f"{label}: its rows can't be read: {error}{once}"
        raise ConfigurationError(msg) from error
    if is_reader:
        _READ.add(source)
        if not table.num_rows:
            warning = (
                f"{label}: the reader gave no rows; if it was read before, keep its rows: table = reader.read_all()"
            )
            warnings.warn(warning, stacklevel=2)
    return table


def _read_all(reader: pa.RecordBatchReader, label: str) -> pa.Table:
    batches, size, checked = [], 0, 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size - checked > 256 << 20:
            _check_memory(size, 0, label)
            checked = size
    return pa.Table.from_batches(batches, schema=reader.schema)


_TIME = pa.timestamp("us", "UTC")


def bind_frames(left: Input, right: Input) -> tuple[tuple[InputSpec, InputSpec], tuple[pa.Table, pa.Table]]:
    """Return the specifications of two declared inputs, and their rows in Spark's types."""
    declared, names = (left, right), (left.name or "left", right.name or "right")
    check_size(left.source, right.source, f"inputs {names[0]!r} and {names[1]!r}")
    tables = [read_frame(each.source, f"input {name!r}") for each, name in zip(declared, names, strict=True)]
    tables = with_types(declared, tables)
    libraries = [library_of(each.source, f"input {name!r}") for each, name in zip(declared, names, strict=True)]
    first, second = (specify(*each) for each in zip(declared, names, tables, libraries, strict=True))
    check_pair(first, second, (libraries[0], libraries[1]))
    specs = (first, second)
    left, right = (_expanded(spec, table) for spec, table in zip(specs, tables, strict=True))
    return specs, (left, right)


def _expanded(spec: InputSpec, table: pa.Table) -> pa.Table:
    """Return an input's rows, those with a span of validity as versions and deletes."""
    if spec.changes is None:
        return table
    check_validity(table, spec)
    return spec.changes.expanded(table)[0]


def with_types(declared: Sequence[Input], tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return both inputs' rows, where key and event-time columns without values have the types that they need."""
    # ``InputColumns`` refuses later what is not a name.
    keys = [each.key if isinstance(each.key, (list, tuple)) else [each.key] for each in declared]
    wanted: list[dict[Any, pa.DataType]] = []
    for one in declared:
        dtype = pa.timestamp("us") if one.time_zone else pa.int64() if one.time_unit else _TIME
        times = (one.event_time, one.known_at, one.valid_from, one.valid_to)
        wanted.append(dict.fromkeys((name for name in times if isinstance(name, str)), dtype))
    for pair in zip(*keys, strict=False):
        if not all(isinstance(each, str) for each in pair):
            continue
        for side in (0, 1):
            other = tables[1 - side]
            if pair[1 - side] in other.column_names:
                wanted[side][pair[side]] = other.schema.field(pair[1 - side]).type
    return [_cast_voids(table, types) for table, types in zip(tables, wanted, strict=True)]


def _cast_voids(table: pa.Table, types: dict[Any, pa.DataType]) -> pa.Table:
    """Return rows in which columns without any value, and so without a type, have the types that are named for them."""
    for place, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and field.name in types:
            table = table.set_column(place, field.name, pa.nulls(table.num_rows, types[field.name]))
    return table


def specify(declared: Input, name: str, table: pa.Table, advice: Advice, *, takes_axis: bool = True) -> InputSpec:
    """Return the specification of an input with these rows.

    Raises:
        SchemaError: A column does not exist or has the wrong type.
    """
    label = f"input {name!r}"
    types = {field.name: type_to_ddl(field.type) for field in table.schema}
    fields = {field.name: field for field in table.schema}
    columns = InputColumns(label, fields, types, advice, takes_axis=takes_axis)
    spec = columns.spec(declared, name, declared.event_time, None)
    spec.watermark.generator.check(spec.schema, label)
    return spec


def frame_lateness(
    source: Any,
    event_time: Any,
    arrival: Any,
    partition: str | Sequence[str],
    every: Duration | None,
    max_ahead: Duration | None,
    now_ms: int,
) -> Lateness:
    """Return how late rows in memory come; ``cojoin.lateness`` documents the arguments but the present moment."""
    label, name = "input 'source'", "source"
    _check_memory(0, _size_of(source), label)
    wanted = {each: _TIME for each in (event_time, arrival) if isinstance(each, str)}
    parts = partition if isinstance(partition, (list, tuple)) else [partition]
    names = dict.fromkeys([*wanted, *(each for each in parts if isinstance(each, str))])
    rows = _cast_voids(read_frame(narrowed(source, list(names)), label), wanted)
    types = {field.name: type_to_ddl(field.type) for field in rows.schema}
    order = arrival_order(types, arrival, every, max_ahead, now_ms)
    declared = Input(source, key=(), event_time=event_time, name=name, partition=partition)
    spec = specify(declared, name, rows, library_of(source, label), takes_axis=False)
    return _counted(rows, spec, order)


def narrowed(source: Any, names: Sequence[str]) -> Any:
    """Return rows with the named columns alone, where the library drops columns without cost; else the same rows."""
    if is_pandas(source):
        if not source.columns.is_unique or not set(names) <= set(source.columns):
            return source
        # The levels of an index without names are not columns.
        return source[names].set_axis(source.index.set_names([None] * source.index.nlevels), axis="index")
    has_columns = isinstance(source, pa.Table) or is_polars(source)
    columns = list(source.column_names if isinstance(source, pa.Table) else source.columns) if has_columns else []
    return source.select(names) if set(names) <= set(columns) and len(set(columns)) == len(columns) else source


def _counted(rows: pa.Table, spec: InputSpec, order: ArrivalOrder) -> Lateness:
    assert spec.event_time is not None
    timestamps = spec.millis(rows)
    nulls = _nulls(rows.column(spec.event_time))
    left_out = {"null_event_time": nulls}
    arrivals = np.arange(rows.num_rows, dtype=np.int64)
    if order.column is not None:
        column = rows.column(order.column)
        unknown = _nulls(column) & ~nulls
        left_out["null_arrival"] = unknown
        nulls = nulls | unknown
        numbers = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
        arrivals = pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy()
    length, to_end = order.window_us
    arrivals = np.floor_divide(arrivals, length) * length
    if order.max_ahead_ms is not None:
        clock = -(-(arrivals + to_end) // 1_000) if order.has_clock else order.now_ms
        left_out["too_far_ahead"] = (timestamps > clock + order.max_ahead_ms) & ~nulls
        nulls = nulls | left_out["too_far_ahead"]
    known = np.flatnonzero(~nulls)
    partitions = _partitions(rows, spec.partition)
    counter = LatenessCounter()
    for numbers in (arrivals, partitions):
        known = _sorted_by(numbers, known)
    counter.add(partitions[known], arrivals[known], timestamps[known])
    counts = {name: int(np.count_nonzero(each)) for name, each in left_out.items() if each.any()}
    return Lateness(
        order.words(spec.partition), rows.num_rows, dict(sorted(counter.counts.items())), counter.largest_ms, counts
    )


def _sorted_by(numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions in the order of their numbers; equal ones stay as they are."""
    values = numbers[positions]
    if (values[1:] >= values[:-1]).all():
        return positions
    if values.min() >= 0 and values.max() < 1 << 16:
        # Short integers are sorted by their digits, in a tenth of the time.
        values = values.astype(np.uint16)
    return positions[np.argsort(values, kind="stable")]


def _nulls(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return column.is_null().to_numpy()  # type: ignore[no-any-return]


def _partitions(rows: pa.Table, columns: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each row's source partition."""
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        encoded = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)
