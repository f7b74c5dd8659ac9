"""Parts of parquet files, cut anywhere, and the files that are left to Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cojoin.spark.batch.parquet_rows import StoredFile, is_plain, misfit, rows_between
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("at", UTC), ("name", pa.string())])
TWO_OF_ONE_NAME = pa.struct([("a", pa.int8()), ("A", pa.int8())])


def opened(content: pa.Table, **settings: Any) -> StoredFile:
    sink = pa.BufferOutputStream()
    pq.write_table(content, sink, **settings)
    return StoredFile(pa.BufferReader(sink.getvalue()))


def read(file: StoredFile, schema: pa.Schema, begin: int = 0, end: int = 1 << 40) -> pa.Table:
    batches = list(rows_between(file, schema, begin, end))
    return pa.Table.from_batches(batches, pa.schema([(f"c{at}", each.type) for at, each in enumerate(schema)]))


def one(dtype: pa.DataType, value: Any, **settings: Any) -> StoredFile:
    return opened(pa.table({"x": pa.array([value], dtype)}), **settings)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_part_of_a_file_has_its_rows_whatever_the_row_groups(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    content = pa.table([pa.array(range(count), pa.int64()), pa.nulls(count, UTC), pa.nulls(count, pa.string())], SCHEMA)
    file = opened(content, row_group_size=data.draw(st.integers(1, 25)))
    begin, end = (data.draw(st.integers(0, 70)) for _ in range(2))
    assert read(file, SCHEMA, begin, end).column(0).to_pylist() == [*range(count)][begin:end]


def test_wide_rows_are_read_in_small_batches() -> None:
    content = pa.table({"id": range(120), "name": [chr(97 + at % 26) * 600_000 for at in range(120)]})
    file = opened(content, use_dictionary=False, compression="zstd")
    sizes = [batch.nbytes for batch in rows_between(file, pa.schema([("name", pa.string())]), 0, 1000)]
    assert max(sizes) < 40 << 20


@pytest.mark.parametrize(
    "made",
    [
        # Each has 600 MB, so it is made where it is needed.
        lambda: pa.array(["x" * 300_000] * 2_000),
        # The first rows say nothing of the later ones.
        lambda: pa.array(["a"] * 256 + ["x" * 300_000] * 1_744),
        # What pandas writes of categories.
        lambda: pa.array(["x" * 300_000] * 2_000).dictionary_encode(),
    ],
    ids=["one", "later", "categories"],
)
def test_texts_that_a_file_has_once_are_read_in_small_batches(made: Callable[[], pa.Array]) -> None:
    """A dictionary of 300 kB, in a file that is not larger, whose 2,000 rows have 600 MB."""
    file = opened(pa.table({"name": made()}))
    size = rows = 0
    for batch in rows_between(file, pa.schema([("name", pa.string())]), 0, 5_000):
        size, rows = max(size, batch.nbytes), rows + batch.num_rows
    assert size < 40 << 20
    assert rows == 2_000


def test_a_file_of_many_row_groups_is_not_held_as_a_whole() -> None:
    rng = np.random.default_rng(SEED)
    content = pa.table({"id": rng.integers(0, 1 << 62, 2_000_000)})
    file = opened(content, row_group_size=100_000, compression="none")
    del content
    before = pa.total_allocated_bytes()
    most = max(
        pa.total_allocated_bytes() - before for _ in rows_between(file, pa.schema([("id", pa.int64())]), 0, 1 << 40)
    )
    assert most < 6 << 20


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_that_was_changed_is_seen_by_its_checksum(version: str) -> None:
    sink = pa.BufferOutputStream()
    settings = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"id": pa.array(range(1_000), pa.int64())}), sink, data_page_version=version, **settings)
    content = bytearray(sink.getvalue())
    content[len(content) // 2] ^= 1
    with pytest.raises(OSError, match="checksum"):
        read(StoredFile(pa.BufferReader(bytes(content))), pa.schema([("id", pa.int64())]))


def test_columns_are_found_whatever_their_case_and_are_null_where_there_are_none() -> None:
    file = opened(pa.table({"other": [[1]], "NAME": ["a"], "Id": pa.array([1], pa.int32())}))
    assert misfit(file.metadata, SCHEMA) is None
    assert [column[0].as_py() for column in read(file, SCHEMA).columns] == [1, None, "a"]
    assert read(file, pa.schema([("at", UTC)])).column(0).to_pylist() == [None]


@pytest.mark.parametrize(
    ("stored", "value", "dtype", "read_as"),
    [
        (pa.int8(), -3, pa.int64(), -3),
        (pa.int16(), -3, pa.int32(), -3),
        (pa.float32(), 0.5, pa.float64(), 0.5),
        (pa.timestamp("ms"), 7, UTC, 7_000),
        (pa.timestamp("us", "Europe/Berlin"), 7, UTC, 7),
        (pa.timestamp("us"), 7, UTC, 7),
        (pa.timestamp("ms"), 7, pa.timestamp("us"), 7_000),
        (pa.date64(), 86_400_000, pa.date32(), 1),
        (pa.large_string(), "a", pa.string(), "a"),
        (pa.dictionary(pa.int8(), pa.string()), "a", pa.string(), "a"),
        (pa.duration("us"), 7, pa.int64(), 7),
    ],
)
def test_what_means_the_same_is_read(stored: pa.DataType, value: Any, dtype: pa.DataType, read_as: Any) -> None:
    file, schema = one(stored, value), pa.schema([("x", dtype)])
    assert misfit(file.metadata, schema) is None
    found = read(file, schema).column(0)
    number = pa.int32() if pa.types.is_date(dtype) else pa.int64()
    is_time = pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)
    assert (found.cast(number) if is_time else found).to_pylist() == [read_as]


@pytest.mark.parametrize(
    ("stored", "value", "dtype", "shown"),
    [
        (pa.int64(), 1, pa.int32(), r"'x' is INT64, and int is expected"),
        (pa.int32(), 1, pa.float64(), r"'x' is INT32, and double is expected"),
        (pa.uint8(), 1, pa.int64(), r"'x' is INT32 \(Int: bitwidth 8\), and bigint is expected"),
        (pa.int32(), 1, pa.int8(), r"'x' is INT32, and tinyint is expected"),
        (pa.string(), "1", pa.int64(), r"'x' is BYTE_ARRAY \(String\), and bigint is expected"),
        (pa.binary(), b"1", pa.string(), r"'x' is BYTE_ARRAY, and string is expected"),
        (pa.timestamp("ns", "UTC"), 1, UTC, r"\(Timestamp: timeunit nanoseconds\), and timestamp is expected"),
        (UTC, 1, pa.timestamp("us"), r"\(Timestamp: timeunit microseconds\), and timestamp_ntz is expected"),
        (UTC, 1, pa.int64(), r"\(Timestamp: timeunit microseconds\), and bigint is expected"),
        (pa.decimal128(9, 2), 1, pa.decimal128(18, 2), r"\(Decimal: precision 9, scale 2\), and decimal\(18,2\)"),
        (pa.list_(pa.int64()), [1], pa.int64(), r"'x' is list<element: int64>, and bigint is expected"),
        (pa.list_(pa.int64()), [1], pa.list_(pa.int32()), r"'x' is list<element: int64>, and array<int> is expected"),
        (pa.struct([("a", pa.int8())]), {"a": 1}, pa.struct([("b", pa.int8())]), r"and struct<b:tinyint> is expected"),
        (TWO_OF_ONE_NAME, {"a": 1}, pa.struct([("a", pa.int8())]), r"'x' is struct<a: "),
        (pa.struct([("x", pa.int64())]), {"x": 1}, pa.int64(), r"'x' is struct<x: int64>, and bigint is expected"),
    ],
)
def test_what_spark_reads_in_its_own_way_is_left_to_it(
    stored: pa.DataType, value: Any, dtype: pa.DataType, shown: str
) -> None:
    why = misfit(one(stored, value).metadata, pa.schema([("x", dtype)]))
    assert why is not None
    assert re.search(shown, why), why


def test_times_of_96_bits_are_read_whatever_the_year() -> None:
    micros = [-62_135_596_800_000_000, -1, 0, 1_700_000_000_123_456, 253_402_300_799_999_999, None]
    times = pa.array(micros, pa.int64()).cast(UTC)
    content = pa.table({"x": times}).replace_schema_metadata({"org.apache.spark.version": "4.0.1"})
    file, schema = opened(content, use_deprecated_int96_timestamps=True), pa.schema([("x", UTC)])
    assert file.metadata.schema.column(0).physical_type == "INT96"
    assert misfit(file.metadata, schema) is None
    assert read(file, schema).column(0).cast(pa.int64()).to_pylist() == micros
    assert str(misfit(file.metadata, pa.schema([("x", pa.timestamp("us"))]))).startswith("its column 'x' is INT96")


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ({}, "its column 'x' is INT96, and the file was not written by Spark"),
        ({"org.apache.spark.version": "3.0.3"}, "it was written by Spark with dates of the Julian calendar"),
        ({"org.apache.spark.version": "3.1.0"}, None),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""}, "it was written by Spark with"),
    ],
)
def test_times_of_96_bits_are_read_only_where_all_writers_mean_the_same(
    stored: dict[str, str], why: str | None
) -> None:
    content = pa.table({"x": pa.array([1], UTC)}).replace_schema_metadata(stored)
    found = misfit(opened(content, use_deprecated_int96_timestamps=True).metadata, pa.schema([("x", UTC)]))
    assert found is None if why is None else str(found).startswith(why)


def test_times_of_an_old_calendar_are_left_to_spark() -> None:
    for stored, is_old in (
        ({"org.apache.spark.version": "2.4.8"}, True),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, True),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""}, True),
        ({"org.apache.spark.version": "4.0.1"}, False),
        ({}, False),
    ):
        file = opened(pa.table({"x": pa.array([1], UTC)}).replace_schema_metadata(stored))
        assert (misfit(file.metadata, pa.schema([("x", UTC)])) is not None) == is_old
        assert misfit(file.metadata, pa.schema([("y", pa.int64())])) is None


def test_a_column_may_have_a_dot_in_its_name() -> None:
    file = opened(pa.table({"name.first": ["a"], "id": [1]}))
    assert misfit(file.metadata, SCHEMA) is None
    assert [column[0].as_py() for column in read(file, SCHEMA).columns] == [1, None, None]
    assert read(file, pa.schema([("name.first", pa.string())])).column(0).to_pylist() == ["a"]


def test_two_columns_that_differ_in_case_are_one_to_spark() -> None:
    file = opened(pa.table({"ID": [1], "id": [1]}))
    assert misfit(file.metadata, SCHEMA) == "it has columns 'ID' and 'id', which are one to Spark"


def test_which_types_are_read() -> None:
    others = [pa.list_(pa.null()), pa.struct([]), pa.map_(pa.int8(), pa.time64("us")), pa.duration("us"), pa.null()]
    assert not any(map(is_plain, [*others, TWO_OF_ONE_NAME]))
    # Arrow does not cast what may be null to what may not.
    never_null = pa.field("a", pa.int8(), nullable=False)
    assert not any(map(is_plain, [pa.list_(never_null), pa.struct([never_null]), pa.map_(pa.int8(), never_null)]))
    nested = [pa.list_(pa.int8()), pa.struct([("a", UTC)]), pa.map_(pa.string(), pa.list_(pa.date32()))]
    assert all(map(is_plain, [*SCHEMA.types, *nested, pa.binary(), pa.bool_(), pa.decimal128(38, 0)]))


TYPES = st.recursive(
    st.sampled_from([pa.int8(), pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), UTC]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda dtype: pa.map_(pa.string(), dtype)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: pa.struct([(f"F{n}", p) for n, p in enumerate(parts)])
        ),
    ),
    max_leaves=4,
)


def values_of(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw values of a type as Python has them, times as numbers."""
    types = pa.types
    if types.is_struct(dtype):
        present = st.fixed_dictionaries({field.name: values_of(field.type) for field in dtype})
    elif types.is_map(dtype):
        # A key comes once.
        present = st.dictionaries(st.text("ab", max_size=2), values_of(dtype.item_type), max_size=3).map(
            lambda entries: [*entries.items()]
        )
    elif types.is_list(dtype):
        present = st.lists(values_of(dtype.value_type), max_size=3)
    else:
        plain = {pa.string(): "a", pa.binary(): b"a", pa.bool_(): True, pa.float64(): 0.5}
        present = st.just(plain[dtype]) if dtype in plain else st.integers(-3, 3)
    return st.none() | present


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nested_values_are_read_from_any_part_of_a_file(data: st.DataObject) -> None:
    dtype = data.draw(TYPES)
    values = data.draw(st.lists(values_of(dtype), max_size=12))
    column, schema = pa.array(values, dtype), pa.schema([("x", dtype)])
    file = opened(pa.table({"X": column}), row_group_size=data.draw(st.integers(1, 12)))
    assert misfit(file.metadata, schema) is None
    begin, end = (data.draw(st.integers(0, 13)) for _ in range(2))
    found = read(file, schema, begin, end).column(0)
    assert found.type == dtype
    assert found.to_pylist() == column.slice(begin, max(0, end - begin)).to_pylist()


