"""Small files with trades that no query can admit, what a query that was killed leaves behind, and what it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.differences import differences
from benchmarks.kills.kill_points import FILES
from cojoin.session.sessions import open_store
from tests.spark.data import Folders, Streams, cut, enriched_rows, rows, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store
    from tests.spark.saved import Saved

__all__ = ["broken_laws", "compare", "enriched", "left_behind", "rejected", "write_files"]

REJECTED_A_FILE = 2


def compare(streams: Streams, what: str, out: list[Any], dead: list[Any]) -> list[str]:
    """Return how a job's rows, and the numbers of its rejected trades, differ from what they must be."""
    faults = differences(streams.enriched(), out, f"{what}, output")
    wanted = [(number,) for number in range(FILES * REJECTED_A_FILE)]
    return faults + differences(wanted, dead, f"{what}, rejected")


def left_behind(files: Store) -> str:
    """Return what a killed driver left behind in its checkpoint, in a line."""

    def numbers(name: str) -> str:
        stems = [each.partition(".")[0] for each in files.names(name)]
        found = sorted(int(each) for each in stems if each.isdigit())
        return f"{found[0]}-{found[-1]}" if len(found) > 1 else ", ".join(map(str, found)) or "none"

    names = {"planned": "spark/offsets", "committed": "spark/commits"}
    names |= {"manifests": "manifest", "snapshots": "snapshots"}
    told = [f"{what} {numbers(name)}" for what, name in names.items()]
    stage = (files.read("restored.json") or "").partition('"stage": "')[2].partition('"')[0]
    return "; ".join(told + ([f"restoration {stage}"] if stage else []))


def write_files(streams: Streams, folders: Folders) -> None:
    """Write the streams as files; each file of trades has a few that no query can admit, for want of a key."""
    sides = zip(cut(streams.trades, FILES), cut(streams.customers, FILES), strict=True)
    for number, (trades, customers) in enumerate(sides):
        ids = [number * REJECTED_A_FILE + each for each in range(REJECTED_A_FILE)]
        keyless = trades.iloc[: len(ids)].assign(trade_id=[-1 - each for each in ids])
        keyless["customer_id"] = pd.array([None] * len(ids), dtype="Int64")
        folders.add_trades(pd.concat([trades.astype({"customer_id": "Int64"}), keyless]))
        folders.add_customers(customers)


def enriched(spark: SparkSession, path: str, version: int | None = None) -> list[Any]:
    """Return the joined rows of a table, as it is or was."""
    if version == -1 or not open_store(spark, path).exists():
        return []
    reader = spark.read.format("delta")
    return enriched_rows((reader if version is None else reader.option("versionAsOf", version)).load(path))


def rejected(spark: SparkSession, path: str, version: int | None = None) -> list[Any]:
    """Return the numbers of the rejected trades."""
    if version == -1 or not open_store(spark, path).exists():
        return []
    frame = table(spark, path)
    if version is not None:
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
    return rows(frame.selectExpr("-1 - CAST(get_json_object(row, '$.trade_id') AS int) AS number"))


def broken_laws(saved: Saved) -> list[str]:
    """Return what is wrong with a query's counts."""
    try:
        saved.assert_conserved()
    except AssertionError:
        return [f"{saved.folder}: a manifest is not conserved"]
    return []
