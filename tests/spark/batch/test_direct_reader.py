"""Rows that the workers read from parquet files come packed as those that Spark reads: the same bytes."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.engine.input_spec import DIRECT
from cojoin.engine.key_groups import group_labels, spark_xx_hashes
from cojoin.engine.values.codec import read_message
from cojoin.session.arrow_types import spark_schema
from cojoin.session.spark_errors import explain
from cojoin.spark.batch.packing import CONTROL_TAG
from cojoin.spark.bound_input import BoundInput
from tests.seeds import SEED
from tests.seeds import drawn as drawn_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UTC, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
DDL = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    UTC: "timestamp",
    LOCAL: "timestamp_ntz",
    pa.decimal128(9, 2): "decimal(9, 2)",
    pa.decimal128(18, 4): "decimal(18, 4)",
    pa.decimal128(30, 10): "decimal(30, 10)",
}
KEYABLE = [each for each in DDL if each not in (pa.float32(), pa.float64(), pa.decimal128(30, 10))]
GROUPS = 5
FAILURES = (PySparkException, Py4JJavaError)
# The rows are equal there too, but pyarrow 18 reads other bytes behind their nulls.
LEAVES_VALUES_BEHIND_NULLS = pa.__version__.startswith("18.")


def drawn(rng: random.Random, dtype: pa.DataType, count: int, nulls: float) -> pa.Array:
    """Draw a column's values, its smallest and largest among them."""
    values: list[Any] = [None if rng.random() < nulls else value(rng, dtype) for _ in range(count)]
    if pa.types.is_timestamp(dtype):
        return pa.array(values, pa.int64()).cast(dtype)
    return pa.array(values, dtype)


def value(rng: random.Random, dtype: pa.DataType) -> Any:
    types = pa.types
    if types.is_integer(dtype):
        bound = 1 << (dtype.bit_width - 1)
        return rng.choice([0, -1, bound - 1, -bound, rng.randrange(-bound, bound), rng.randrange(4)])
    if types.is_timestamp(dtype):
        # From the year 1 to 9999; before 1582 a calendar matters.
        return rng.choice([0, -62_135_596_800_000_000, rng.randrange(-62_135_596_800_000_000, 253_402_300_800_000_000)])
    if types.is_decimal(dtype):
        digits = rng.randrange(-(10**dtype.precision) + 1, 10**dtype.precision)
        return decimal.Decimal(digits).scaleb(-dtype.scale, decimal.Context(prec=40))
    length = rng.choice([0, 1, 3, 4, 7, 8, 11, 31, 32, 33, 70, rng.randrange(150)])
    if types.is_boolean(dtype) or types.is_floating(dtype):
        floats = [0.0, -0.0, float("nan"), float("-inf"), rng.randrange(100) / 8]
        return rng.choice(floats if types.is_floating(dtype) else [True, False])
    if types.is_date32(dtype):
        return dt.date.fromordinal(rng.randrange(1, 3_652_059))
    text = "".join(rng.choice("aß€😀 ") for _ in range(length))
    return rng.randbytes(length) if types.is_binary(dtype) else text


