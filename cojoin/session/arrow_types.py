"""Spark's types as Arrow's and the reverse, by PySpark's own conversions, whose arguments differ between its versions.

In every version, times with a time zone are in UTC in Arrow, and times without one are ``timestamp_ntz`` in Spark.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# Spark 4.2 takes the time zone; 4.0 and 4.1 only take whether it is UTC, which is their default.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_type(dtype: DataType) -> pa.DataType:
    """Return a type of Spark's as Arrow's; ``PySparkException``, ``TypeError`` or ``ValueError`` where none fits.

    >>> from pyspark.sql.types import TimestampType
    >>> arrow_type(TimestampType())
    TimestampType(timestamp[us, tz=UTC])
    """
    return arrow_schema(StructType().add("value", dtype)).field(0).type


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema of Spark's as Arrow's; errors are those of ``arrow_type``."""
    # Without the metadata of fields, which PySpark keeps since 4.2.
    return pa.schema([each.remove_metadata() for each in to_arrow_schema(schema, **_UTC)])


def spark_data_type(dtype: pa.DataType) -> DataType:
    """Return a type of Arrow's as Spark's.

    >>> spark_data_type(pa.timestamp("us"))
    TimestampNTZType()
    """
    return spark_schema(pa.schema([("value", dtype)])).fields[0].dataType


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema of Arrow's as Spark's."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
