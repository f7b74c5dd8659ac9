"""Small streams of trades and customer versions as parquet files, what an as-of join must make of them, and comparing.

Event times are whole microseconds since the epoch; many share a millisecond, some a microsecond, within and across the
inputs.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MORNING = 1_709_276_400_000_000
SECOND = 1_000_000
FAR_FUTURE = 7_258_118_400_000_000
"""The year 2200: further ahead of any clock than ``max_ahead`` allows."""

DISORDER = 5 * SECOND
FIVE_SECONDS = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")

TRADES_DDL = "trade_id bigint, customer_id bigint, event_time timestamp, amount double, position bigint"
CUSTOMERS_DDL = "customer_id bigint, event_time timestamp, version bigint, tier string, position bigint"
ENRICHED_DDL = "trade_id bigint, event_time timestamp, amount double, version bigint, tier string"

_TIME = pa.timestamp("us", tz="UTC")
_TRADES = pa.schema(
    [
        ("trade_id", pa.int64()),
        ("customer_id", pa.int64()),
        ("event_time", _TIME),
        ("amount", pa.float64()),
        ("position", pa.int64()),
    ]
)
_CUSTOMERS = pa.schema(
    [
        ("customer_id", pa.int64()),
        ("event_time", _TIME),
        ("version", pa.int64()),
        ("tier", pa.string()),
        ("position", pa.int64()),
    ]
)


@dataclass
class Streams:
    """Trades and customers in the order of their arrival; ``event_time`` holds microseconds."""

    trades: pd.DataFrame
    customers: pd.DataFrame

    def write(self, folder: Path, files: int) -> Folders:
        """Write both as files, cut at arbitrary places."""
        folders = Folders(folder)
        for trades, customers in zip(cut(self.trades, files), cut(self.customers, files), strict=True):
            folders.add_trades(trades)
            folders.add_customers(customers)
        return folders

    def enriched(self) -> list[tuple[Any, ...]]:
        """Return what an as-of join makes of them: (trade_id, event time, amount, version, tier), by pandas."""
        left = self.trades.sort_values("event_time", kind="stable")
        right = self.customers.sort_values(["event_time", "position"], kind="stable")
        right = right.drop(columns="position").assign(version=right.version.astype("float64"))
        joined = pd.merge_asof(left, right, on="event_time", by="customer_id")
        columns = (joined[name].tolist() for name in ("trade_id", "event_time", "amount", "version", "tier"))
        return sorted(tuple(None if pd.isna(value) else value for value in row) for row in zip(*columns, strict=True))


@dataclass
class Folders:
    """Two folders of files, which a stream reads in the order in which they were added, one a batch."""

    root: Path
    files: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("trades", "customers"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def add_trades(self, rows: pd.DataFrame) -> None:
        self._add("trades", rows, _TRADES)

    def add_customers(self, rows: pd.DataFrame) -> None:
        self._add("customers", rows, _CUSTOMERS)

    def _add(self, name: str, rows: pd.DataFrame, schema: pa.Schema) -> None:
        columns = {
            column.name: pa.Array.from_pandas(rows[column.name]).cast(pa.int64()).cast(_TIME)
            if column.type == _TIME
            else pa.Array.from_pandas(rows[column.name]).cast(column.type)
            for column in schema
        }
        table = pa.table(columns, schema=schema)
        path = self.root / name / f"{len(self.files):05d}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(table, hidden)
        # Spark takes files by their time of modification.
        os.utime(hidden, (1_700_000_000 + len(self.files),) * 2)
        hidden.rename(path)
        self.files.append(path)

    def frames(
        self, spark: SparkSession, *, streaming: bool = True, files_a_batch: int = 1
    ) -> tuple[DataFrame, DataFrame]:
        """Open both, as streams or whole."""
        trades, customers = (
            (spark.readStream.option("maxFilesPerTrigger", files_a_batch) if streaming else spark.read)
            .schema(ddl)
            .parquet(str(self.root / name))
            for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
        )
        return trades, customers

    def sources(self, files_a_batch: int = 1) -> tuple[Any, Any]:
        """Describe both, as sources that cojoin opens itself."""
        options = {"maxFilesPerTrigger": files_a_batch}
        trades, customers = (
            cj.sources.files(str(self.root / name), "parquet", schema=ddl, options=options)
            for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
        )
        return trades, customers

    def connect(
        self, spark: SparkSession, *, streaming: bool = True, key_groups: int = 3, **settings: Any
    ) -> cj.ConnectedInputs:
        """Connect both; customers' versions of one microsecond follow their ``position``."""
        return connect(*self.frames(spark, streaming=streaming), key_groups=key_groups, **settings)


