"""A query on small files whose settings change from one start to the next, and the law that its rows keep.

The law: each trade is in the output or among the rejected rows, once, whatever was done to the query, its checkpoint or
its settings. Where the settings stayed what they were, the output is also what pandas makes of the files. Each file has
trades that no query can admit for want of a key, some that come late, and some of the year 2200.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pandas as pd

import cojoin as cj
from benchmarks.differences import differences
from benchmarks.kills.leavings import enriched_in
from benchmarks.kills.places import Place
from benchmarks.kills.verdicts import unfit_words
from tests.spark.data import ENRICHED_DDL, FAR_FUTURE, MORNING, SECOND, Folders, connect, cut, enriched_rows, generate
from tests.spark.saved import Saved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DRAIN", "PAUSE", "Output", "Settings", "Story"]

DRAIN, PAUSE = cj.Trigger.available_now(drain=True), cj.Trigger.available_now()
Output: TypeAlias = Literal["delta", "partitioned", "parquet", "beside", "upserted", "merged", "sql"]
"""Where an output goes: a Delta table whose files the workers write, or Spark; a folder of parquet files; a table that
is upserted, by Delta in two ways or in a database; or, for the rejected rows, their table in the checkpoint."""

_ODD = 10_000
"""The first number of a trade that no query admits, or not every one."""


@dataclass(frozen=True)
class Settings:
    """What a person may change from one start to the next.

    Attributes:
        operation: The ready join, or a function.
        delay: For how many seconds rows may be out of order; the streams are by less than 5.
        max_ahead: How far ahead of the clock a row may be.
        late: What becomes of late trades.
        holds: For how many seconds the function keeps a trade; a change of its body, which no checkpoint can tell.
        files_a_batch: How many files a new batch takes.
    """

    operation: Literal["join", "function"] = "join"
    delay: int = 5
    max_ahead: str | None = "1 day"
    late: Literal["reject", "apply"] | None = None
    holds: int = 0
    files_a_batch: int = 1

    @property
    def of_function(self) -> tuple[Any, ...]:
        """What the rows depend on, where none is late."""
        return self.operation, self.delay, self.max_ahead, self.late, self.holds

    @property
    def keeps_time(self) -> bool:
        """Whether the trades of the year 2200 are kept from moving the watermark, which would make others late."""
        return self.max_ahead is not None

    def joined(self, folders: Folders, key_groups: int) -> cj.Joined:
        """Return the query's join, or its function."""
        strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{self.delay} seconds")
        pair = connect(
            *folders.sources(self.files_a_batch),
            key_groups=key_groups,
            watermark=strategy,
            max_ahead=self.max_ahead,
            late=self.late,
        )
        if self.operation == "join":
            return pair.asof_join(suffixes=("", "_customer"))
        return pair.process(HoldTrades(self.holds), ENRICHED_DDL)