def write(folder: Path, name: str, content: pa.Table, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(content, folder / name, **settings)
    return folder / name


def bound(spark: SparkSession, folder: Path, ddl: str, key: Any, event_time: str = "at", **settings: Any) -> BoundInput:
    """Return an input of the files that are there now, so that it can be executed without a query."""
    settings = {"max_ahead": None} | settings
    source = cj.sources.files(str(folder), "parquet", schema=ddl)
    found = BoundInput(cj.Input(source, key=key, event_time=event_time, name="trades", **settings), "left", 1)
    found.frame = spark.read.schema(ddl).parquet(str(folder))
    return found


@contextmanager
def through_spark(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.cojoin.parquet", "spark")
    yield
    spark.conf.unset("spark.cojoin.parquet")


def both(spark: SparkSession, make: Callable[[], BoundInput]) -> tuple[pa.Table, pa.Table]:
    """Return what is packed of an input directly, and by Spark."""
    direct = make()
    assert direct.spec.reading == DIRECT
    with through_spark(spark):
        general = make()
    assert general.spec.reading == "spark.cojoin.parquet is spark"
    return direct.packed(GROUPS).toArrow(), general.packed(GROUPS).toArrow()


def drawn_input(rng: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Write an input of drawn types as some files; return its columns and its key."""
    dtypes = [UTC, *rng.sample(KEYABLE, rng.randrange(1, 4)), *rng.choices([*DDL], k=rng.randrange(4))]
    names = ["at", *(f"c{rng.choice(['', ' `'])}{number}" for number in range(1, len(dtypes)))]
    keyable = [name for name, dtype in zip(names[1:], dtypes[1:], strict=True) if dtype in KEYABLE]
    nulls = rng.choice([0, 0.1, 1.0])
    for number in range(rng.randrange(1, 4)):
        count = rng.choice([0, 1, 700, 3000, 9000])
        columns = [
            drawn(rng, dtype, count, 0.05 if name == "at" else nulls) for name, dtype in zip(names, dtypes, strict=True)
        ]
        group, codec = rng.choice([100, 1000, 10_000]), rng.choice(["snappy", "zstd", "none"])
        is_old = LOCAL not in dtypes and rng.random() < 0.3
        written = pa.table(columns, names).replace_schema_metadata({"org.apache.spark.version": "4.0.1"})
        write(
            folder,
            f"{number}.parquet",
            written,
            row_group_size=group,
            compression=codec,
            use_deprecated_int96_timestamps=is_old,
            data_page_version=rng.choice(["1.0", "2.0"]),
            write_page_checksum=True,
        )
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    ddl = ", ".join(f"{name} {DDL[dtype]}" for name, dtype in zip(quoted, dtypes, strict=True))
    return ddl, rng.sample(keyable, rng.randrange(1, len(keyable) + 1))


def check_drawn(spark: SparkSession, folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    ddl, key = drawn_input(rng, folder)
    direct, general = both(spark, lambda: bound(spark, folder, ddl, key))
    note = f"seed {seed}: key {key} of {ddl}"
    static = BoundInput(cj.Input(spark.read.schema(ddl).parquet(str(folder)), key, "at", "trades"), "left", 1)
    assert static.reads_files, note
    assert static.packed(GROUPS).toArrow().equals(direct), note
    assert direct.drop_columns("payload").equals(general.drop_columns("payload")), note
    if LEAVES_VALUES_BEHIND_NULLS:
        assert pc.binary_length(direct["payload"]).equals(pc.binary_length(general["payload"])), note
    else:
        assert direct.equals(general), note


@pytest.mark.parametrize("number", range(4))
def test_the_same_rows_are_packed_to_the_same_bytes(spark: SparkSession, tmp_path: Path, number: int) -> None:
    check_drawn(spark, tmp_path / "in", SEED + number)


@pytest.mark.slow
@pytest.mark.parametrize("number", drawn_parameters(range(100, 160), 15))
def test_the_same_rows_are_packed_to_the_same_bytes_many_times(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    check_drawn(spark, tmp_path / "in", SEED + number)


NESTED = {
    "array<string>": pa.list_(pa.string()),
    "array<array<int>>": pa.list_(pa.list_(pa.int32())),
    "map<string, struct<`at`: timestamp, `N`: bigint>>": pa.map_(
        pa.string(), pa.struct([("at", UTC), ("N", pa.int64())])
    ),
    "struct<`a b`: array<double>, `s`: struct<`day`: date>>": pa.struct(
        [("a b", pa.list_(pa.float64())), ("s", pa.struct([("day", pa.date32())]))]
    ),
}


@pytest.mark.parametrize("version", ["by Spark", "by pyarrow"])
def test_nested_values_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path, version: str) -> None:
    rng, folder = random.Random(SEED), tmp_path / "in"

    def nested(dtype: pa.DataType) -> Any:
        if rng.random() < 0.2:
            return None
        if pa.types.is_struct(dtype):
            return {field.name: nested(field.type) for field in dtype}
        if pa.types.is_map(dtype):
            return [(str(number), nested(dtype.item_type)) for number in range(rng.randrange(3))]
        if pa.types.is_list(dtype):
            return [nested(dtype.value_type) for _ in range(rng.randrange(4))]
        return value(rng, dtype)

    ids = range(300)
    columns = {"id": pa.array(ids), "at": pa.array(ids, pa.int64()).cast(UTC)}
    columns |= {f"n{at}": pa.array([nested(each) for _ in ids], each) for at, each in enumerate(NESTED.values())}
    content, ddl = pa.table(columns), ", ".join(f"n{at} {each}" for at, each in enumerate(NESTED))
    ddl = f"id bigint, at timestamp, {ddl}"
    if version == "by Spark":
        spark.createDataFrame(content, spark_schema(content.schema)).coalesce(1).write.parquet(str(folder))
    else:
        write(folder, "0.parquet", content, row_group_size=70)
        # An older file, without some columns and fields, and with others in another case.
        stored = pa.struct([("S", pa.struct([("DAY", pa.date32()), ("more", pa.int8())])), ("x", pa.list_(UTC))])
        older = pa.array([nested(stored) for _ in ids], stored)
        write(folder, "1.parquet", pa.table({"n3": older, "id": pa.array(ids), "AT": columns["at"]}))
    direct, general = both(spark, lambda: bound(spark, folder, ddl, "id"))
    schema = bound(spark, folder, ddl, "id").spec.schema
    # As texts, since NaN is not equal to itself.
    assert str(unpacked(direct, schema)) == str(unpacked(general, schema))


def test_the_hash_is_spark_s(spark: SparkSession) -> None:
    rng = random.Random(SEED)
    content = pa.table([drawn(rng, dtype, 500, 0.1) for dtype in KEYABLE], [f"k{at}" for at in range(len(KEYABLE))])
    keys = [[name] for name in content.column_names]
    keys += [rng.sample(content.column_names, rng.randrange(2, 6)) for _ in range(10)]
    hashes = spark.createDataFrame(content, spark_schema(content.schema)).select(
        *(F.xxhash64(*key).alias(f"h{at}") for at, key in enumerate(keys))
    ).toArrow()  # fmt: skip
    for at, key in enumerate(keys):
        found = spark_xx_hashes(content.select(key))
        assert np.array_equal(found, hashes.column(at).to_numpy()), [content.schema.field(name).type for name in key]


def unpacked(packed: pa.Table, schema: pa.Schema) -> dict[int, list[Any]]:
    """Return the rows of each key group, and check that each task has sent its control rows."""
    found: dict[int, list[Any]] = {label: [] for label in group_labels(GROUPS)}
    for label, tag, payload in zip(*(column.to_pylist() for column in packed.columns), strict=True):
        if tag != CONTROL_TAG:
            found[label] += read_message(pa.py_buffer(payload), schema).to_pylist()
    return {label: sorted(rows, key=lambda row: row["id"]) for label, rows in found.items()}


def test_one_large_file_is_read_by_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    count = 60_000
    content = pa.table(
        {"id": range(count), "at": pa.array(range(count), pa.int64()).cast(UTC), "k": [7, 8, 9] * 20_000}
    )
    write(tmp_path / "in", "a b%20c#ü.parquet", content, row_group_size=7_000)
    names = {"spark.sql.files.maxPartitionBytes": 100_000, "spark.sql.files.openCostInBytes": 0}
    before = {name: spark.conf.get(name) for name in names}
    for name, number in names.items():
        spark.conf.set(name, number)
    try:
        ddl = "id bigint, at timestamp, k bigint"
        direct, general = both(spark, lambda: bound(spark, tmp_path / "in", ddl, "k"))
    finally:
        for name, text in before.items():
            spark.conf.set(name, str(text))
    controls = [packed.column("tag").to_pylist().count(CONTROL_TAG) for packed in (direct, general)]
    assert controls[0] == controls[1] >= 2 * GROUPS
    schema = pa.schema([("id", pa.int64()), ("at", UTC), ("k", pa.int64())])
    assert unpacked(direct, schema) == unpacked(general, schema)


ORDINARY = pa.table({"id": [1, 2], "at": pa.array([5, 6], UTC), "k": ["a", "b"]})
ORDINARY_DDL = "id bigint, at timestamp, k string"


def as_before_the_start(spark: SparkSession, folder: Path, name: str, content: pa.Table, **settings: Any) -> BoundInput:
    """Return an input that is read directly, to whose folder another file was added since."""
    write(folder, "0.parquet", ORDINARY)
    found = bound(spark, folder, ORDINARY_DDL, "k")
    assert found.spec.reading == DIRECT
    (folder / name).parent.mkdir(exist_ok=True)
    write((folder / name).parent, (folder / name).name, content, **settings)
    found.frame = spark.read.schema(ORDINARY_DDL).parquet(str(folder))
    return found


@pytest.mark.parametrize(
    "content",
    [
        pa.table({"ID": [3], "other": [[{"a": 1}]], "K": ["c"], "AT": pa.array([7], UTC)}),
        pa.table({"id": pa.array([3], pa.int32()), "at": pa.array([7], pa.timestamp("ms"))}),
        pa.table({"unknown": [1.5, None]}),
    ],
    ids=["upper case and more columns", "narrower, and without a key", "none of the columns"],
)
def test_unlike_files_give_what_spark_reads_of_them(spark: SparkSession, tmp_path: Path, content: pa.Table) -> None:
    write(tmp_path / "in", "0.parquet", ORDINARY)
    write(tmp_path / "in", "1.parquet", content)
    direct, general = both(spark, lambda: bound(spark, tmp_path / "in", ORDINARY_DDL, "k"))
    assert direct.equals(general)


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("1.parquet", {"at": pa.array([7], pa.timestamp("ns"))}, {}, "timeunit nanoseconds"),
        ("1.parquet", {"id": ["3"]}, {}, r"'id' is BYTE_ARRAY \(String\), and bigint is expected"),
        ("1.parquet", {"k": [["c"]]}, {}, "'k' is list<element: string>, and string is expected"),
        ("1.parquet", {"id": [3], "Id": [3]}, {}, "columns 'id' and 'Id', which are one to Spark"),
        ("id=3/1.parquet", {"k": ["c"]}, {}, "its folder 'id=3' is a Spark partition"),
    ],
)
def test_a_file_that_spark_reads_in_its_own_way_stops_the_query_with_what_to_do(
    spark: SparkSession, tmp_path: Path, name: str, content: dict[str, Any], settings: Any, message: str
) -> None:
    found = as_before_the_start(spark, tmp_path / "in", name, pa.table(content), **settings)
    if "=" in name:
        found.frame = found.frame.sparkSession.read.schema(ORDINARY_DDL).parquet(str(tmp_path / "in" / "id=3"))
    with pytest.raises(FAILURES) as error:
        found.packed(GROUPS).collect()
    told = explain(error.value)
    assert "input 'trades': " in told
    assert re.search(message, told), told
    assert "set spark.cojoin.parquet=spark in the session and connect the inputs again: Spark then reads" in told


@pytest.mark.parametrize("harm", ["gone", "cut", "damaged"])
def test_a_file_that_is_gone_or_damaged_is_an_error_on_both_ways(
    spark: SparkSession, tmp_path: Path, harm: str
) -> None:
    content = pa.table(
        {"id": range(5000), "at": pa.array(range(5000), UTC), "k": [str(at * 7919) for at in range(5000)]}
    )

    def make() -> BoundInput:
        path = write(tmp_path / "in", "0.parquet", content, compression="gzip", use_dictionary=False)
        found = bound(spark, tmp_path / "in", ORDINARY_DDL, "k")
        if harm == "gone":
            path.unlink()
        elif harm == "cut":
            path.write_bytes(path.read_bytes()[:-50])
        else:
            whole = bytearray(path.read_bytes())
            whole[200:20_000] = bytes(19_800)
            path.write_bytes(whole)
        return found

    direct = make()
    assert direct.spec.reading == DIRECT
    with pytest.raises(FAILURES) as error:
        direct.packed(GROUPS).collect()
    assert "0.parquet" in explain(error.value)
    with through_spark(spark):
        general = make()
    with pytest.raises(FAILURES, match=r"0\.parquet"):
        general.packed(GROUPS).collect()


def test_a_changed_bit_in_a_file_of_sparks_is_an_error_on_both_ways(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    rows = spark.range(1000).selectExpr("id", "timestamp_micros(id) at", "string(id % 7) k")
    rows.coalesce(1).write.option("compression", "none").parquet(str(folder))
    (path,) = folder.glob("*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
    direct = bound(spark, folder, ORDINARY_DDL, "k")
    assert direct.spec.reading == DIRECT
    with pytest.raises(FAILURES) as error:
        direct.packed(GROUPS).collect()
    assert f"{path.name} can't be read: " in explain(error.value)
    with through_spark(spark):
        general = bound(spark, folder, ORDINARY_DDL, "k")
    with pytest.raises(FAILURES, match="Checksum"):
        general.packed(GROUPS).collect()


@pytest.mark.parametrize("count", [1, 20_000])
def test_a_file_that_is_replaced_since_it_was_listed_is_an_error(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    path = write(tmp_path / "in", "0.parquet", ORDINARY)
    size = path.stat().st_size
    found = bound(spark, tmp_path / "in", ORDINARY_DDL, "k")
    write(tmp_path / "in", "0.parquet", pa.concat_tables([ORDINARY] * count).slice(0, 2 * count - 1))
    with pytest.raises(FAILURES) as error:
        found.packed(GROUPS).collect()
    told = explain(error.value)
    assert f"it has {path.stat().st_size:,} bytes now, and had {size:,} when its rows were counted" in told
    assert "put it back as it was, and start the query again" in told
