"""Small files with trades that no query can admit, what a query that was killed leaves behind, and what it wrote."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from benchmarks.differences import differences
from benchmarks.kills.kill_points import FILES
from cojoin.session.sessions import open_store
from tests.spark.data import Folders, Streams, cut, enriched_rows, rows, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store
    from tests.spark.saved import Saved

__all__ = ["OtherJob", "broken_laws", "compare", "enriched", "enriched_in", "left_behind", "rejected", "write_files"]

REJECTED_A_FILE = 2
DRAFT = -1.0
"""The amount of a trade before it is corrected."""

STRANGE = -5
"""The number of the trade that another job updates in the tables of those that upsert."""


class OtherJob(threading.Thread):
    """Another job that updates a row of its own in a table, as soon as there is one, until it is stopped."""

    def __init__(self, path: str, url: str = "") -> None:
        super().__init__(daemon=True)
        self._path, self._url, self._stopping, self._updates = path, url, threading.Event(), 0

    def run(self) -> None:
        """Update the row again and again; a conflict with a driver's commit is tried again."""
        while not self._stopping.wait(0.2):
            with suppress(DeltaError, OSError, psycopg.Error):
                if self._url:
                    self._update_by_sql()
                    continue
                table = DeltaTable(self._path)
                columns = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
                if not self._updates:
                    values = {"trade_id": STRANGE, "amount": 1.0, "tier": "basic"}
                    schema = pa.schema(list(columns.items()))
                    write_deltalake(table, pa.Table.from_pylist([values], schema), mode="append")
                else:
                    table.update(predicate=f"trade_id = {STRANGE}", updates={"amount": f"{self._updates + 1}.0"})
                self._updates += 1

    def _update_by_sql(self) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute(
                f'INSERT INTO "{self._path}" (trade_id, amount) VALUES (%s, %s) '
                "ON CONFLICT (trade_id) DO UPDATE SET amount = excluded.amount",  # type: ignore[arg-type]
                [STRANGE, self._updates + 1.0],
            )
        self._updates += 1

    def stop(self, spark: SparkSession) -> list[str]:
        """Stop it; return what is wrong with its row."""
        self._stopping.set()
        self.join()
        if self._url:
            amounts = [row[2] for row in enriched_in(self._url, self._path) if row[0] == STRANGE]
        else:
            amounts = [row.amount for row in table(spark, self._path).where(f"trade_id = {STRANGE}").collect()]
        wanted = [float(self._updates)] if self._updates else []
        return [] if amounts == wanted else [f"the other job's row has {amounts} and not {wanted}"]


def compare(streams: Streams, what: str, out: list[Any], dead: list[Any], *, in_two: bool = False) -> list[str]:
    """Return how a job's rows, and the numbers of its rejected trades, differ from what they must be.

    Of rows ``in_two`` tables the first may have drafts whose trades are in the second.
    """
    rows = [row for row in out if row[0] != STRANGE and not (in_two and row[2] == DRAFT)]
    faults = differences(streams.enriched(), rows, f"{what}, output")
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


def write_files(streams: Streams, folders: Folders, *, drafts: bool = False) -> None:
    """Write the streams as files; each file of trades has a few that no query can admit, for want of a key.

    With ``drafts``, each trade of a later file is in the file before it, too, with an earlier event time: where they
    are upserted, nothing remains of it.
    """
    files, random = list(cut(streams.trades, FILES)), np.random.default_rng(len(streams.trades))
    for number, (trades, customers) in enumerate(zip(files, cut(streams.customers, FILES), strict=True)):
        if drafts and number + 1 < FILES:
            coming = files[number + 1]
            # Not beyond the file's own times, or the watermark would pass trades that have not come.
            before = coming.event_time - random.integers(0, 3_000_000, size=len(coming))
            before = before.clip(upper=trades.event_time.max())
            trades = pd.concat([trades, coming.assign(event_time=before, amount=DRAFT)])  # noqa: PLW2901
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


def enriched_in(url: str, name: str) -> list[Any]:
    """Return the joined rows of a table of PostgreSQL; none without the table."""
    columns = "trade_id, (extract(epoch from event_time) * 1000000)::bigint, amount, version, tier"
    with psycopg.connect(url) as connection:
        try:
            rows = connection.execute(f'SELECT {columns} FROM "{name}"').fetchall()  # type: ignore[arg-type]
        except psycopg.errors.UndefinedTable:
            return []
    return sorted(rows, key=str)


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