class HoldTrades(cj.KeyedCoProcessFunction):
    """Enriches each trade, at once or after some seconds: what its body says may have changed since its last run."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", "version bigint, tier string"))
        fields = "trade_id bigint, event_time timestamp, amount double, version bigint, tier string"
        self.held = ctx.get_list_state(cj.ListStateDescriptor("held", fields))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Iterator[Any]:
        version, tier = self.customer.value() or (None, None)
        row = trade.trade_id, trade.event_time, trade.amount, version, tier
        if not self._seconds:
            yield row
            return
        self.held.add(row)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000 * self._seconds)

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.customer.update((customer.version, customer.tier))

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Iterator[Any]:
        yield from self.held.get() or ()
        self.held.clear()


class Story:
    """One query, its files and its outputs.

    Args:
        spark: The session.
        folder: Where all of it goes on this machine.
        seed: Makes the streams.
        files: In how many files they come at most.
        output: What its output is.
        rejected: Where its rejected rows go.
        interval: A snapshot every so many batches; None for none.
        place: Where its checkpoint, its outputs and its copies go, and the database of an output that is in one; the
            folder if not given.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        seed: int,
        *,
        files: int = 8,
        output: Output = "delta",
        rejected: Output = "delta",
        interval: int | None = 1,
        place: Place | None = None,
    ) -> None:
        place = place or Place()
        self._spark, self._root, self._url, self._files = spark, place.root(folder), place.url, place.files()
        self._outputs: dict[str, Output] = {"out": output, "rejected": rejected}
        self._interval = interval
        self._streams = generate(trades=40 * files, customers=10 * files, seed=seed)
        self._pieces = list(zip(cut(self._streams.trades, files), cut(self._streams.customers, files), strict=True))
        self._added: list[int] = []
        self.saved = Saved(spark, self._root, Folders(folder / "data"), key_groups=2)

    def add(self, count: int) -> None:
        """Let the next files come."""
        for number in range(len(self._added), len(self._added) + count):
            trades, customers = self._pieces[number]
            self.saved.folders.add_trades(pd.concat([trades.astype({"customer_id": "Int64"}), _odd(number, trades)]))
            self.saved.folders.add_customers(customers)
            self._added.append(number)

    def start(self, settings: Settings, trigger: cj.Trigger = PAUSE) -> cj.Query:
        """Start it with these settings."""
        options: dict[str, Any] = {} if self._outputs["rejected"] == "beside" else {"rejected": self._sink("rejected")}
        return self.saved.start(
            settings.joined(self.saved.folders, self.saved.key_groups),
            trigger=trigger,
            output=self._sink("out"),
            checkpoint_interval=self._interval,
            **options,
        )

    def run(self, settings: Settings, trigger: cj.Trigger = PAUSE) -> str | None:
        """Run it to its end; returns what refused it or stopped it, as its kind, a colon and its message."""
        try:
            self.start(settings, trigger).await_termination(progress=False)
        except Exception as error:  # noqa: BLE001 - what is no error of cojoin's is a finding
            return f"{type(error).__name__}: {error}"
        return None

    def conclude(self, refusal: str | None, *, exact: bool) -> list[str]:
        """Return what is wrong with its rows after its last start.

        Args:
            refusal: How that was refused, where it was: then no row may be there twice, and the words must help.
            exact: Whether the settings stayed what they were.
        """
        output, rejected = self._rows(), self._rejected()
        found = Counter([row[0] for row in output] + rejected)
        if refusal is not None:
            double = sorted(number for number, count in found.items() if count > 1)
            faults = [f"refused, and {len(double)} trades are there twice, such as {double[0]}"] if double else []
            names = [self.saved.checkpoint, *(self._path(name) for name in self._outputs)]
            return faults + [f"refused: {each}" for each in unfit_words(refusal, *names)]
        trades = [int(number) for each in self._added for number in self._pieces[each][0].trade_id]
        odd = [int(number) for each in self._added for number in _odd(each, self._pieces[each][0]).trade_id]
        faults = differences(
            [(number,) for number in trades + odd], [(number,) for number in found.elements()], "trades"
        )
        if exact and len(self._added) == len(self._pieces):
            faults += differences(self._streams.enriched(), [row for row in output if row[0] < _ODD], "output")
        try:
            self.saved.assert_conserved()
        except AssertionError:
            faults.append("a manifest is not conserved")
        return faults

    def copy(self, to: str) -> None:
        """Copy the checkpoint as it lies there, as a tool that knows nothing of it would; the query may run on."""
        self._files.copy(self.saved.checkpoint, f"{self._root}/{to}")

    def put_back(self, copy: str) -> None:
        """Put a copy in the checkpoint's place, as if by another process: this one remembers no table of it."""
        self._files.delete(self.saved.checkpoint)
        self._files.copy(f"{self._root}/{copy}", self.saved.checkpoint)
        self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # noqa: SLF001 - Delta keeps it by its path

    def _path(self, name: str) -> str:
        return f"{self.saved.checkpoint if self._outputs[name] == 'beside' else self._root}/{name}"

    def _sink(self, name: str) -> cj.sinks.Sink:
        output, path = self._outputs[name], self._path(name)
        if output == "parquet":
            return cj.sinks.parquet(path)
        if output == "sql":
            return cj.sinks.sql(self._url, self._table, upsert="trade_id", order_by="event_time")
        column = "tier" if name == "out" else "reason"
        # Late trades may be applied, so that no order is known of itself.
        rule: dict[str, Any] = (
            {"upsert": "trade_id", "order_by": "event_time"} if output in {"upserted", "merged"} else {}
        )
        return cj.sinks.delta(path, partition_by=column if output in {"partitioned", "merged"} else (), **rule)

    @property
    def _table(self) -> str:
        """The output's table in a database, which is of the story's folder alone."""
        return f"out_{hashlib.sha256(self._root.encode()).hexdigest()[:16]}"

    def _frame(self, name: str) -> DataFrame | None:
        path = self._path(name)
        if not any(each.endswith(".parquet") for each in self._files.names(path)):
            return None
        return self._spark.read.format("parquet" if self._outputs[name] == "parquet" else "delta").load(path)

    def _rows(self) -> list[tuple[Any, ...]]:
        if self._outputs["out"] == "sql":
            return enriched_in(self._url, self._table)
        frame = self._frame("out")
        return [] if frame is None else enriched_rows(frame)

    def _rejected(self) -> list[int]:
        frame = self._frame("rejected")
        if frame is None:
            return []
        return [row[0] for row in frame.selectExpr("CAST(get_json_object(row, '$.trade_id') AS bigint)").collect()]


def _odd(number: int, trades: pd.DataFrame) -> pd.DataFrame:
    """Make the odd trades of a file: one without a key, one of 2200, and after the first file one that comes late."""
    made = (
        trades.iloc[:3]
        .astype({"customer_id": "Int64"})
        .assign(trade_id=[_ODD + 3 * number + each for each in (0, 1, 2)])
    )
    made.iloc[0, made.columns.get_loc("customer_id")] = pd.NA
    times = {1: FAR_FUTURE + number * SECOND, 2: MORNING - 3600 * SECOND}
    for row, time in times.items():
        made.iloc[row, made.columns.get_loc("event_time")] = time
    return made if number else made.iloc[:2]
