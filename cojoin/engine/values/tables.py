"""Operations on Arrow tables, and the casts of columns to the one Arrow type that stands for each of Spark's types.

A cast never changes a value: what does not fit is refused. Dictionary-encoded values (pandas' categories) and
run-end-encoded ones become plain ones, at any depth, which costs one gather; unsigned integers become the next wider
signed ones; times become microseconds, those with a zone in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def has_codes(dtype: pa.DataType) -> bool:
    """Return whether values of a type are dictionary-encoded or run-end-encoded, at any depth.

    >>> has_codes(pa.list_(pa.dictionary(pa.int8(), pa.string()))), has_codes(pa.list_(pa.string()))
    (True, False)
    """
    if pa.types.is_dictionary(dtype) or pa.types.is_run_end_encoded(dtype):
        return True
    return any(has_codes(dtype.field(place).type) for place in range(dtype.num_fields))


def without_codes(array: pa.Array) -> pa.Array:  # noqa: PLR0911 - one for each kind
    """Return an array with the same values, none of which is encoded.

    >>> without_codes(pa.array(["a", None, "a"]).dictionary_encode()).type
    DataType(string)
    """
    dtype, types = array.type, pa.types
    if not has_codes(dtype):
        return array
    if types.is_dictionary(dtype):
        return _takeable(without_codes(array.dictionary)).take(array.indices)
    if types.is_run_end_encoded(dtype):
        places = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), places, side="right")
        return _takeable(without_codes(array.values)).take(pa.array(runs))
    mask = array.is_null() if array.null_count else None
    if types.is_struct(dtype):
        children = [without_codes(each) for each in array.flatten()]
        fields = [field.with_type(child.type) for field, child in zip(dtype, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if types.is_fixed_size_list(dtype):
        # The children of a slice are not sliced.
        offsets = pa.array(np.arange(array.offset, array.offset + len(array) + 1) * dtype.list_size, pa.int64())
        return pa.LargeListArray.from_arrays(offsets, without_codes(array.values), mask=mask)
    # Copied, because Arrow refuses a mask with offsets that are a slice.
    offsets = pa.array(array.offsets.to_numpy())
    if types.is_map(dtype):
        keys, items = without_codes(array.keys), without_codes(array.items)
        plain = pa.map_(dtype.key_field.with_type(keys.type), dtype.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(offsets, keys, items, type=plain, mask=mask)
    of_lists = pa.LargeListArray if types.is_large_list(dtype) else pa.ListArray
    return of_lists.from_arrays(offsets, without_codes(array.values), mask=mask)


def _takeable(array: pa.Array) -> pa.Array:
    """Return an array of a type from which Arrow takes values, as it does not from views."""
    plain = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(array.type))
    return array if plain is None else array.cast(plain)


_UTC = pa.timestamp("us", "UTC")

_SIMPLE = (
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_unsigned_integer, pa.int64()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_time, pa.time64("us")),
    (pa.types.is_duration, pa.duration("us")),
)


def spark_type(dtype: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one for each kind
    """Return the Arrow type of Spark's that holds the values of a type; a type that Spark has none for stays as it is.

    >>> spark_type(pa.dictionary(pa.int32(), pa.large_string())), spark_type(pa.timestamp("ns", "Europe/Berlin"))
    (DataType(string), TimestampType(timestamp[us, tz=UTC]))
    """
    types = pa.types
    if isinstance(dtype, pa.BaseExtensionType):
        if dtype.extension_name == "arrow.bool8":
            return pa.bool_()
        # The storage of pandas' own types is numbers that mean nothing by themselves, and that of an opaque type the
        # internal bytes of another system.
        is_readable = not dtype.extension_name.startswith(("pandas.", "arrow.opaque"))
        return spark_type(dtype.storage_type) if is_readable else dtype
    if types.is_dictionary(dtype) or types.is_run_end_encoded(dtype):
        return spark_type(dtype.value_type)
    if types.is_timestamp(dtype):
        return pa.timestamp("us") if dtype.tz is None else _UTC
    if types.is_struct(dtype):
        return pa.struct([field.with_type(spark_type(field.type)) for field in dtype])
    if types.is_map(dtype):
        key, item = dtype.key_field, dtype.item_field
        return pa.map_(key.with_type(spark_type(key.type)), item.with_type(spark_type(item.type)))
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        return pa.list_(dtype.value_field.with_type(spark_type(dtype.value_type)))
    if types.is_decimal(dtype) and dtype.precision <= 38:
        return pa.decimal128(dtype.precision, dtype.scale)
    # Views came with later versions of Arrow.
    if str(dtype) in ("string_view", "binary_view"):
        return pa.string() if str(dtype) == "string_view" else pa.binary()
    return next((simple for is_kind, simple in _SIMPLE if is_kind(dtype)), dtype)


def as_spark_column(
    column: pa.ChunkedArray, label: str, cure: Callable[[pa.DataType], str] = lambda _: "cast it to another type"
) -> pa.ChunkedArray:
    """Return a column in the Arrow type of Spark's that holds its values; one that Spark has none for stays as it is.

    ``cure`` returns what to do about values of a type that do not fit.
    """
    target = spark_type(column.type)
    if isinstance(column.type, pa.BaseExtensionType) and not target.equals(column.type):
        column = pa.chunked_array([each.storage for each in column.chunks], column.type.storage_type)
    if target.equals(column.type):
        return column
    try:
        try:
            return column.cast(target)
        except pa.ArrowException:
            if not has_codes(column.type):
                raise
        return pa.chunked_array([without_codes(each).cast(target) for each in column.chunks], target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"{label}: its {column.type} does not fit Spark's type {target}: {error}; {cure(column.type)}"
        raise SchemaError(msg) from error


_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of one schema as one table, without the empty ones."""
    full = [table for table in tables if table.num_rows]
    if not full:
        return tables[0]
    return full[0] if len(full) == 1 else pa.concat_tables(full)


def take_rows(table: pa.Table, positions: NDArray[np.int64]) -> pa.Table:
    """Return rows by position; each column becomes one chunk first, which makes taking strings many times faster."""
    return table.combine_chunks().take(pa.array(positions))


def event_micros(table: pa.Table, column: str) -> NDArray[np.int64]:
    """Return a timestamp column as epoch microseconds; a null becomes 0."""
    times = table.column(column)
    values = (times.chunk(0) if times.num_chunks == 1 else times.combine_chunks()).view(pa.int64())
    return (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def event_millis(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return microseconds floored to milliseconds, the unit that watermarks and timers compare, before 1970 too."""
    return np.floor_divide(micros, 1_000)


def up_to_millis(micros: NDArray[np.int64], millis: int) -> NDArray[np.bool_]:
    """Return which times in microseconds are at or below a time in milliseconds, once they are floored to that unit."""
    last = millis * 1_000 + 999
    return micros <= min(last, _LAST) if last >= _FIRST else np.zeros(len(micros), dtype=bool)
