"""What is refused in pandas, Polars, Arrow and DuckDB is refused with code of that library, and that code is run."""

from __future__ import annotations

import importlib
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import cojoin as cj
from cojoin.embedded.frames import read_frame
from cojoin.embedded.libraries import value_faults

LIBRARIES = ["pandas", "arrow", "duckdb", "polars"]
NOON = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)
MIDNIGHT = NOON.replace(hour=0)
MILLIS = int(NOON.timestamp() * 1000)
US = pa.timestamp("us", "UTC")


@pytest.fixture(scope="module")
def database() -> Any:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture
def connection(database: Any) -> Any:
    with database.cursor() as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        yield connection
        connection.execute("RESET arrow_lossless_conversion")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "polars":
        pytest.importorskip("polars")
    return str(request.param)


def made(library: str, table: pa.Table, connection: Any) -> Any:
    """Return the rows of an Arrow table as a frame of a library, in the library's own types."""
    if library == "pandas":
        return table.to_pandas()
    if library == "polars":
        return importlib.import_module("polars").from_arrow(table)
    return table if library == "arrow" else connection.from_arrow(table)


def run(library: str, frame: Any, code: str) -> Any:
    """Run advice, and return the frame that it makes."""
    if library == "duckdb":
        return frame.project(code)
    names = {"df": frame, "table": frame, "pd": pd, "np": np, "pa": pa, "pc": pc}
    if library == "pandas":
        exec(code, names)
        return names["df"]
    return eval(code, names | {"pl": importlib.import_module("polars")} if library == "polars" else names)


def connect(left: Any, right: Any = None, **settings: Any) -> cj.ConnectedInputs:
    other = pa.table({"k": pa.array([7], pa.int64()), "t": pa.array([NOON - timedelta(days=9)], US), "tier": ["gold"]})
    columns = {"key": "k", "event_time": "t"}
    return cj.connect(
        cj.Input(left, **(columns | {"name": "trades"} | settings)),
        cj.Input(other if right is None else right, **columns, name="customers"),
    )


def refused(left: Any, right: Any = None, **settings: Any) -> str:
    with pytest.raises(cj.ConfigurationError) as caught:
        connect(left, right, **settings)
    return str(caught.value)


def cure(message: str) -> str:
    return message.rpartition(": ")[2]


def with_times(times: pa.Array) -> pa.Table:
    return pa.table({"k": pa.array([7] * len(times), pa.int64()), "t": times})


