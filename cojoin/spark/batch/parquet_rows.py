"""The rows of parquet files, read by pyarrow exactly as Spark reads them; other files are refused.

Columns, and the fields of structs, are looked up by name as in Spark: their case does not matter, and one that the file
lacks is null. A column must be stored in the input's own type, in a narrower integer type, or as a float for a double;
times may also be stored as the older INT96, by Spark itself. Lists and maps must be stored as the format recommends. A
file that only Spark's reader reads rightly (dates of the Julian calendar, INT96 of other writers, wider decimals) is
refused with its name and column (``misfit``).

Rows are read a row group at a time, in batches of at most 32,768 rows or some 32 MB.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cojoin.engine.values.types import type_to_ddl
from cojoin.storage.parquet_files import check_not_encrypted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 32_768, 32 << 20
_NESTED_TEXTS_AT_ONCE = 4_096
"""The rows that are read at once where texts are nested, since their lengths are not known before they are read."""

_WRITER = b"org.apache.spark.version"
_FIRST_GREGORIAN, _FIRST_GREGORIAN_INT96 = (3, 0), (3, 1)
"""The first versions of Spark that write dates and times, and INT96, in the Gregorian calendar throughout."""

_JULIAN_MARKS = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"

RANGES_DDL = "path string, size bigint, begin bigint, end bigint, constants string, deleted binary"
"""The columns of a stream of ranges of files.