def test_fields_of_structs_are_found_by_name_and_are_null_where_there_are_none() -> None:
    stored = pa.list_(pa.struct([("B", pa.int32()), ("other", pa.list_(pa.int8())), ("a", pa.large_string())]))
    rows = [[{"B": 1, "other": [1], "a": "x"}, None], None, [], [{"B": None, "other": None, "a": "y"}]]
    file = opened(pa.table({"x": pa.array(rows, stored)}))
    dtype = pa.list_(pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.map_(pa.string(), pa.int8()))]))
    schema = pa.schema([("x", dtype)])
    assert misfit(file.metadata, schema) is None
    expected = [[{"a": "x", "b": 1, "c": None}, None], None, [], [{"a": "y", "b": None, "c": None}]]
    for begin in range(5):
        assert read(file, schema, begin).column(0).to_pylist() == expected[begin:]


def test_columns_are_read_by_the_names_that_the_files_have() -> None:
    file = opened(pa.table({"c-1": pa.array([{"c-2": 7}], pa.struct([("c-2", pa.int64())])), "c-3": ["a"]}))
    schema = pa.schema([("name", pa.string()), ("s", pa.struct([("inner name", pa.int64())]))])
    stored = pa.schema([("c-3", pa.string()), ("c-1", pa.struct([("c-2", pa.int64())]))])
    assert misfit(file.metadata, stored) is None
    (rows,) = rows_between(file, schema, 0, 9, stored)
    assert rows.to_pylist() == [{"c0": "a", "c1": {"inner name": 7}}]


def test_lists_that_are_stored_in_an_older_way_are_left_to_spark() -> None:
    file = opened(pa.table({"x": [[1]]}), use_compliant_nested_type=True)
    content = bytes(file.place.read_at(file.place.size(), 0)).replace(b"element", b"elemenT")
    why = misfit(StoredFile(pa.BufferReader(content)).metadata, pa.schema([("x", pa.list_(pa.int64()))]))
    assert why == "its column 'x' is list<elemenT: int64>, and array<bigint> is expected"


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(1000)}), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises((OSError, pa.ArrowException)):
        StoredFile(path)
