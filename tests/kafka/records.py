"""The records of the two topics, and what their join must give.

Trades are fills of orders, several in one millisecond; versions of customers fall anywhere, into the millisecond of a
trade, onto its very microsecond, or onto another version of the same customer. Keys are skewed, and within each
partition records come up to five seconds after later ones. The hour is the one in which New York, the zone of the
tests' session, sets its clocks back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

PARTITIONS = 4
TRADES, ORDERS, VERSIONS, KEYS = 100_000, 40_000, 20_000, 1_000
OUT_OF_ORDERNESS_SECONDS = 5

TRADE_DDL = "trade_id long, customer_id long, event_time timestamp, amount double"
CUSTOMER_DDL = "version_id long, customer_id long, event_time timestamp, tier string"

_START = int(np.datetime64("2025-11-02T05:30:00", "us").astype(np.int64))
_SPAN = 3_600_000_000
_WITHOUT_VERSIONS = 10  # so many keys trade and are never described
_IN_A_TRADE_MILLISECOND, _AT_A_TRADE, _TWINS = 4_000, 1_000, 1_000
_TIERS = np.array(["basic", "silver", "gold", "platin"])

EXPECTED_SCHEMA = pa.schema(
    [
        ("trade_id", pa.int64()),
        ("customer_id", pa.int64()),
        ("micros", pa.int64()),
        ("amount", pa.float64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("version_id", pa.int64()),
        ("customers_micros", pa.int64()),
        ("tier", pa.string()),
        ("partition_customer", pa.int32()),
        ("offset_customer", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Records:
    """The records of both topics, each topic's in the order in which its partitions are written.

    Attributes:
        trades: ``trade_id, customer_id, micros, amount, partition, offset``.
        customers: ``version_id, customer_id, micros, tier, partition, offset``.
    """

    trades: pd.DataFrame
    customers: pd.DataFrame


def make_records(seed: int = 20251102) -> Records:
    """Make both topics' records, always the same for a seed."""
    rng = np.random.default_rng(seed)
    trades = _trades(rng)
    return Records(_in_writing_order(trades, rng), _in_writing_order(_customers(trades, rng), rng))


def values(records: pd.DataFrame) -> list[str]:
    """Spell records as JSON, event times in UTC to the microsecond."""
    times = np.datetime_as_string(records["micros"].to_numpy().astype("datetime64[us]"), unit="us")
    bodies = records.drop(columns=["micros", "partition", "offset"])
    bodies = bodies.assign(event_time=[f"{time}Z" for time in times])
    return bodies.to_json(orient="records", lines=True).splitlines()


def expected_join(records: Records) -> pa.Table:
    """Join by pandas: each trade with the last version of its customer that is not later.

    Of several versions at once the last in the order of partitions and offsets counts.
    """
    customers = records.customers.sort_values(["micros", "partition", "offset"]).reset_index(drop=True)
    whole = dict.fromkeys(("version_id", "partition", "offset"), "Int64")  # may be null in the result
    customers = customers.assign(customers_micros=customers["micros"]).astype({**whole, "customers_micros": "Int64"})
    joined = pd.merge_asof(
        records.trades.sort_values("micros", kind="stable"),
        customers,
        on="micros",
        by="customer_id",
        suffixes=("", "_customer"),
    )
    return pa.Table.from_pandas(joined.sort_values("trade_id"), EXPECTED_SCHEMA, preserve_index=False)


def _trades(rng: np.random.Generator) -> pd.DataFrame:
    popularity = 1 / np.arange(1, KEYS + 1) ** 0.8
    order_key = rng.choice(KEYS, ORDERS, p=popularity / popularity.sum())
    order_millis = rng.integers(0, _SPAN // 1000, ORDERS)
    order = np.sort(rng.integers(0, ORDERS, TRADES))
    return pd.DataFrame(
        {
            "trade_id": rng.permutation(TRADES),
            "customer_id": order_key[order],
            "micros": _START + 1000 * order_millis[order] + rng.integers(0, 1000, TRADES),
            "amount": rng.integers(1, 1 << 20, TRADES) / 8,
            "partition": rng.choice(PARTITIONS, TRADES, p=[0.4, 0.3, 0.2, 0.1]),
        }
    )


def _customers(trades: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    described = trades[trades["customer_id"] < KEYS - _WITHOUT_VERSIONS]
    key, micros = described["customer_id"].to_numpy(), described["micros"].to_numpy()
    anywhere = VERSIONS - _IN_A_TRADE_MILLISECOND - _AT_A_TRADE - _TWINS
    of = rng.choice(len(key), anywhere + _IN_A_TRADE_MILLISECOND + _AT_A_TRADE)  # the trade whose customer changes
    times = micros[of]
    times[:anywhere] = _START + rng.integers(0, _SPAN, anywhere)
    near = slice(anywhere, anywhere + _IN_A_TRADE_MILLISECOND)
    times[near] = times[near] // 1000 * 1000 + rng.integers(0, 1000, _IN_A_TRADE_MILLISECOND)
    twin_of = rng.choice(len(of), _TWINS, replace=False)
    customer = np.concatenate([key[of], key[of][twin_of]])
    # By key, as a compacted topic is; but half of the twins stand in another partition than their sibling.
    elsewhere = np.arange(VERSIONS) >= VERSIONS - _TWINS // 2
    return pd.DataFrame(
        {
            "version_id": rng.permutation(VERSIONS),
            "customer_id": customer,
            "micros": np.concatenate([times, times[twin_of]]),
            "tier": rng.choice(_TIERS, VERSIONS),
            "partition": (customer + elsewhere) % PARTITIONS,
        }
    )


def _in_writing_order(records: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Let each record come up to the bound after its event time, and number each partition's records as they come."""
    # Mostly at once or almost at the bound: more of them out of order, and by more, than evenly spread.
    delay = (rng.beta(0.2, 0.2, len(records)) * OUT_OF_ORDERNESS_SECONDS * 1_000_000).astype(np.int64)
    comes = records["micros"] + delay
    ordered = records.assign(comes=comes).sort_values(["partition", "comes"], kind="stable").drop(columns="comes")
    return ordered.assign(offset=ordered.groupby("partition").cumcount()).reset_index(drop=True)