TIMES: dict[str, tuple[pa.Array, datetime]] = {
    "timestamp_ntz": (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), NOON),
    "bigint": (pa.array([MILLIS], pa.int64()), NOON),
    "int": (pa.array([MILLIS // 1000], pa.int32()), NOON),
    "double": (pa.array([MILLIS / 1000 + 0.123457], pa.float64()), NOON + timedelta(microseconds=123_457)),
    "decimal(20,6)": (pa.array([Decimal(MILLIS) / 1000], pa.decimal128(20, 6)), NOON),
    "string": (pa.array(["2026-01-15T12:00:00+00:00"]), NOON),
    "date": (pa.array([date(2026, 1, 15)]), MIDNIGHT),
    "interval day to second": (pa.array([timedelta(milliseconds=MILLIS)], pa.duration("us")), NOON),
}


@pytest.mark.parametrize("kind", TIMES)
def test_the_cure_for_an_event_time_of_another_type_gives_the_moment(library: str, kind: str, connection: Any) -> None:
    values, moment = TIMES[kind]
    frame = made(library, with_times(values), connection)
    message = refused(frame)
    if (library, kind) == ("duckdb", "interval day to second"):
        assert "has the type INTERVAL, of months, days and time, which Spark does not have; cast it: " in message
        return
    assert f"input 'trades': event time column 't': expected a timestamp, got {kind.partition('(')[0]}" in message
    found = connect(run(library, frame, cure(message))).asof_join().to_arrow()
    assert found.column("t").to_pylist() == [moment]


@pytest.mark.parametrize("name", ["end", "order", 'a "b"'])
def test_a_cure_names_columns_of_any_name(library: str, name: str, connection: Any) -> None:
    values, moment = TIMES["bigint"]
    frame = made(library, pa.table({"k": pa.array([7], pa.int64()), name: values}), connection)
    code = cure(refused(frame, event_time=name))
    found = connect(run(library, frame, code), event_time=name).asof_join().to_arrow()
    assert found.column(name).to_pylist() == [moment]


def test_a_key_column_is_named_once(library: str, connection: Any) -> None:
    frame = made(library, with_times(pa.array([NOON], US)), connection)
    assert refused(frame, key=["k", "k"]).endswith("key: expected different columns, got ['k', 'k']; name each once")


@pytest.mark.parametrize("is_naive", [False, True])
@pytest.mark.parametrize("others", [[], ["sensor"], [None]])
def test_an_index_of_times_without_a_name_is_given_that_of_the_event_time(others: list[Any], is_naive: bool) -> None:
    times = pd.DatetimeIndex([NOON]).tz_localize(None) if is_naive else pd.DatetimeIndex([NOON])
    index = pd.MultiIndex.from_arrays([*([3] for _ in others), times], names=[*others, None]) if others else times
    frame = pd.DataFrame({"k": [7]}, index=index)
    message = refused(frame, event_time="moment")
    assert (
        "input 'trades' has no event time column 'moment'; the index has times but no name: not a column; name"
        in message
    )
    frame = run("pandas", frame, cure(message))
    if is_naive:
        frame = run("pandas", frame, cure(refused(frame, event_time="moment")))
    found = connect(frame, event_time="moment").asof_join().to_arrow()
    assert found.column("moment").to_pylist() == [NOON]
    assert "did you mean 'k'?" in refused(pd.DataFrame({"k": [7]}, index=index), event_time="kk")
    assert "'k', 't'" in refused(pd.DataFrame({"k": [7], "t": [NOON]}, index=index), key="customer")
    assert "valid are 'k'" in refused(pd.DataFrame({"k": [7]}), event_time="moment")


def test_a_named_index_of_another_type_is_made_a_column_by_its_cure() -> None:
    frame = pd.DataFrame({"k": [7]}, index=pd.DatetimeIndex([NOON.replace(tzinfo=None)], name="t"))
    found = connect(run("pandas", frame, cure(refused(frame)))).asof_join().to_arrow()
    assert found.column("t").to_pylist() == [NOON]


def test_a_malformed_text_becomes_null_where_the_cure_does_not_end_at_it(library: str, connection: Any) -> None:
    texts = pa.array(["2026-01-15T12:00:00+00:00", "soon", None])
    frame = made(library, with_times(texts), connection)
    code = cure(refused(frame))
    if library in ("pandas", "arrow"):
        # Their own code ends there, with the text.
        with pytest.raises((ValueError, pa.ArrowInvalid), match="soon"):
            run(library, frame, code)
        return
    times = read_frame(run(library, frame, code), "input").column("t").to_pylist()
    assert times == [NOON, None, None]


@pytest.mark.parametrize("unit", ["timestamp", "duration", "time"])
def test_nanoseconds_are_refused_with_what_rounding_costs(library: str, unit: str, connection: Any) -> None:
    nanos = pa.array([1_000_000_001, 2_000, -1], pa.int64())
    kinds = {"timestamp": pa.timestamp("ns", "UTC"), "duration": pa.duration("ns"), "time": pa.time64("ns")}
    if unit == "time":
        nanos = pa.array([1_000_000_001, 2_000, 1], pa.int64())
    if (library, unit) in {("duckdb", "duration"), ("pandas", "time")}:
        pytest.skip("the library has no such type")
    values = nanos.cast(kinds[unit])
    rows = pa.table({"k": pa.array([7] * 3, pa.int64()), "t": pa.array([NOON] * 3, US), "v": values})
    if library == "duckdb":
        connection.execute("SET TimeZone = 'UTC'")
        rows = rows.set_column(2, "v", nanos)
        made_of = {"timestamp": "make_timestamp_ns(v)::TIMESTAMPTZ_NS", "time": "(TIME_NS '00:00:00.000000001')"}
        frame = made(library, rows, connection).project(f"* REPLACE ({made_of[unit]} AS v)")
    else:
        frame = made(library, rows, connection)
    message = refused(frame)
    assert "input 'trades': column 'v': its " in message
    down = message.partition("round them down: ")[2].partition(". As event times")[0]
    rounded = read_frame(run(library, frame, down), "input").column("v").cast(pa.int64()).to_pylist()
    if (library, unit) == ("duckdb", "time"):
        assert rounded == [0, 0, 0]
    elif unit == "timestamp":
        assert rounded == [1_000_000, 2, -1]
        assert "a version up to 999 ns younger than a row can match it; to rule that out, round those of the" in message
        frame = made(library, rows, connection) if library == "pandas" else frame
        rounded = read_frame(run(library, frame, cure(message)), "input").column("v").cast(pa.int64()).to_pylist()
        assert rounded == [1_000_001, 2, 0]
    else:
        assert rounded[:2] == [1_000_000, 2]


NUMBERS = [7, 8]
KEYS = {
    "int": pa.array(NUMBERS, pa.int32()),
    "smallint": pa.array(NUMBERS, pa.int16()),
    "string": pa.array(["7", "8"]),
    "decimal(12,2)": pa.array([Decimal("7.00"), Decimal("8.00")], pa.decimal128(12, 2)),
    "decimal(38,0)": pa.array([Decimal(7), Decimal(8)], pa.decimal128(38, 0)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_two_types_are_refused_with_a_cast_of_the_narrower(library: str, kind: str, connection: Any) -> None:
    times = pa.array([NOON] * 2, US)
    left = made(library, pa.table({"k": KEYS[kind], "t": times}), connection)
    right = pa.table({"id": pa.array(NUMBERS, pa.int64()), "t": times, "tier": ["gold", "silver"]})

    def join() -> cj.ConnectedInputs:
        sides = (cj.Input(left, "k", "t", "trades"), cj.Input(right, "id", "t", "customers"))
        return cj.connect(*sides)

    with pytest.raises(cj.SchemaError, match="the key types differ: 'k' of input 'trades' is ") as caught:
        join()
    codes = str(caught.value).partition("; cast ")[2].partition(": ")[2].split("; and ")
    # pandas has decimals of no declared width.
    assert len(codes) == (2 if kind == "decimal(12,2)" or (library, kind) == ("pandas", "decimal(38,0)") else 1)
    for code in codes:
        if "'id'" in code:
            right = run("arrow", right, code)
        else:
            left = run(library, left, code)
    assert sorted(join().asof_join().to_arrow().column("tier").to_pylist()) == ["gold", "silver"]


def test_a_key_of_floats_is_refused_with_a_cast(library: str, connection: Any) -> None:
    frame = made(library, pa.table({"k": pa.array([7.0]), "t": pa.array([NOON], US)}), connection)
    message = refused(frame)
    assert "key column 'k' has the type double, which can't be a key" in message
    assert connect(run(library, frame, cure(message))).asof_join().to_arrow().column("tier").to_pylist() == ["gold"]


OF_DUCKDB = {
    "'101'::BIT": "101",
    "['101'::BIT]": "[101]",
    "{'x': '101'::BIT}": "{'x': 101}",
    "MAP {'a': '101'::BIT}": "{a=101}",
    "'12:00:00+02'::TIMETZ": "12:00:00+02",
    "340282366920938463463374607431768211455::UHUGEINT": "340282366920938463463374607431768211455",
    "[1::UHUGEINT]": "[1]",
    "123456789012345678901234567890123456789012345::BIGNUM": "123456789012345678901234567890123456789012345",
    "[1::BIGNUM]": "[1]",
    "1::VARIANT": "1",
    "INTERVAL '2 days'": "2 days",
    "union_value(a := 1)": "1",
    "170141183460469231731687303715884105727::HUGEINT": "170141183460469231731687303715884105727",
    "'24:00:00'::TIME": "24:00:00",
    "[170141183460469231731687303715884105727::HUGEINT]": "[170141183460469231731687303715884105727]",
    "{'x': 170141183460469231731687303715884105727::HUGEINT}": "{'x': 170141183460469231731687303715884105727}",
}


@pytest.mark.parametrize("value", OF_DUCKDB)
def test_what_duckdb_would_export_as_something_else_is_refused_by_column(value: str, connection: Any) -> None:
    relation = connection.sql(f"SELECT 7::BIGINT AS k, '2026-01-15 12:00:00+00'::TIMESTAMPTZ AS t, {value} AS v")
    message = refused(relation)
    assert message.startswith("input 'trades': column 'v' has ")
    assert cure(message) == '* REPLACE ("v"::VARCHAR AS "v")'
    found = connect(relation.project(cure(message))).asof_join().to_arrow().column("v").to_pylist()
    assert found == [OF_DUCKDB[value]]
    # Also where the relation was made an Arrow table, which has other marks or none, no wrong value comes out.
    connection.execute("SET arrow_lossless_conversion = true")
    if not any(each in value for each in ("TIMETZ", "BIT", "1::U")):
        refused(relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.arrow())


def test_values_beside_a_slice_are_not_looked_at() -> None:
    bits = (10**38).to_bytes(16, "little") + (1).to_bytes(16, "little")
    wrong = pa.Array.from_buffers(pa.decimal128(38, 0), 2, [None, pa.py_buffer(bits)])
    for nested in (
        pa.ListArray.from_arrays([0, 1, 2], wrong),
        pa.FixedSizeListArray.from_arrays(wrong, 1),
        pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), wrong),
        pa.StructArray.from_arrays([wrong], ["x"]),
    ):
        assert "does not fit in precision" in str(value_faults(pa.chunked_array([nested])))
        assert value_faults(pa.chunked_array([nested.slice(1)])) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sum(3)", Decimal(3)),
        ("99999999999999999999999999999999999999::HUGEINT", Decimal(10**38 - 1)),
        ("-99999999999999999999999999999999999999::HUGEINT", Decimal(1 - 10**38)),
        ("'x'::ENUM('x', 'y')", "x"),
        ("'6d3e8f6e-0000-4000-8000-000000000001'::UUID", "6d3e8f6e-0000-4000-8000-000000000001"),
        ("'{\"a\":1}'::JSON", '{"a":1}'),
        ("'abc'::BLOB", b"abc"),
        ("1.5::DECIMAL(38,10)", Decimal("1.5000000000")),
    ],
)
def test_what_duckdb_exports_as_its_value_is_that_value(value: str, expected: Any, connection: Any) -> None:
    relation = connection.sql(f"SELECT 7::BIGINT AS k, '2026-01-15 12:00:00+00'::TIMESTAMPTZ AS t, {value} AS v")
    assert connect(relation).asof_join().to_arrow().column("v").to_pylist() == [expected]


