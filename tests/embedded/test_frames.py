"""What a person may hand over as rows in memory: what is taken as it is meant, and what is refused in words."""

from __future__ import annotations

import decimal
from datetime import date, datetime, timezone
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.embedded import frames
from cojoin.embedded.frames import read_frame
from cojoin.embedded.pandas_frames import as_pandas

NOON = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)
US = pa.timestamp("us", "UTC")
COLUMNS: dict[str, Any] = {"key": "k", "event_time": "t"}


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"k": [7, 7], "t": pd.to_datetime([NOON, NOON], utc=True)} | columns)


def connect(left: Any, right: Any = None, **settings: Any) -> cj.ConnectedInputs:
    other = pa.table({"k": pa.array([7], pa.int64()), "t": pa.array([NOON], US), "tier": ["gold"]})
    return cj.connect(
        cj.Input(left, **(COLUMNS | {"name": "trades"} | settings)),
        cj.Input(other if right is None else right, **COLUMNS, name="customers"),
    )


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pd.Series(["a", "b"], dtype="category"), pa.string()),
        (pd.Series(["a", None]), pa.string()),
        (pd.Series([1, None], dtype="Int64"), pa.int64()),
        (np.array([1, 2], dtype=np.uint8), pa.int16()),
        (np.array([1, 2], dtype=np.uint64), pa.int64()),
        (np.array([1, 2], dtype=np.float16), pa.float32()),
        ([decimal.Decimal("1.50"), None], pa.decimal128(3, 2)),
        ([date(2026, 1, 1), None], pa.date32()),
        ([b"a", b"b"], pa.binary()),
        ([[1, 2], None], pa.list_(pa.int64())),
        ([{"x": 1}, {"x": 2}], pa.struct([("x", pa.int64())])),
        (pd.to_datetime(["2026-01-01", "2026-01-02"]), pa.timestamp("us")),
        (pd.to_datetime(["2026-01-01", "2026-01-02"]).tz_localize("Europe/Berlin"), US),
        (pd.to_timedelta([1, 2], unit="s"), pa.duration("us")),
        ([NOON, NOON.astimezone()], US),
        ([True, None], pa.bool_()),
    ],
)
def test_pandas_columns_have_sparks_types(column: Any, dtype: pa.DataType) -> None:
    table = read_frame(frame(v=column), "input 'trades'")
    assert table.schema.field("v").type == dtype
    assert table.schema.field("t").type == US


def test_a_named_index_becomes_columns_and_another_is_dropped() -> None:
    named = frame().set_index("t")
    assert read_frame(named, "input").column_names == ["t", "k"]
    assert read_frame(frame().iloc[1:], "input").column_names == ["k", "t"]
    assert connect(named).asof_join().to_pandas()["tier"].tolist() == ["gold", "gold"]


def test_the_named_levels_of_an_index_become_columns_and_its_others_are_dropped() -> None:
    # As groupby(...).apply(...) makes it: the key, and the place of the row before.
    rows = frame(v=[1, 2])
    rows.index = pd.MultiIndex.from_arrays([rows.pop("k"), [10, 20]], names=["k", None])
    table = read_frame(rows, "input")
    assert table.column_names == ["k", "t", "v"]
    assert table.column("k").to_pylist() == [7, 7]
    assert rows.index.names == ["k", None]
    three = frame().set_index(pd.MultiIndex.from_arrays([[1, 2], [3, 4], [5, 6]], names=["a", None, "c"]))
    assert read_frame(three, "input").select(["a", "c"]).to_pylist() == [{"a": 1, "c": 5}, {"a": 2, "c": 6}]
    nameless = frame().set_index(pd.MultiIndex.from_arrays([[1, 2], [3, 4]]))
    assert read_frame(nameless, "input").column_names == ["k", "t"]
    with pytest.raises(cj.SchemaError, match="its index has the name of a column"):
        read_frame(frame().set_index(pd.MultiIndex.from_arrays([[1, 2], [3, 4]], names=["k", None])), "input")


def test_nan_is_null_in_pandas_own_types_and_nan_in_arrows() -> None:
    values = pa.array([1.5, float("nan")])
    assert read_frame(frame(v=values.to_pandas()), "input").column("v").null_count == 1
    kept = read_frame(frame(v=pd.Series(values, dtype=pd.ArrowDtype(pa.float64()))), "input").column("v")
    assert kept.null_count == 0
    assert np.isnan(kept.to_pylist()[1])