``path`` is encoded as a URL's; ``size`` is the file's in bytes. The range has the rows numbered from ``begin`` to
before ``end``. Where ``constants`` is null, exactly these are read. Otherwise the row groups that begin in the range
are read, and ``constants`` is a JSON object with the values of columns that the file lacks, the same for all of its
rows. A change file has the kinds of its rows in place of ``_deleted``. ``deleted`` has the file's deleted rows as
``StreamFile`` has them, null for none.
"""

RANGES = pa.schema(
    [
        *(("path", pa.string()), ("size", pa.int64()), ("begin", pa.int64()), ("end", pa.int64())),
        *(("constants", pa.string()), ("deleted", pa.binary())),
    ]
)


def is_plain(dtype: pa.DataType) -> bool:
    """Return whether pyarrow reads columns of a type as Spark does; all values inside of them must be nullable.

    >>> is_plain(pa.list_(pa.timestamp("us", "UTC"))), is_plain(pa.timestamp("ns"))
    (True, False)
    """
    types = pa.types
    if types.is_struct(dtype):
        names = {field.name.lower() for field in dtype}
        return 0 < len(names) == dtype.num_fields and all(field.nullable and is_plain(field.type) for field in dtype)
    if types.is_list(dtype) or types.is_map(dtype):
        may_be_null = dtype.item_field.nullable if types.is_map(dtype) else dtype.value_field.nullable
        return may_be_null and all(is_plain(each) for each in _parts(dtype))
    is_time = types.is_timestamp(dtype) and dtype.unit == "us" and dtype.tz in (None, "UTC")
    is_number = types.is_signed_integer(dtype) or types.is_float32(dtype) or types.is_float64(dtype)
    is_text = types.is_string(dtype) or types.is_binary(dtype)
    others = types.is_boolean(dtype) or types.is_date32(dtype) or types.is_decimal128(dtype)
    return bool(is_time or is_number or is_text or others)


def _parts(dtype: pa.DataType) -> list[pa.DataType]:
    """Return the types within a list, a map or a struct; none of others."""
    if pa.types.is_map(dtype):
        return [dtype.key_type, dtype.item_type]
    return [dtype.field(at).type for at in range(dtype.num_fields)]


class StoredFile(pq.ParquetFile):  # type: ignore[misc]
    """A parquet file that is open for ``rows_between``; ``place`` is its path, or an open file.

    Pages are compared with their checksums, where they have them, as in Spark. Row groups are read as they are needed
    (``pre_buffer``): pyarrow would otherwise hold the columns of all of them. An OSError means that the file can't be
    read or is encrypted.
    """

    def __init__(self, place: Any, **settings: Any) -> None:
        super().__init__(
            place,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            pre_buffer=False,
            **settings,
        )
        self.place = place
        try:
            with pa.OSFile(place) if isinstance(place, str) else contextlib.nullcontext(place) as stored:
                check_not_encrypted(stored, self.metadata)
        except OSError:
            self.close()
            raise


def misfit(metadata: pq.FileMetaData, schema: pa.Schema) -> str | None:
    """Return the reason why Spark must read a file; None where pyarrow reads the same rows.

    ``schema`` has the columns to read, of types that ``is_plain`` accepts.
    """
    columns, dated = _columns(metadata), list[_Leaf]()
    for field in schema:
        same = columns.get(field.name.lower(), [])
        if len(same) > 1:
            return f"it has columns {' and '.join(repr(each.name) for each in same)}, which are one to Spark"
        pairs = [pair for column in same for pair in column.leaves_as(field.type)]
        if same and not (pairs and all(_fits(*pair) for pair in pairs)):
            return f"its column {same[0].name!r} is {same[0]}, and {type_to_ddl(field.type)} is expected"
        dated += [leaf for leaf, dtype in pairs if pa.types.is_date32(dtype) or pa.types.is_timestamp(dtype)]
    version = _spark_version(metadata)
    older = next((leaf for leaf in dated if leaf.physical == "INT96"), None)
    if older is not None and version is None:
        # Other writers differ in times before 1970, and a setting of Spark decides how it reads them.
        return f"its column {older.path!r} is INT96, and the file was not written by Spark"
    first_gregorian = _FIRST_GREGORIAN if older is None else _FIRST_GREGORIAN_INT96
    has_marks = version is not None and any(mark in metadata.metadata for mark in _JULIAN_MARKS)
    if dated and version is not None and (version < first_gregorian or has_marks):
        return "it was written by Spark with dates of the Julian calendar"
    return None


def rows_between(
    file: StoredFile, schema: pa.Schema, begin: int, end: int, stored: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the numbers from ``begin`` up to ``end`` of a file that fits a schema, in its types.

    The range may begin inside a row group, and end after the last row. ``stored`` is the schema with the file's names
    for columns and for fields of structs, where these differ.
    """
    metadata, stored = file.metadata, schema if stored is None else stored
    columns_by_name = _columns(metadata)
    names = {name: columns_by_name[name.lower()][0] for name in stored.names if name.lower() in columns_by_name}
    groups, first = [], None
    start = size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if start < end and start + group.num_rows > begin:
            first = start if first is None else first
            groups.append(number)
            leaves = (leaf for column in names.values() for leaf in column.leaves)
            group_size = sum(group.column(leaf.at).total_uncompressed_size for leaf in leaves)
            size = max(size, group_size // max(1, group.num_rows))
        start += group.num_rows
    at = first or 0
    size = max(size, _longest_texts(file, groups, names))
    most = min(_ROWS_AT_ONCE, max(1, _BYTES_AT_ONCE // max(1, size)))
    if any(leaf.is_text for column in names.values() if column.is_nested for leaf in column.leaves):
        most = min(most, _NESTED_TEXTS_AT_ONCE)
    columns = [each.name for each in names.values()]
    for batch in file.iter_batches(most, groups, columns, use_threads=False):
        low, high = max(begin - at, 0), min(end - at, batch.num_rows)
        at += batch.num_rows
        if low < high:
            yield _in_types(batch.slice(low, high - low), schema, stored, names)
        if at >= end:
            return


def _longest_texts(file: StoredFile, groups: list[int], names: dict[str, _Column]) -> int:
    """Return the sum of the lengths of each column's longest text in a dictionary; 0 without dictionaries.

    The file has such a text once, and a batch of rows has it as often as it occurs.
    """
    coded: dict[int, list[str]] = {}
    for number in groups:
        group = file.metadata.row_group(number)
        coded[number] = [
            column.name
            for column in names.values()
            if not column.is_nested
            and column.leaves[0].is_text
            and group.column(column.leaves[0].at).has_dictionary_page
        ]
    all_names = sorted({name for columns in coded.values() for name in columns})
    if not all_names:
        return 0
    size = 0
    with StoredFile(file.place, metadata=file.metadata, read_dictionary=all_names) as dictionaries:
        for number, columns in coded.items():
            for first in itertools.islice(dictionaries.iter_batches(1, [number], columns, use_threads=False), 1):
                longest = (pc.max(pc.binary_length(each.dictionary)).as_py() for each in first.columns)
                size = max(size, sum(each or 0 for each in longest))
    return size


def _in_types(
    batch: pa.RecordBatch, schema: pa.Schema, stored: pa.Schema, names: Mapping[str, _Column]
) -> pa.RecordBatch:
    columns = []
    for field, stored_field in zip(schema, stored, strict=True):
        if stored_field.name not in names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(batch.schema.get_field_index(names[stored_field.name].name))
        columns.append(_cast(column, stored_field.type, field.type))
    return pa.RecordBatch.from_arrays(columns, names=[f"c{at}" for at in range(len(schema))])


def _cast(column: pa.Array, stored: pa.DataType, dtype: pa.DataType) -> pa.Array:
    """Return a column as a type; ``stored`` is the type with the file's names for the fields of structs."""
    types = pa.types
    if column.type == dtype:
        return column
    if types.is_struct(dtype):
        places = {column.type.field(at).name.lower(): at for at in range(column.type.num_fields)}
        parts, fields = column.flatten(), list[pa.Array]()
        for named, field in zip(stored, dtype, strict=True):
            at = places.get(named.name.lower())
            missing = at is None
            fields.append(pa.nulls(len(column), field.type) if missing else _cast(parts[at], named.type, field.type))
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=column.is_null())
    if types.is_list(dtype) or types.is_map(dtype):
        # A slice has the values of the whole column.
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        offsets = pc.subtract(column.offsets, first).cast(pa.int32())
        values = (column.keys, column.items) if types.is_map(dtype) else (column.values,)
        parts = zip(values, _parts(stored), _parts(dtype), strict=True)
        cast = [_cast(part.slice(first, last - first), *pair) for part, *pair in parts]
        array = pa.MapArray if types.is_map(dtype) else pa.ListArray
        return array.from_arrays(offsets, *cast, type=dtype, mask=column.is_null())
    if types.is_timestamp(column.type) and types.is_timestamp(dtype):
        # Spark takes a time as it is stored, whether or not it is marked as UTC.
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(dtype)
    return column.cast(dtype)


class _Leaf:
    """The leaf column number ``at`` of a file's schema; its path begins with the names of the columns around it."""

    def __init__(self, column: Any, at: int) -> None:
        self.at, self.path, self._stored = at, column.path, column
        self.physical = str(column.physical_type)

    @cached_property
    def logical(self) -> dict[str, Any]:
        """The logical type of its values; empty where the file has none."""
        logical = json.loads(self._stored.logical_type.to_json())
        return {} if logical["Type"] == "None" else logical

    @property
    def is_text(self) -> bool:
        """Whether its values are texts or bytes of any length."""
        return self.physical == "BYTE_ARRAY" and self.logical.get("Type") in (None, "String")

    def __str__(self) -> str:
        details = ", ".join(
            f"{name} {value}".lower()
            for name, value in self.logical.items()
            if name != "Type" and not isinstance(value, bool)
        )
        kind = self.logical.get("Type")
        return self.physical + (f" ({kind}{': ' + details if details else ''})" if kind else "")


@dataclass(frozen=True)
class _Column:
    """A column at the top of a file's schema, its type as pyarrow reads it, and its leaf columns."""

    name: str
    dtype: pa.DataType
    leaves: Sequence[_Leaf]

    @property
    def is_nested(self) -> bool:
        """Whether its values are structs, lists or maps."""
        return bool(_parts(self.dtype))

    def leaves_as(self, dtype: pa.DataType) -> list[tuple[_Leaf, pa.DataType]]:
        """Return the leaf columns that are in a type, with their types in it; none where the structures differ."""
        try:
            return list(_paired(self.dtype, dtype, self.name, iter(self.leaves)))
        except _UnlikeError:
            return []

    def __str__(self) -> str:
        return str(self.dtype) if self.is_nested else str(self.leaves[0])


class _UnlikeError(Exception):
    """Two types that do not have the same structure, or one that is not stored as the format recommends."""


def _paired(
    dtype: pa.DataType, wanted: pa.DataType, path: str, leaves: Iterator[_Leaf]
) -> Iterator[tuple[_Leaf, pa.DataType]]:
    """Yield the leaf columns of a file's type with the types that they have in a wanted one."""
    types = pa.types
    if types.is_struct(dtype) and types.is_struct(wanted):
        fields = {field.name.lower(): field.type for field in wanted}
        names = [field.name.lower() for field in dtype]
        if len(set(names)) < len(names) or not fields.keys() & set(names):
            raise _UnlikeError
        for field in dtype:
            inner = fields.get(field.name.lower())
            if inner is None:
                list(itertools.islice(leaves, _leaf_count(field.type)))
            else:
                yield from _paired(field.type, inner, f"{path}.{field.name}", leaves)
    elif types.is_map(dtype) and types.is_map(wanted):
        yield from _paired(dtype.key_type, wanted.key_type, f"{path}.key_value.key", leaves)
        yield from _paired(dtype.item_type, wanted.item_type, f"{path}.key_value.value", leaves)
    elif types.is_list(wanted) and _is_list(dtype) and dtype.value_field.name in ("element", "item"):
        yield from _paired(dtype.value_type, wanted.value_type, f"{path}.list.{dtype.value_field.name}", leaves)
    else:
        leaf = next(leaves)
        if _parts(dtype) or _parts(wanted) or leaf.path != path:
            raise _UnlikeError
        yield leaf, wanted


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))