def test_an_error_of_the_librarys_own_names_the_input(connection: Any) -> None:
    relation = connection.sql("SELECT 7::BIGINT AS k, '2026-01-15 12:00:00+00'::TIMESTAMPTZ AS t, 'x'::INT AS v")
    assert "input 'trades': its rows can't be read: Conversion Error: Could not convert string 'x'" in refused(relation)


def test_what_polars_would_export_as_something_else_is_refused_by_column() -> None:
    pl = pytest.importorskip("polars")
    base = {"k": [7], "t": [NOON]}
    shapes: list[tuple[Any, Any, Any]] = [
        (pl.Series([{"a"}], dtype=pl.Object), "{'a'}", None),
        (pl.Series([12], dtype=pl.Int128), "12", 12),
        (pl.Series([12], dtype=pl.UInt128), "12", 12),
    ]
    for series, text, number in shapes:
        frame = pl.DataFrame({**base, "v": series})
        message = refused(frame)
        assert message.startswith(f"input 'trades': column 'v' has the type {series.dtype}, ")
        codes = message.partition("; cast it: ")[2].split(", or ")
        found = [connect(run("polars", frame, code)).asof_join().to_arrow()["v"].to_pylist() for code in codes]
        assert found == ([[text]] if number is None else [[number], [Decimal(number)], [text]])
    for dtype in (pl.List(pl.Int128), pl.Struct({"x": pl.Int128})):
        value = [1] if dtype == pl.List(pl.Int128) else {"x": 1}
        frame = pl.DataFrame({**base, "v": pl.Series([value], dtype=dtype)})
        assert "Int128" in refused(frame)
        assert "which Arrow does not have; cast its values where the column is made" in refused(frame)