def test_encoded_columns_are_decoded() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([7]))
    lists = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array([["a"]]))
    views = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["a"], pa.string_view()))
    rows = pa.table({"k": runs, "t": pa.array([NOON] * 2, US), "tags": lists, "view": views})
    found = connect(rows).asof_join().to_arrow().select(["k", "tags", "view", "tier"])
    expected = [(7, None, None, "gold"), (7, ["a"], "a", "gold")]
    assert sorted((tuple(row.values()) for row in found.to_pylist()), key=repr) == expected


def test_polars_and_duckdb_are_read_by_arrows_interface() -> None:
    with duckdb.connect() as connection:
        relation = connection.sql("SELECT 7::BIGINT AS k, TIMESTAMPTZ '2026-01-15 12:00:00+00' AS t, 'x' AS v")
        assert connect(relation).asof_join().to_arrow().column("tier").to_pylist() == ["gold"]


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (
            frame(t=pd.to_datetime(["2026-01-01", "2026-01-02"])),
            (
                "input 'trades': event time column 't': expected a timestamp, got timestamp_ntz; "
                "write time_zone='UTC' or their own zone, or make it a timestamp: "
                "df['t'] = df['t'].dt.tz_localize('UTC')"
            ),
        ),
        (
            frame(t=[NOON, NOON.replace(tzinfo=None)]),
            "input 'trades': column 't' has values of several types: times with a zone, such as",
        ),
        (
            frame(t=[1, 2]),
            "write time_unit='ms', or make it a timestamp: df['t'] = pd.to_datetime(df['t'], unit='ms', utc=True)",
        ),
        (
            frame(v=[1, "a"]),
            "input 'trades': column 'v' has values of several types: int, such as 1, and, in row 1, 'a' (str); ",
        ),
        (frame(v=[1 << 70, 2]), "input 'trades': column 'v' (object) can't become an Arrow column:"),
        (frame(v=np.array([1 << 63, 0], np.uint64)), "its uint64 does not fit Spark's type int64"),
        (
            frame(t=pd.to_datetime([1_000_000_001, 2], utc=True)),
            "column 't': its timestamp[ns, tz=UTC] does not fit Spark's type timestamp[us, tz=UTC]",
        ),
        (
            pd.concat([frame(), frame()[["k"]]], axis=1),
            "input 'trades' has two columns 'k'; rename or drop one",
        ),
        (frame().rename(columns={"k": "K"}).assign(k=1), "which differ only in case: to Spark and Delta they are one"),
        (frame().rename(columns={"k": 0}), "column 0: expected a text as its name; rename it, such as with"),
        (frame(k=[1.5, 2.5]), "pandas makes floats of whole numbers with nulls: df['k'] = df['k'].astype('Int64')"),
        (frame(k=np.array([1, 2], np.int32)), "is bigint; cast one: df['k'] = df['k'].astype('Int64')"),
        (frame(k=["a", "b"]), "the key types differ: 'k' of input 'trades' is string, 'k' of input 'customers' is big"),
        (frame().rename(columns={"k": "kk"}), "input 'trades' has no key column 'k'; did you mean 'kk'?"),
        ([{"k": 1}], "got list; make a table of it: pyarrow.Table.from_pylist(rows), or pandas.DataFrame(rows)"),
        (frame(v=[date(2026, 1, 1), NOON]), "several types: dates, such as datetime.date(2026, 1, 1), and, in row 1,"),
        (frame(v=[["a", b"b"], None]), "several types: str, such as 'a', and, in row 0, b'b' (bytes)"),
        (frame(v=[{"x": [NOON]}, {"x": [NOON.replace(tzinfo=None)]}]), "choose one zone: pandas.to_datetime"),
        (
            frame(v=pd.Series([pd.Timestamp("2026-01-01T00:00:00.000000001Z")] * 2, dtype=object)),
            "has nanoseconds, and Spark's times have microseconds; round it",
        ),
        (
            frame(v=pd.Series(["a", "\ud800"], dtype=object)),
            "input 'trades': column 'v' (object) can't become an Arrow column",
        ),
        (frame(k=pd.PeriodIndex(["2026-01"] * 2, freq="M").astype("category")), "input 'trades': column 'k'"),
        (pa.array([1, 2]), "input 'trades': its rows can't be read"),
        (frame(v=[1j, 2j]), "input 'trades': column 'v' (complex128) can't become an Arrow column"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_column_and_the_cure(left: Any, message: str) -> None:
    with pytest.raises(cj.ConfigurationError) as caught:
        connect(left)
    assert message in str(caught.value)


def test_a_frame_that_changes_afterwards_changes_nothing() -> None:
    trades = frame(v=[1, 2])
    joined = connect(trades).asof_join()
    trades.loc[:, "v"] = 99
    trades.loc[:, "k"] = 8
    assert joined.to_arrow().select(["k", "v"]).to_pydict() == {"k": [7, 7], "v": [1, 2]}


def test_columns_without_values_take_the_type_that_they_need() -> None:
    empty = frame().astype({"k": object, "t": object}).iloc[:0]
    assert connect(empty).asof_join().to_arrow().num_rows == 0
    unknown = frame().assign(k=None, t=None)
    assert connect(unknown).asof_join().run().report.inputs[0].rejected == {"null_event_time": 2}
    with pytest.raises(cj.SchemaError, match="it has no values, and so no type; give it one: df"):
        connect(empty, unknown)


def test_the_types_of_pandas_alone_are_refused() -> None:
    with pytest.raises(
        cj.SchemaError, match=r"column 'v' has the type extension<pandas.period.*Spark does not have; drop it"
    ):
        connect(frame(v=pd.PeriodIndex(["2026-01", "2026-02"], freq="M")))


def test_a_lazy_frame_is_refused() -> None:
    class LazyFrame:
        __module__ = "polars.lazyframe.frame"

    with pytest.raises(cj.ConfigurationError, match=r"got polars.LazyFrame; run it with .collect\(\)"):
        connect(LazyFrame())


def test_a_reader_gives_its_rows_once() -> None:
    reader = pa.Table.from_pandas(frame()).to_reader()
    joined = connect(reader).asof_join()
    assert [joined.to_arrow().num_rows, joined.to_arrow().num_rows] == [2, 2]
    with pytest.raises(cj.ConfigurationError, match="input 'trades': the reader was read before, and gives its rows"):
        connect(reader)
    spent = pa.Table.from_pandas(frame()).to_reader()
    spent.read_all()
    with pytest.warns(UserWarning, match="the reader gave no rows; if it was read before, keep its rows"):
        connect(spent)


def test_too_large_a_frame_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "available_memory", lambda: 10_000)
    large = pa.table({"k": pa.array([7] * 1_000, pa.int64()), "t": pa.array([NOON] * 1_000, US)})
    with pytest.raises(cj.ConfigurationError) as caught:
        connect(large)
    assert str(caught.value).startswith("inputs 'trades' and 'customers': their 16.0 kB would need about 48.")
    assert "or join them on Spark, which spills to disk" in str(caught.value)