def _leaf_count(dtype: pa.DataType) -> int:
    dtype = getattr(dtype, "storage_type", dtype)
    return sum(map(_leaf_count, _parts(dtype))) or 1


def _columns(metadata: pq.FileMetaData) -> dict[str, list[_Column]]:
    """Return the columns of a file by their names in lower case."""
    columns: dict[str, list[_Column]] = {}
    leaves = (_Leaf(metadata.schema.column(at), at) for at in range(metadata.num_columns))
    for field in metadata.schema.to_arrow_schema():
        column = _Column(field.name, field.type, list(itertools.islice(leaves, _leaf_count(field.type))))
        columns.setdefault(field.name.lower(), []).append(column)
    return columns


def _fits(leaf: _Leaf, dtype: pa.DataType) -> bool:
    types, logical, physical = pa.types, leaf.logical, leaf.physical
    kind = logical.get("Type")
    if types.is_integer(dtype):
        is_signed = physical in ("INT32", "INT64") and kind in (None, "Int") and logical.get("isSigned", True)
        return bool(is_signed) and int(logical.get("bitWidth", physical[3:])) <= dtype.bit_width
    if types.is_timestamp(dtype):
        return _fits_time(leaf, is_utc=dtype.tz is not None)
    if types.is_decimal(dtype):
        return kind == "Decimal" and (logical["precision"], logical["scale"]) == (dtype.precision, dtype.scale)
    expected = {
        types.is_boolean: (("BOOLEAN", None),),
        types.is_float32: (("FLOAT", None),),
        types.is_float64: (("DOUBLE", None), ("FLOAT", None)),
        types.is_string: (("BYTE_ARRAY", "String"),),
        types.is_binary: (("BYTE_ARRAY", None),),
        types.is_date32: (("INT32", "Date"),),
    }
    return any(is_kind(dtype) and (physical, kind) in pairs for is_kind, pairs in expected.items())


def _fits_time(leaf: _Leaf, *, is_utc: bool) -> bool:
    if leaf.physical == "INT96":
        return is_utc
    logical = leaf.logical
    if leaf.physical != "INT64" or logical.get("Type") != "Timestamp":
        return False
    return logical["timeUnit"] in ("milliseconds", "microseconds") and (is_utc or not logical["isAdjustedToUTC"])


def _spark_version(metadata: pq.FileMetaData) -> tuple[int, ...] | None:
    """Return the version of Spark that wrote a file, as two numbers; None where another program did."""
    stored = metadata.metadata or {}
    if _WRITER not in stored:
        return None
    version = stored[_WRITER].decode(errors="replace").split(".")
    return tuple(int(each) if each.isdigit() else 0 for each in version[:2])
