"""Rows in memory as Arrow tables with Spark's types: pandas, pyarrow, and whatever has ``__arrow_c_stream__``.

Rows keep their order. It costs one copy where a type must change, and none where it is Spark's already; of a pandas
DataFrame always one (``pandas_frames``).
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from cojoin.embedded.libraries import is_pandas, library_of, value_faults
from cojoin.embedded.memory import check_memory
from cojoin.engine.input_columns import check_names
from cojoin.engine.values.tables import as_spark_column
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.installed_packages import check_pandas

__all__ = ["is_frame", "read_frame", "size_of"]

_READ: WeakSet[Any] = WeakSet()
"""The readers that were read; each can be read only once."""


def is_frame(source: Any) -> bool:
    """Return whether a value is rows in memory: a frame, a table, or a stream of Arrow batches."""
    if any(each.__module__.split(".")[0] == "pyspark" for each in type(source).__mro__):
        return False
    return is_pandas(source) or any(hasattr(source, name) for name in ("__arrow_c_stream__", "__arrow_c_array__"))


def size_of(source: Any) -> int:
    """Return the size of rows in memory in bytes, as far as it is known before they are read; 0 if it is not."""
    if is_pandas(source):
        return int(source.memory_usage(index=False).sum())
    if not isinstance(source, (pa.Table, pa.RecordBatch)):
        return 0
    try:
        return int(source.nbytes)
    except pa.ArrowTypeError:
        # Older versions of pyarrow can't tell which bytes of a column of views are used.
        return int(source.get_total_buffer_size())


def read_frame(source: Any, what: str) -> pa.Table:
    """Return rows in memory as an Arrow table with Spark's types.

    Args:
        source: The rows.
        what: The input, for messages, such as ``"input 'trades'"``.

    Raises:
        ConfigurationError: A reader was read before, or its rows do not fit into memory.
        SchemaError: A column has a name or a type that is not allowed.
    """
    library = library_of(source, what)
    if is_pandas(source):
        check_pandas(what)
        from cojoin.embedded.pandas_frames import pandas_columns  # noqa: PLC0415 - it imports pandas

        columns = dict(pandas_columns(source, what, library))
    else:
        table = _read_arrow(source, what)
        check_names(table.column_names, what)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        for field in table.schema:
            if _is_variant(field):
                msg = f"{what}: column {field.name!r} is a variant, in its internal bytes; take its parts as columns"
                raise SchemaError(msg)
    typed = {}
    for name, column in columns.items():
        place = f"{what}: column {name!r}"
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


def _read_arrow(source: Any, what: str) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    is_reader = isinstance(source, pa.RecordBatchReader)
    if is_reader and source in _READ:
        msg = f"{what}: the reader was read before, and gives its rows once; keep them: table = reader.read_all()"
        raise ConfigurationError(msg)
    try:
        if hasattr(source, "__arrow_c_stream__"):
            table = _read_all(source if is_reader else pa.RecordBatchReader.from_stream(source), what)
        else:
            table = pa.Table.from_batches([pa.record_batch(source)])
    except ConfigurationError:
        raise
    except Exception as error:
        # A relation runs its query only now, so any error of its library's may come.
        once = "; a reader gives its rows once: table = reader.read_all()" if is_reader else ""
        msg = f"{what}: its rows can't be read: {error}{once}"
        raise ConfigurationError(msg) from error
    if is_reader:
        _READ.add(source)
        if not table.num_rows:
            told = f"{what}: the reader gave no rows; if it was read before, keep its rows: table = reader.read_all()"
            warnings.warn(told, stacklevel=2)
    return table


def _read_all(reader: pa.RecordBatchReader, what: str) -> pa.Table:
    batches, size, checked = [], 0, 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size - checked > 256 << 20:
            check_memory(size, 0, what)
            checked = size
    return pa.Table.from_batches(batches, schema=reader.schema)