def test_the_free_memory_is_known_here() -> None:
    free = frames.available_memory()
    assert free is not None
    assert free > 100_000_000


@pytest.mark.push  # A trigger is of Spark.
def test_what_runs_elsewhere_is_refused_with_the_way_there() -> None:
    joined = connect(frame()).asof_join()
    with pytest.raises(cj.ConfigurationError, match=r"to_dataframe\(\) runs on Spark, and inputs 'trades' and 'cust"):
        joined.to_dataframe()
    with pytest.raises(cj.ConfigurationError, match=r"start\(\) runs on Spark"):
        joined.start(output="x", checkpoint="y", trigger=cj.Trigger.available_now())  # type: ignore[arg-type]
    with pytest.raises(cj.ConfigurationError, match="output: expected 'output' or 'rejected', got 'late'"):
        joined.to_arrow("late")  # type: ignore[arg-type]


def test_numbers_with_nulls_stay_numbers_in_pandas() -> None:
    large = (1 << 60) + 1
    found = as_pandas(pa.table({"a": [large, None], "b": [1, 2], "c": [True, None], "d": [1.5, None]}))
    assert found.columns.tolist() == ["a", "b", "c", "d"]
    assert [str(each) for each in found.dtypes] == ["Int64", "int64", "boolean", "float64"]
    assert found["a"].tolist()[0] == large
    nested = as_pandas(pa.table({"a": [[large, None]], "s": [{"x": large}], "d": pa.array([3_000_000], pa.date32())}))
    assert list(nested["a"][0]) == [large, None]
    assert nested["s"][0] == {"x": large}


def test_the_time_that_pandas_takes_for_a_missing_one_stays_a_time() -> None:
    smallest = pa.array([-(1 << 63), 5, None], pa.int64())
    types = [US, pa.timestamp("us"), pa.duration("us")]
    times = [smallest.cast(each) for each in types]
    lists = [pa.ListArray.from_arrays([0, 1, 2, 3], times[0]), pa.StructArray.from_arrays([times[1]], ["x"])]
    table = pa.table([*times, *lists], names=list("abcde"))
    found = as_pandas(table)
    assert found.columns.tolist() == list("abcde")
    assert found["a"].isna().tolist() == [False, False, True]
    assert pa.Table.from_pandas(found, schema=table.schema).equals(table)
    assert str(as_pandas(table.slice(1)).dtypes["a"]) == "datetime64[us, UTC]"