def connect(trades: Any, customers: Any, *, key_groups: int = 3, **settings: Any) -> cj.ConnectedInputs:
    shared = {"key": "customer_id", "event_time": "event_time", "watermark": FIVE_SECONDS, "sequence": "position"}
    left = cj.Input(trades, name="trades", **(shared | settings))
    right = cj.Input(customers, name="customers", **(shared | settings))
    return cj.connect(left, right, key_groups=key_groups)


def asof(pair: cj.ConnectedInputs, **settings: Any) -> cj.Joined:
    """Enrich the trades; both inputs have a ``position``."""
    return pair.asof_join(suffixes=("", "_customer"), **settings)


def generate(trades: int = 600, customers: int = 150, *, keys: int = 20, seconds: int = 60, seed: int = 7) -> Streams:
    """Make streams that are out of order by less than ``DISORDER``, skewed over keys, with ties and nulls."""
    random = np.random.default_rng(seed)
    moments = MORNING + random.integers(0, seconds * 1000, size=trades // 2) * 1000

    def times(count: int) -> Any:
        # Of several rows a millisecond some have the same microsecond.
        return random.choice(moments, size=count) + random.integers(0, 3, size=count)

    def skewed(count: int) -> Any:
        return np.minimum(random.zipf(1.5, size=count), keys)

    sides = []
    for count in (trades, customers):
        time = times(count)
        arrival = np.argsort(time + random.integers(0, DISORDER - 1000, size=count), kind="stable")
        sides.append((time[arrival], skewed(count), np.arange(count)))
    (time, key, number), (valid_from, customer, position) = sides
    amount = np.where(random.random(trades) < 0.1, None, np.round(random.random(trades) * 100, 2))
    tier = np.where(random.random(customers) < 0.1, None, random.choice(["basic", "silver", "gold"], size=customers))
    return Streams(
        pd.DataFrame(
            {"trade_id": number, "customer_id": key, "event_time": time, "amount": amount, "position": number}
        ),
        pd.DataFrame(
            {"customer_id": customer, "event_time": valid_from, "version": random.permutation(customers)}
            | {"tier": tier, "position": position}
        ),
    )


def trades(rows: Sequence[tuple[int, int | None, int | None]]) -> pd.DataFrame:
    """Make trades of (trade_id, customer_id, seconds since the morning)."""
    return pd.DataFrame(
        {
            "trade_id": [number for number, _, _ in rows],
            "customer_id": pd.array([key for _, key, _ in rows], dtype="Int64"),
            "event_time": pd.array([at(moment) for _, _, moment in rows], dtype="Int64"),
            "amount": [1.0 for _ in rows],
            "position": [number for number, _, _ in rows],
        }
    )


def customers(rows: Sequence[tuple[int, int | None, int | None]]) -> pd.DataFrame:
    """Make customers' versions of (version, customer_id, seconds since the morning)."""
    return pd.DataFrame(
        {
            "customer_id": pd.array([key for _, key, _ in rows], dtype="Int64"),
            "event_time": pd.array([at(moment) for _, _, moment in rows], dtype="Int64"),
            "version": [number for number, _, _ in rows],
            "tier": ["gold" for _ in rows],
            "position": [number for number, _, _ in rows],
        }
    )


def at(seconds: int | None) -> int | None:
    """Return a moment of the morning; a number that is one of microseconds already is left."""
    if seconds is None or seconds > MORNING:
        return seconds
    return MORNING + seconds * SECOND


def cut(rows: pd.DataFrame, pieces: int) -> Iterator[pd.DataFrame]:
    """Cut rows into consecutive pieces of different sizes."""
    weights = np.arange(1, pieces + 1)
    bounds = [0, *np.round(np.cumsum(weights) / weights.sum() * len(rows)).astype(int).tolist()]
    for start, stop in itertools.pairwise(bounds):
        yield rows.iloc[start:stop]


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return a DataFrame's rows, sorted; timestamps as microseconds, free of any time zone."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import TimestampType

    names = columns or tuple(frame.columns)
    shown = [
        F.unix_micros(name).alias(name) if isinstance(frame.schema[name].dataType, TimestampType) else F.col(name)
        for name in names
    ]
    return sorted((tuple(row) for row in frame.select(*shown).collect()), key=repr_nulls_first)


def enriched_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the columns that ``Streams.enriched`` has, sorted alike."""
    return rows(frame, "trade_id", "event_time", "amount", "version", "tier")


def repr_nulls_first(row: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value if value is not None else 0) for value in row)


def table(spark: SparkSession, path: Any) -> DataFrame:
    return spark.read.format("delta").load(str(path))
