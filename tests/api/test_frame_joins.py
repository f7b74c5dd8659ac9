"""Joins of frames in one line: the left's rows in its order and library, beside peers and an oracle in plain Python."""

from __future__ import annotations

import doctest
import random
import subprocess
import sys
import warnings
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.api import frame_joins
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

US = pa.timestamp("us", "UTC")
NOON = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)
LIBRARIES = ["pandas", "polars", "arrow", "duckdb", "stream"]
TIERS = [None, "gold", "silver"]


class Stream:
    """Rows that are known by Arrow's interface alone."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture(params=LIBRARIES)
def made(request: pytest.FixtureRequest, connection: Any) -> Callable[[pa.Table], Any]:
    """Return a function that makes a frame of a library from an Arrow table."""
    return maker(request.param, connection)


def maker(library: str, connection: Any) -> Callable[[pa.Table], Any]:
    if library == "polars":
        return pytest.importorskip("polars").from_arrow  # type: ignore[no-any-return]
    if library == "pandas":
        return lambda table: table.to_pandas(integer_object_nulls=False, types_mapper=nullable)
    return {"arrow": lambda table: table, "duckdb": connection.from_arrow, "stream": Stream}[library]


def nullable(dtype: pa.DataType) -> Any:
    return pd.Int64Dtype() if dtype == pa.int64() else None


def table_of(frame: Any) -> pa.Table:
    if isinstance(frame, pd.DataFrame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame if isinstance(frame, pa.Table) else frame.to_arrow()


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """Return a frame's rows, with times in epoch microseconds."""
    table = table_of(frame)
    columns = [
        column.cast(US).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def drawn(seed: object, count: int, *, nulls: bool = True, side: str) -> pa.Table:
    """Return random rows with few keys and moments, so that many tie."""
    draw = random.Random(f"{SEED} {seed} {side}")

    def some(value: Any) -> Any:
        return None if nulls and draw.random() < 0.1 else value

    columns = {
        "id": pa.array([some(draw.randrange(3)) for _ in range(count)], pa.int64()),
        "t": pa.array([some(NOON + timedelta(seconds=draw.randrange(20))) for _ in range(count)], US),
        f"{side}_tier": pa.array([draw.choice(TIERS) for _ in range(count)], pa.string()).dictionary_encode(),
        f"{side}_n": pa.array([some(draw.randrange(5)) for _ in range(count)], pa.int64()),
    }
    return pa.table(columns)


def content(row: tuple[Any, ...]) -> Any:
    """Spell a row so that Python sorts it as the total order does: nulls first."""
    return tuple((value is not None, value) for value in row)


ID, T = 0, 1
SECOND = 1_000_000


def candidates(left: tuple[Any, ...], right: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the right rows of a left row's key, in the total order."""
    if None in (left[ID], left[T]):
        return []
    same = [row for row in right if row[ID] == left[ID] and row[T] is not None]
    return sorted(same, key=lambda row: (row[T], content(row)))


def asof_oracle(
    left: tuple[Any, ...], right: list[tuple[Any, ...]], settings: dict[str, Any]
) -> tuple[Any, ...] | None:
    """Return the match of a left row by looking at all rows."""
    tolerance, exact = settings.get("tolerance"), settings.get("allow_exact_matches", True)
    rows = [row for row in candidates(left, right) if exact or row[T] != left[T]]
    if tolerance is not None:
        rows = [row for row in rows if abs(row[T] - left[T]) <= tolerance / timedelta(microseconds=1)]
    behind = [row for row in rows if row[T] <= left[T]][-1:]
    later = [row for row in rows if row[T] >= left[T]]
    # The last of those that come first.
    ahead = [row for row in later if row[T] == later[0][T]][-1:]
    direction = settings.get("direction", "backward")
    if direction == "nearest":
        is_ahead = ahead and (not behind or ahead[0][T] - left[T] < left[T] - behind[0][T])
        return (ahead if is_ahead else behind or ahead or [None])[0]
    return ((behind if direction == "backward" else ahead) or [None])[0]


def expected(left: list[Any], match: Callable[[Any], list[Any]], how: str, width: int = 3) -> list[tuple[Any, ...]]:
    """Return the result's rows: the left's columns, then the right's without its key."""
    rows = []
    for row in left:
        matches = match(row) or ([None] if how == "left" else [])
        rows += [(*row, *([None] * width if each is None else each[1:])) for each in matches]
    return rows


def quiet(join: Callable[..., Any], *frames: Any, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cj.MissingRowsWarning)
        return join(*frames, **settings)


BOTH = pytest.mark.parametrize("how", ["left", "inner"])
SETTINGS: list[dict[str, Any]] = [
    {"direction": direction, "tolerance": tolerance, "allow_exact_matches": exact}
    for direction in ("backward", "forward", "nearest")
    for tolerance, exact in ((None, True), (timedelta(seconds=2), True), (timedelta(seconds=3), False))
]


def asof_matches(right: pa.Table, settings: dict[str, Any]) -> Callable[[Any], list[Any]]:
    rows = rows_of(right)
    return lambda row: [each for each in [asof_oracle(row, rows, settings)] if each is not None]


@BOTH
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_oracle_of_the_asof_join(connection: Any, settings: dict[str, Any], how: str) -> None:
    for library in ("arrow", random.Random(f"{SEED} {settings} {how}").choice(["pandas", "duckdb", "stream"])):
        make = maker(library, connection)
        left, right = (drawn((settings, library), count, side=side) for side, count in (("l", 30), ("r", 40)))
        joined = quiet(cj.asof_join, make(left), make(right), on="t", by="id", how=how, **settings)
        assert rows_of(joined) == expected(rows_of(left), asof_matches(right, settings), how)


@BOTH
def test_oracle_of_the_temporal_join(made: Any, how: str) -> None:
    for number in range(3):
        left, right = (drawn(("temporal", number), count, side=side) for side, count in (("l", 30), ("r", 40)))
        closed = [None if value is None else value > 2 for value in right.column("r_n").to_pylist()]
        right = right.append_column("closed", pa.array(closed))
        rows = rows_of(right)

        def matches(row: tuple[Any, ...], rows: list[Any] = rows) -> list[Any]:
            before = [each for each in candidates(row, rows) if each[T] <= row[T]]
            if not before:
                return []
            last = [each for each in before if each[T] == before[-1][T]]
            # A tombstone comes after the versions of its instant.
            return [] if any(each[-1] for each in last) else [last[-1][:-1]]

        joined = quiet(cj.temporal_join, made(left), made(right), on="t", by="id", how=how, deletes="closed")
        assert rows_of(joined) == expected(rows_of(left), matches, how)


def test_a_row_without_payload_is_a_tombstone() -> None:
    left = pa.table({"id": [7, 7], "t": pa.array([NOON, NOON + timedelta(seconds=9)], US)})
    right = left.append_column("tier", pa.array(["gold", None]))
    joined = cj.temporal_join(left, right, on="t", by="id", null_payload_deletes=True)
    assert joined.column("right_event_time").null_count == 1
    assert cj.temporal_join(left, right, on="t", by="id").column("right_event_time").null_count == 0


@BOTH
def test_oracle_of_the_interval_join(made: Any, how: str) -> None:
    for number in range(3):
        left, right = (drawn(("interval", number), count, side=side) for side, count in (("l", 30), ("r", 40)))
        rows = rows_of(right)

        def matches(row: tuple[Any, ...], rows: list[Any] = rows) -> list[Any]:
            return [each for each in candidates(row, rows) if -3 * SECOND <= each[T] - row[T] < SECOND]

        joined = quiet(
            cj.interval_join, made(left), made(right), "-3 seconds", "1 second",
            on="t", by="id", how=how, upper_inclusive=False,
        )  # fmt: skip
        assert rows_of(joined) == expected(rows_of(left), matches, how)


def distinct(seed: object, count: int, first: int) -> pd.DataFrame:
    """Return random rows of pandas without nulls, each at another moment, in no order.

    The moments are ``first`` and some of each fourth second after it, so that no two are equally far from another's.
    """
    draw = random.Random(f"{SEED} {seed} {first}")
    times = draw.sample(range(first, 10_000, 4), count)
    return pd.DataFrame(
        {
            "t": pd.to_datetime(NOON) + pd.to_timedelta(times, unit="s"),
            "id": [draw.randrange(4) for _ in range(count)],
            f"n{count}": [draw.random() for _ in range(count)],
        }
    )


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_oracle_of_pandas(direction: Any) -> None:
    left, right = distinct(("pandas", direction), 200, 0), distinct(("pandas", direction), 150, 1)
    tolerance = timedelta(seconds=300)
    joined = cj.asof_join(left, right, on="t", by="id", direction=direction, tolerance=tolerance)
    peer = pd.merge_asof(
        left.reset_index().sort_values("t"), right.sort_values("t"),
        on="t", by="id", direction=direction, tolerance=pd.Timedelta(tolerance),
    ).set_index("index").sort_index()  # fmt: skip
    pd.testing.assert_frame_equal(joined.drop(columns="right_event_time"), peer, check_names=False)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_oracle_of_polars(direction: Any) -> None:
    pl = pytest.importorskip("polars")
    left, right = (pl.from_pandas(distinct(("polars", direction), *each)) for each in ((200, 0), (150, 1)))
    joined = cj.asof_join(left, right, on="t", by="id", direction=direction, tolerance="5 minutes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        peer = left.with_row_index().sort("t").join_asof(
            right.sort("t"), on="t", by="id", strategy=direction, tolerance="5m"
        ).sort("index").drop("index")  # fmt: skip
    assert joined.drop("right_event_time").equals(peer)


def at(*seconds: float | None) -> pd.DatetimeIndex:
    return pd.DatetimeIndex([None if each is None else NOON + timedelta(seconds=each) for each in seconds])


@pytest.fixture
def trades() -> pd.DataFrame:
    return pd.DataFrame({"t": at(9, 1, 5), "id": [7, 7, 8], "amount": [50, 20, 30]})


@pytest.fixture
def customers() -> pd.DataFrame:
    return pd.DataFrame(
        {"t": at(0, 8), "id": [7, 7], "tier": ["silver", "gold"], "level": [1, 2], "vip": [True, False]}
    )


INDEXES = {
    "strings": pd.Index(["b", "a", "c"], name="label"),
    "equal": pd.Index([5, 5, 5]),
    "levels": pd.MultiIndex.from_tuples([("x", 1), ("x", 1), ("y", 2)], names=["zone", None]),
    "reversed": pd.RangeIndex(3, 0, -1),
    "times": pd.DatetimeIndex(["2026-01-01", None, "2026-01-01"]),
}


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_pandas_keeps_its_index(trades: pd.DataFrame, customers: pd.DataFrame, index: pd.Index[Any]) -> None:
    trades.index = index
    before = trades.copy()
    joined = cj.asof_join(trades, customers, on="t", by="id")
    pd.testing.assert_frame_equal(joined[["t", "id", "amount"]], before)
    assert joined["tier"].tolist()[:2] == ["gold", "silver"]
    inner = cj.asof_join(trades, customers, on="t", by="id", how="inner")
    pd.testing.assert_frame_equal(inner[["t", "id", "amount"]], before.iloc[:2])
    pairs = cj.interval_join(trades, customers, "-1 hour", "0 seconds", on="t", by="id")
    pd.testing.assert_frame_equal(pairs[["t", "id", "amount"]], before.iloc[[0, 0, 1, 2]])
    pd.testing.assert_frame_equal(trades, before)


def test_a_level_of_an_index_can_be_named(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    trades["amount"] = pd.period_range("2026-01", periods=3, freq="M")
    joined = cj.asof_join(trades.set_index(["t", "id"]), customers.set_index("t"), on="t", by="id")
    assert joined.index.names == ["t", "id"]
    assert list(joined.columns) == ["amount", "right_event_time", "tier", "level", "vip"]
    assert joined["tier"].tolist()[:2] == ["gold", "silver"]
    renamed = cj.asof_join(trades.set_index("amount"), customers.rename(columns={"tier": "amount"}), on="t", by="id",
                           suffixes=("_left", "_right"))  # fmt: skip
    assert renamed.index.name == "amount_left"
    assert "amount_right" in renamed.columns


def test_the_result_shares_nothing_with_the_frames(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    joined = cj.asof_join(trades, customers, on="t", by="id")
    trades.loc[0, "amount"] = -1
    assert joined["amount"].tolist() == [50, 20, 30]


def test_pandas_keeps_its_types(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    trades["kind"] = pd.Categorical(["b", None, "a"], categories=["b", "a", "z"], ordered=True)
    trades["precise"] = pd.DatetimeIndex(["2026-01-15 12:00:00.000000001"] * 3)
    trades["period"] = pd.period_range("2026-01", periods=3, freq="M")
    trades["anything"] = [{1}, object, 3]
    customers["tier"] = pd.Categorical(customers["tier"], categories=["gold", "silver", "none"])
    joined = cj.asof_join(trades, customers, on="t", by="id")
    pd.testing.assert_frame_equal(joined[trades.columns], trades)
    assert joined["tier"].dtype == customers["tier"].dtype
    assert joined.dtypes[["level", "vip"]].astype(str).tolist() == ["Int64", "boolean"]
    assert joined["level"].tolist()[:2] == [2, 1]
    whole = cj.asof_join(trades, customers, on="t", by="id", how="inner")
    assert whole.dtypes[["level", "vip"]].astype(str).tolist() == ["int64", "bool"]


def test_polars_keeps_its_types() -> None:
    pl = pytest.importorskip("polars")
    enum = pl.Enum(["gold", "silver", "none"])
    left = pl.DataFrame({"t": [NOON], "id": [7], "kind": pl.Series(["a"], dtype=pl.Categorical), "any": [object()]},
                        schema_overrides={"any": pl.Object})  # fmt: skip
    right = pl.DataFrame({"t": [NOON], "id": [7], "tier": pl.Series(["gold"], dtype=enum)})
    joined = cj.asof_join(left, right, on="t", by="id")
    assert joined.schema["tier"] == enum
    assert joined.schema["kind"] == pl.Categorical
    assert joined["tier"].to_list() == ["gold"]


def test_arrow_keeps_its_types() -> None:
    codes = pa.array(["a", None, "a"]).dictionary_encode()
    left = pa.table({"id": [7, 7, 8], "t": pa.array([NOON] * 3, pa.timestamp("ns", "Asia/Kolkata")), "kind": codes,
                     "view": pa.array(["x", "y", "z"], pa.string_view())})  # fmt: skip
    left = left.replace_schema_metadata({"from": "the left"})
    right = pa.table({"id": [7], "t": pa.array([NOON], US), "tier": pa.array(["gold"]).dictionary_encode(),
                      "big": pa.array(["b"], pa.large_string()), "size": pa.array([3], pa.uint8())})  # fmt: skip
    joined = cj.asof_join(left, right, on="t", by="id")
    assert joined.select(left.column_names).equals(left, check_metadata=True)
    assert [str(joined.schema.field(name).type) for name in ("tier", "big", "size")] == [
        "dictionary<values=string, indices=int32, ordered=0>",
        "large_string",
        "uint8",
    ]
    assert joined.column("tier").to_pylist() == ["gold", "gold", None]
    assert cj.asof_join(left, right, on="t", by="id", how="inner").column("view").to_pylist() == ["x", "y"]


@BOTH
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_empty_frames(made: Any, sizes: tuple[int, int], how: str) -> None:
    left, right = (
        drawn("empty", 3, nulls=False, side=side).slice(0, size) for side, size in zip("lr", sizes, strict=True)
    )
    for join in (cj.asof_join, cj.temporal_join):
        joined = join(made(left), made(right), on="t", by="id", how=how)
        assert table_of(joined).num_rows == (sizes[0] if how == "left" else 0)
        assert table_of(joined).column_names == ["id", "t", "l_tier", "l_n", "right_event_time", "r_tier", "r_n"]
    pairs = cj.interval_join(made(left), made(right), "0 seconds", "1 hour", on="t", by="id", how=how)
    assert table_of(pairs).num_rows == (sizes[0] if how == "left" else 0)


def test_columns_without_values_have_no_type_and_are_joined() -> None:
    left = pd.DataFrame({"t": at(1), "id": ["a"]})
    joined = cj.asof_join(left, pd.DataFrame(columns=["t", "id", "tier"]), on="t", by="id")
    assert joined["tier"].isna().tolist() == [True]
    assert cj.asof_join(pd.DataFrame(columns=["t", "id"]), left.assign(tier="x"), on="t", by="id").empty


@pytest.mark.parametrize("second", LIBRARIES)
@pytest.mark.parametrize("first", LIBRARIES)
def test_of_frames_of_two_libraries_the_left_decides(first: str, second: str, connection: Any) -> None:
    left, right = drawn("two", 30, side="l"), drawn("two", 30, side="r")
    frames = maker(first, connection)(left), maker(second, connection)(right)
    for how in ("left", "inner"):
        joined = quiet(cj.asof_join, *frames, on="t", by="id", how=how)
        assert type(joined) is (type(frames[0]) if first in ("pandas", "polars") else pa.Table)
        assert rows_of(joined) == expected(rows_of(left), asof_matches(right, {}), how)
    kind = table_of(joined).schema.field("r_tier").type
    assert pa.types.is_dictionary(kind) or "duckdb" in (first, second)


def test_a_reader_is_read_once() -> None:
    left, right = drawn("reader", 9, nulls=False, side="l"), drawn("reader", 9, nulls=False, side="r")
    joined = cj.asof_join(left.to_reader(), right.to_reader(), on="t", by="id")
    assert joined.select(left.column_names).equals(left)


WAYS: dict[str, dict[str, Any]] = {
    "pairs": {"on": ("t", "valid"), "by": ("id", "customer")},
    "sides": {"left_on": "t", "right_on": "valid", "left_by": "id", "right_by": "customer"},
    "lists": {"on": ("t", "valid"), "left_by": ["id", "zone"], "right_by": ["customer", "zone"]},
    "list": {"on": ("t", "valid"), "by": ["zone", ("id", "customer")]},
    "pair of lists": {"on": ("t", "valid"), "by": (["id", "zone"], ["customer", "zone"])},
}


def test_a_pair_of_one_name_is_that_name(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    pair = cj.asof_join(trades, customers, on=("t", "t"), by=("id", "id"))
    pd.testing.assert_frame_equal(pair, cj.asof_join(trades, customers, on="t", by="id"))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ways_of_naming_columns(trades: pd.DataFrame, customers: pd.DataFrame, way: dict[str, Any]) -> None:
    trades["zone"], customers["zone"] = "x", "x"
    customers = customers.rename(columns={"t": "valid", "id": "customer"})
    joined = cj.asof_join(trades, customers, **way, suffixes=None if "zone" in str(way) else ("", "_right"))
    assert joined["tier"].tolist()[:2] == ["gold", "silver"]
    assert "valid" in joined.columns
    assert "customer" not in joined.columns


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no time": ({"by": "id"}, r"^on: expected the column with the times of both frames, got None; write on='event"),
    "two ways": ({"on": "t", "left_on": "t"}, r"^on: expected on=, or left_on= and right_on=, got on='t' and left_on="),
    "two ways of keys": ({"on": "t", "by": "id", "right_by": "id"}, r"^by: expected by=.* got by='id' and right_by="),
    "one side": ({"left_on": "t"}, r"^right_on: expected the right's column for left_on='t', got None; name it"),
    "one side of keys": ({"on": "t", "right_by": "id"}, r"^left_by: expected the left's column for right_by='id'"),
    "a list of times": ({"on": ["t"]}, r"^on: expected the name of one column, or a pair of names, got \['t'\]"),
    "three": ({"on": "t", "by": ("a", "b", "c")}, r"^by: expected a column's name.* write by=\['a', 'b', 'c'\]"),
    "lengths": (
        {"on": "t", "left_by": ["id", "tier"], "right_by": "id"},
        r"^left_by, right_by: expected as many key columns of the left as of the right, got 2 \(id, tier\) and 1 \(id",
    ),
    "no text": ({"on": "t", "by": 3}, r"^by: expected a column's name, a pair \(left, right\) as a tuple.*got 3"),
    "no name": ({"on": "t", "by": ("id", None)}, r"^by: expected a column's name.*got \('id', None\)"),
    "none": ({"on": "t", "by": []}, r"^by: expected a column's name.*got \[\]; None joins rows by time alone"),
    "ambiguous": ({"on": "t", "by": ("id", "x")}, r"^by: \('id', 'x'\) is the pair.*write by=\['id', 'x'\] for two"),
    "time": ({"on": "time", "by": "id"}, r"^input 'left' has no event time column 'time'; valid are 't', 'id', 'x'"),
    "key": ({"on": "t", "by": ("id", "idd")}, r"^input 'right' has no key column 'idd'; did you mean 'id'\?"),
    "how": ({"on": "t", "by": "id", "how": "full"}, r"^how: expected 'left' or 'inner', got 'full'"),
    "tolerance": ({"on": "t", "by": "id", "tolerance": "1 hose"}, r"^tolerance: "),
    "collision": ({"on": "t"}, r"both have 'id', 'x'; distinguish them with suffixes"),
    "twice": ({"on": "t", "by": ["id", "id"]}, r"key: expected different columns"),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    left = pd.DataFrame({"t": at(9, 1), "id": [7, 7], "x": [1, 2]})
    right = pd.DataFrame({"t": at(0, 8), "id": [7, 7], "x": [3, 4], "tier": ["a", "b"]})
    with pytest.raises(cj.ConfigurationError, match=message):
        cj.asof_join(left, right, **settings)


def test_an_interval_join_keeps_left_rows_alone(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    for how, message in (("full", "swap the frames, or use connect"), ("outer", "expected 'left' or 'inner'")):
        with pytest.raises(cj.ConfigurationError, match=message):
            cj.interval_join(trades, customers, "0 seconds", "1 hour", on="t", by="id", how=how)  # type: ignore[arg-type]


def test_a_value_that_is_not_a_frame_is_refused(trades: pd.DataFrame) -> None:
    for value, message in (
        ([{"t": NOON}], r"^right: expected .* got list; make a table of it"),
        ("/lake/trades", r"^right: expected a DataFrame of Spark's, or rows in memory .* got str; read its rows first"),
        (cj.connect(cj.Input(trades, "id", "t"), cj.Input(trades, "id", "t", "other")), r"^right: expected a frame"),
    ):
        with pytest.raises(cj.ConfigurationError, match=message):
            cj.asof_join(trades, value, on="t", by="id")


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "duckdb"])
def test_advice_is_in_the_frames_own_words(library: str, connection: Any) -> None:
    cures = {
        "pandas": "tz_localize",
        "polars": "replace_time_zone",
        "arrow": "assume_timezone",
        "duckdb": "AT TIME ZONE",
    }
    left = pa.table({"more": ["x"], "id": [7], "t": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us"))})
    frame = maker(library, connection)(left)
    with pytest.raises(cj.SchemaError, match="event time column 't': expected a timestamp") as caught:
        cj.asof_join(frame, drawn("advice", 2, side="r"), on="t", by="id")
    assert cures[library] in str(caught.value)
    if library == "arrow":
        assert "table.set_column(2, 't'" in str(caught.value)


@BOTH
def test_rows_that_cannot_match_are_counted(trades: pd.DataFrame, customers: pd.DataFrame, how: Any) -> None:
    left = pd.DataFrame({"t": at(9, None, 1, None), "id": pd.array([7, 7, None, None], "Int64")})
    right = pd.concat([customers, pd.DataFrame({"t": at(3), "id": [None], "tier": ["none"]})]).astype({"id": "Int64"})
    with pytest.warns(cj.MissingRowsWarning) as caught:
        joined = cj.asof_join(left, right, on="t", by="id", how=how)
    assert caught[0].filename == __file__
    assert [str(each.message) for each in caught] == [
        "3 of 4 rows of the left can't match: 1 without a key, 2 without an event time; 1 of 3 rows of the right "
        "can't match: 1 without a key" + ("; the result lacks those of the left" if how == "inner" else "")
    ]
    assert joined["tier"].tolist()[:1] == ["gold"]
    assert joined["tier"].isna().tolist() == ([False, True, True, True] if how == "left" else [False])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cj.asof_join(trades, customers, on="t", by="id")


def test_without_a_key_rows_are_joined_by_time_alone(made: Any) -> None:
    left = pa.table({"t": pa.array([NOON + timedelta(seconds=each) for each in (9, 1, 5)], US), "key_0": [1, 2, 3]})
    right = pa.table({"t": pa.array([NOON + timedelta(seconds=each) for each in (8, 0, 3)], US), "n": [8, 0, 3]})
    joined = table_of(cj.asof_join(made(left), made(right), on="t"))
    assert joined.column_names == ["t", "key_0", "right_event_time", "n"]
    assert joined.column("n").to_pylist() == [8, 0, 3]
    pairs = table_of(cj.interval_join(made(left), made(right), "-5 seconds", "0 seconds", on="t", how="inner"))
    assert pairs.column("n").to_pylist() == [8, 0, 0, 3]


def test_a_right_frame_may_add_no_column(made: Any) -> None:
    left = pa.table({"t": pa.array([NOON, None], US), "n": [1, 2]})
    for how, count in (("left", 2), ("inner", 1)):
        joined = quiet(cj.asof_join, made(left), made(left.select(["t"])), on="t", by="t", how=how)
        assert rows_of(joined) == rows_of(left)[:count]


def test_keys_of_two_widths_meet_in_the_wider() -> None:
    left = pa.table({"id": pa.array([7, -1], pa.int32()), "t": pa.array([NOON] * 2, US)})
    right = pa.table({"id": pa.array([7, 1 << 40], pa.int64()), "t": pa.array([NOON] * 2, US), "n": [1, 2]})
    assert cj.asof_join(left, right, on="t", by="id").column("n").to_pylist() == [1, None]
    assert cj.asof_join(right, left.append_column("m", pa.array([3, 4])), on="t", by="id").column("m").to_pylist() == [
        3,
        None,
    ]
    unsigned = left.set_column(0, "id", pa.array([7, 8], pa.uint16()))
    joined = cj.asof_join(unsigned, right, on="t", by="id")
    assert (joined.schema.field("id").type, joined.column("n").to_pylist()) == (pa.uint16(), [1, None])
    with pytest.raises(cj.SchemaError, match="the key types differ: 'id' of input 'left' is string"):
        cj.asof_join(left.set_column(0, "id", pa.array(["7", "8"])), right, on="t", by="id")


def test_decimals_of_pandas_meet_in_one_scale() -> None:
    left = pd.DataFrame({"id": [Decimal("7.5"), Decimal(123)], "t": at(1, 1)})
    right = pd.DataFrame({"id": [Decimal("7.500"), Decimal("0.001")], "t": at(0, 0), "n": [1, 2]})
    joined = cj.asof_join(left, right, on="t", by="id")
    assert joined["n"].fillna(0).tolist() == [1, 0]
    assert joined["id"].tolist() == left["id"].tolist()
    wide = right.assign(id=[Decimal(1), Decimal("1e-37")])
    with pytest.raises(cj.SchemaError, match="the key types differ"):
        cj.asof_join(left, wide, on="t", by="id")


def test_names_that_both_have_need_suffixes(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    customers = customers.rename(columns={"tier": "Amount"})
    with pytest.raises(cj.SchemaError, match="both have 'Amount'"):
        cj.asof_join(trades, customers, on="t", by="id")
    joined = cj.asof_join(trades, customers, on="t", by="id", suffixes=("", "_customer"))
    assert list(joined.columns) == ["t", "id", "amount", "right_event_time", "Amount_customer", "level", "vip"]
    renamed = cj.asof_join(trades, customers, on="t", by="id", suffixes=("_trade", ""))
    assert list(renamed.columns)[2] == "amount_trade"


def test_it_is_the_join_of_connect(made: Any) -> None:
    left, right = drawn("connect", 50, nulls=False, side="l"), drawn("connect", 50, nulls=False, side="r")
    one = cj.asof_join(made(left), made(right), on="t", by="id", tolerance="4 seconds")
    pair = cj.connect(cj.Input(left, "id", "t"), cj.Input(right, "id", "t"))
    assert Counter(rows_of(one)) == Counter(rows_of(pair.asof_join(tolerance="4 seconds").to_arrow()))


def test_joins_and_results_are_read_by_arrows_interface(trades: pd.DataFrame, customers: pd.DataFrame) -> None:
    joined = cj.connect(cj.Input(trades, "id", "t", "trades"), cj.Input(customers, "id", "t", "customers")).asof_join()
    table = joined.to_arrow()
    assert pa.table(joined).equals(table)
    assert pa.table(joined.run()).equals(table)
    again = cj.asof_join(joined, customers.rename(columns=lambda name: name if name in ("t", "id") else f"{name}_2"),
                         on="t", by="id")  # fmt: skip
    assert again.column("tier").equals(again.column("tier_2"))


@pytest.mark.parametrize("name", ["asof_join", "temporal_join", "interval_join"])
def test_the_examples_hold(name: str) -> None:
    [example] = doctest.DocTestFinder().find(getattr(frame_joins, name), name, module=frame_joins)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.push
def test_libraries_that_are_not_used_are_not_imported() -> None:
    script = (
        "import sys, pyarrow as pa, cojoin as cj\n"
        "t = pa.table({'id': [1], 't': pa.array([0], pa.timestamp('us', 'UTC'))})\n"
        "assert cj.asof_join(t, t, on='t', by='id').num_rows == 1\n"
        "assert not {'polars', 'duckdb', 'pyspark'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def on_spark(spark: SparkSession, table: pa.Table) -> Any:
    plain = table.set_column(2, table.column_names[2], table.column(2).cast(pa.string()))
    return spark.createDataFrame(plain)


@pytest.mark.spark
@BOTH
def test_differential_on_spark(spark: SparkSession, how: Any) -> None:
    left, right = drawn("spark", 40, side="l"), drawn("spark", 40, side="r")
    frames = on_spark(spark, left), on_spark(spark, right)
    settings: dict[str, Any] = {"on": "t", "by": "id", "how": how}
    joins: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (cj.asof_join, (), settings),
        (cj.temporal_join, (), settings),
        (cj.interval_join, ("-3 seconds", "1 second"), settings),
        (cj.asof_join, (), {"on": "t", "how": how, "suffixes": ("", "_right")}),
    ]
    for join, bounds, named in joins:
        here = quiet(join, left, right, *bounds, **named)
        there = quiet(join, *frames, *bounds, **named)
        assert there.columns == here.column_names
        assert Counter(rows_of(there.toArrow())) == Counter(rows_of(here))


@pytest.mark.spark
def test_frames_of_spark_that_are_refused(spark: SparkSession) -> None:
    left = on_spark(spark, drawn("refused", 3, side="l"))
    with pytest.raises(cj.ConfigurationError, match="input 'right' is in memory, input 'left' is Spark's"):
        cj.asof_join(left, drawn("refused", 3, side="r"), on="t", by="id")
    with pytest.raises(cj.SchemaError, match="input 'left' has no event time column 'time'"):
        cj.asof_join(left, on_spark(spark, drawn("refused", 3, side="r")), on=("time", "t"), by="id")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(cj.ConfigurationError, match=r"asof_join of streams and sources is connect\("):
        cj.asof_join(stream, left, on=("timestamp", "t"))


NIGHT = pd.to_datetime(["2026-10-25 01:30", "2026-10-25 02:30", "2026-10-25 03:30", None])


def test_times_without_a_zone_in_both_frames_are_compared_as_they_are() -> None:
    import polars as pl

    left = pd.DataFrame({"at": NIGHT, "n": range(4)}, index=list("dcba"))
    right = pd.DataFrame({"at": NIGHT[:2], "tier": ["silver", "gold"]})
    with pytest.warns(cj.MissingRowsWarning, match="1 of 4 rows of the left can't match: 1 without an event time"):
        joined = cj.asof_join(left, right, on="at")
    expected = pd.merge_asof(left.dropna(), right, on="at")
    assert joined.tier.tolist()[:3] == expected.tier.tolist()
    assert joined["at"].equals(left["at"])
    days = pl.DataFrame({"day": [date(2026, 1, 2), date(2026, 1, 1)], "n": [1, 2]})
    closed = pl.DataFrame({"at": [datetime(2026, 1, 1, 8)], "why": ["moved"]})  # noqa: DTZ001 - without a zone
    joined = cj.temporal_join(days, closed, on=("day", "at"))
    assert joined["why"].to_list() == ["moved", None]
    assert joined.schema["day"] == pl.Date


def test_a_zone_is_that_of_the_frame_whose_times_have_none() -> None:
    left = pd.DataFrame({"at": NIGHT[:3], "n": range(3)})
    moments = pd.to_datetime(["2026-10-24T23:00Z", "2026-10-25T01:00Z"], utc=True)
    right = pd.DataFrame({"at": moments, "tier": ["silver", "gold"]})
    zone = {"on": "at", "time_zone": "Europe/Berlin"}
    assert cj.asof_join(left, right, **zone).tier.tolist() == ["silver", "silver", "gold"]
    assert cj.asof_join(left, right, **zone, clock_change="after").tier.tolist() == ["silver", "gold", "gold"]
    with pytest.warns(cj.MissingRowsWarning, match="1 of 3 rows of the left .*: 1 with a time out of range, or in an"):
        joined = cj.asof_join(left, right, **zone, clock_change="reject")
    assert [None if pd.isna(tier) else tier for tier in joined.tier] == ["silver", None, "gold"]


def test_whole_numbers_have_a_unit() -> None:
    left, right = pa.table({"s": [1, 5, 10]}), pa.table({"ms": [2_000, 6_000], "tier": ["silver", "gold"]})
    other = pa.table({"s": [2, 6], "tier": ["silver", "gold"]})
    joined = cj.asof_join(left, other, on="s", time_unit="s", tolerance="3 seconds")
    assert joined.column("tier").to_pylist() == [None, "silver", None]
    assert joined.schema.field("s").type == pa.int64()
    both = pa.table({"at": pa.array([2_000_000], pa.timestamp("us", "UTC")), "tier": ["gold"]})
    assert (
        cj.asof_join(right.select(["ms"]), both, on=("ms", "at"), time_unit="ms").column("tier").to_pylist()
        == ["gold"] * 2
    )


@pytest.mark.parametrize(
    ("times", "settings", "told"),
    [
        (
            [1],
            {},
            "'left': event time column 'at': expected a timestamp, got bigint; write time_unit='ms', or make it a",
        ),
        (
            [1],
            {"time_zone": "UTC"},
            "time_zone: neither frame's times are times without a zone, or dates, but int64 and",
        ),
        (
            NIGHT[:1],
            {"time_unit": "s"},
            "time_unit: neither frame's times are whole numbers, but timestamp.* leave time_",
        ),
        ([1], {"time_unit": "days"}, "time_unit: expected 's', 'ms' or 'us', got 'days'"),
        ([1], {"time_unit": "s", "time_zone": "UTC"}, "expected time_zone= for times without a zone .* got both"),
        (
            NIGHT[:1],
            {"time_zone": "Berlin"},
            "time_zone: expected a zone's name, such as 'Europe/Berlin' or 'UTC', got",
        ),
    ],
)
def test_times_whose_meaning_is_unclear_are_refused(times: Any, settings: dict[str, Any], told: str) -> None:
    frames = [pd.DataFrame({"at": times, name: [1]}) for name in ("n", "m")]
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.asof_join(*frames, on="at", **settings)


def test_one_frame_with_a_zone_and_one_without_need_it() -> None:
    left = pd.DataFrame({"at": NIGHT[:1]})
    with pytest.raises(
        cj.SchemaError, match=r"'left': event time column 'at': .* write time_zone='UTC' or their own zone, or make"
    ):
        cj.asof_join(left, left.assign(at=left["at"].dt.tz_localize("UTC"), tier="gold"), on="at")
