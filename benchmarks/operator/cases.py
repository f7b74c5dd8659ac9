"""What ``operator`` measures: joins of trades with customers' versions, and what pandas makes of the same rows.

Times are unique within an input, so there is one right answer. Trades stand up to ``DISORDER_SECONDS`` later than their
event times say, or shuffled. Both get their rows ready made: the operator as Arrow tables, pandas as frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.operator import Batch
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermark_strategies import WatermarkStrategy

__all__ = ["Case", "Data", "Shape"]

DISORDER_SECONDS = 5
START_US, DAY_US = 1_768_435_200_000_000, 86_400_000_000
LOWER, UPPER = "-2 hours", "30 minutes"
_TIME = pa.timestamp("us", "UTC")
_TIERS = pa.array(["bronze", "silver", "gold", "platinum"])
_KEY_AND_TIME = [("customer_id", pa.int64()), ("event_time", _TIME)]
_SCHEMAS = {
    "trades": pa.schema([*_KEY_AND_TIME, ("trade_id", pa.int64()), ("amount", pa.float64())]),
    "customers": pa.schema([*_KEY_AND_TIME, ("tier", pa.string())]),
}
_WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
_LEFT, _RIGHT = (
    InputSpec(name, schema, ("customer_id",), "event_time", watermark=_WATERMARK) for name, schema in _SCHEMAS.items()
)
_COMPARED = ["trade_id", "customers_event_time", "tier"]


@dataclass(frozen=True)
class Shape:
    """How many rows there are, and how they stand.

    Attributes:
        trades: Rows on the left.
        keys: Distinct customers.
        batches: How many micro-batches the rows come in.
        shuffled: Whether the rows stand in any order.
    """

    trades: int
    keys: int
    batches: int = 1
    shuffled: bool = False


class Data:
    """The rows of a shape, with a fifth as many versions as trades."""

    def __init__(self, shape: Shape) -> None:
        rng = np.random.default_rng(7)
        trades, versions = shape.trades, shape.trades // 5
        drawn = [_keys_and_times(rng, shape, count) for count in (trades, versions)]
        tiers = _TIERS.take(pa.array(rng.integers(0, len(_TIERS), versions)))
        self.left = pa.table([*drawn[0], np.arange(trades), rng.random(trades)], schema=_SCHEMAS["trades"])
        self.right = pa.table([*drawn[1], tiers], schema=_SCHEMAS["customers"])
        self.batches = list(_batches(self.left, self.right, shape.batches))

    @cached_property
    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both sides for pandas; a version's time has the name that it has in the operator's result."""
        renamed = self.right.rename_columns(["customer_id", "customers_event_time", "tier"])
        return self.left.to_pandas(), renamed.to_pandas()


def _keys_and_times(rng: np.random.Generator, shape: Shape, count: int) -> list[pa.Array]:
    slot = DAY_US // count
    times = np.arange(count) * slot + rng.integers(0, slot, count)
    late = rng.integers(0, DISORDER_SECONDS * 1_000_000, count)
    order = rng.permutation(count) if shape.shuffled else np.argsort(times + late, kind="stable")
    return [pa.array(rng.integers(0, shape.keys, count)), pa.array(START_US + times[order]).cast(_TIME)]


def _batches(left: pa.Table, right: pa.Table, count: int) -> list[Batch]:
    cuts = [np.linspace(0, side.num_rows, count + 1).astype(int) for side in (left, right)]
    pieces = [
        [side.slice(start, stop - start) for start, stop in pairwise(each)]
        for side, each in zip((left, right), cuts, strict=True)
    ]
    return [
        Batch(rows, [_control(1, rows[0]), _control(2, rows[1])], end_of_input=number == count - 1)
        for number, rows in enumerate(zip(*pieces, strict=True))
    ]


def _control(number: int, rows: pa.Table) -> Control:
    latest = int(rows.column("event_time").cast(pa.int64()).to_numpy().max()) // 1_000
    return Control(number, {ONE_PARTITION: latest}, rows.num_rows)


@dataclass(frozen=True)
class Case:
    """A join, for the operator and for pandas.

    Attributes:
        join: The join.
        shape: Its rows.
        at_most: The ratio of both times that is asked for; None asks for none.
    """

    join: AsofJoin | TemporalJoin | IntervalJoin
    shape: Shape
    at_most: float | None = None

    def __str__(self) -> str:
        kind = self.join.describe()["operator"].removesuffix("_join")
        kind += f" {self.join.direction}" if isinstance(self.join, AsofJoin) else ""
        batches = f", {self.shape.batches} batches" if self.shape.batches > 1 else ""
        return f"{kind}, {self.shape.trades:,} trades{batches}{', shuffled' if self.shape.shuffled else ''}"

    def run(self, data: Data) -> pa.Table:
        """Return the operator's result."""
        running = self.join.create_operator(_LEFT, _RIGHT)
        return pa.concat_tables([each.table for batch in data.batches for each in running.process(batch)])

    def run_pandas(self, data: Data) -> pd.DataFrame:
        """Return pandas' result."""
        left, right = data.frames
        if isinstance(self.join, IntervalJoin):
            pairs = left.merge(right, on="customer_id")
            apart = pairs["customers_event_time"] - pairs["event_time"]
            lower, upper = (pd.Timedelta(each, unit="us") for each in self.join.bounds)
            return pairs[(apart >= lower) & (apart <= upper)]
        return pd.merge_asof(
            left.sort_values("event_time"),
            right.sort_values("customers_event_time"),
            left_on="event_time",
            right_on="customers_event_time",
            by="customer_id",
            direction=self.join.direction if isinstance(self.join, AsofJoin) else "backward",
        )

    def check(self, mine: pa.Table, theirs: pd.DataFrame) -> None:
        """Check that both results have the same rows.

        Raises:
            AssertionError: They have not.
        """
        results = (mine.select(_COMPARED).to_pandas(), theirs[_COMPARED])
        # A missing tier is None in one and NaN in the other.
        frames = [each.sort_values(_COMPARED[:2], ignore_index=True).fillna({"tier": ""}) for each in results]
        pd.testing.assert_frame_equal(*frames)