@pytest.mark.parametrize(
    "values",
    [
        pd.arrays.SparseArray([1, 0], fill_value=0),
        pd.arrays.SparseArray([1.5, np.nan]),
        pd.PeriodIndex(["2026-01", "2026-02"], freq="M"),
        np.array([1j, 2j]),
        [1 << 70, 2],
    ],
    ids=["sparse", "sparse floats", "period", "complex", "large"],
)
def test_a_type_of_pandas_alone_is_refused_with_code_that_helps(values: Any) -> None:
    frame = pd.DataFrame({"k": [7, 7], "t": pd.to_datetime([NOON] * 2, utc=True), "v": values})
    message = refused(frame)
    assert message.startswith("input 'trades': column 'v' ")
    assert connect(run("pandas", frame, cure(message))).asof_join().to_arrow().num_rows == 2


@pytest.mark.parametrize(
    "values",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.array([Decimal(10**50)], pa.decimal256(60, 0)),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        pa.array([1 << 63], pa.uint64()),
        pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "bignum", "DuckDB"), pa.array([b"\x80"])),
    ],
    ids=["interval", "decimal", "union", "uint64", "opaque"],
)
def test_a_type_of_arrow_alone_is_refused_with_code_that_helps(values: pa.Array) -> None:
    table = pa.table({"k": pa.array([7], pa.int64()), "t": pa.array([NOON], US), "v": values})
    message = refused(table)
    assert message.startswith("input 'trades': column 'v'")
    assert connect(run("arrow", table, cure(message))).asof_join().to_arrow().schema.field("v").type == pa.string()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"event_time": ["t"]}, "event time: expected a column's name, got ['t']; write 't'"),
        ({"key": 3}, "key: expected a column's name, or a list of names, got 3"),
        (
            {"key": pd.Series([7], name="k")},
            "key: expected a column's name, or a list of names, got a Series; write its",
        ),
        ({"event_time": pd.Series([NOON], name="t")}, "expected a column's name, got a Series; write its name, 't'"),
        ({"event_time": pd.Series([NOON])}, "event time: expected a column's name, got a Series"),
        ({"key": [pd.Series([7], name="k")]}, "key: expected a column's name, got a Series; write its name, 'k'"),
        ({"key": [["k"]]}, "key: expected a column's name, got ['k']; write 'k'"),
        ({"key": {"k": 1}}, "key: expected a column's name, or a list of names, got {'k': 1}"),
        ({"key": None}, "key: expected the key column or columns, got None; key=() joins rows by time alone"),
        ({"event_time": 5}, "event time: expected a column's name, got 5"),
        ({"partition": 5}, "partition: expected a column's name, or a list of names, got 5"),
        (
            {"sequence": pd.Series([1], name="v")},
            "sequence: expected a column's name, or a list of names, got a Series;",
        ),
        (
            {"event_time": ..., "valid_from": "t", "valid_to": ["t"]},
            "valid_to: expected the name of a timestamp column",
        ),
    ],
)
def test_what_is_no_columns_name_is_refused_in_a_line(settings: Any, said: str, connection: Any) -> None:
    for library in ("pandas", "duckdb"):
        message = refused(made(library, with_times(pa.array([NOON], US)), connection), **settings)
        assert message.startswith("input 'trades': ")
        assert said in message
        assert "\n" not in message
