"""Arrow's types as Spark has them: the one Arrow type that stands for each type of Spark's, and casts to it.

A cast never changes a value: what does not fit is refused. Dictionary-encoded values (pandas' categories) and
run-end-encoded ones become plain ones; unsigned integers become the next wider signed ones; times become microseconds,
those with a zone in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.engine.values.plain_arrays import has_codes, without_codes
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["as_spark_column", "spark_type"]

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
    column: pa.ChunkedArray, what: str, cure: Callable[[pa.DataType], str] = lambda _: "cast it to another type"
) -> pa.ChunkedArray:
    """Return a column in the Arrow type of Spark's that holds its values; one that Spark has none for stays as it is.

    Args:
        column: The column.
        what: The column, for messages, such as ``"input 'trades': column 'amount'"``.
        cure: Returns what to do about values of a type that do not fit.

    Raises:
        SchemaError: A value does not fit, such as a time with nanoseconds.
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
        msg = f"{what}: its {column.type} does not fit Spark's type {target}: {error}; {cure(column.type)}"
        raise SchemaError(msg) from error
