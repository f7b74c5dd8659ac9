"""What bytewax's flow is made of; only the contender's own environment has what this imports.

bytewax has no watermark that spans keys, so a trade waits until its own customer has a version of more than the
disorder later, or until all input is at its end. One reader an input keeps the order that this relies on.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from benchmarks.join.contender import OUTPUT_COLUMNS, Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["build_flow"]

ROWS_AT_ONCE, ROWS_A_GROUP = 4_096, 65_536
DISORDER_MICROS = 5_000_000
NO_VERSION = (None, None, None)
AFTER_ALL_TIERS = "\U0010ffff"
KEY_COLUMN = {"trades": 1, "customers": 0}
TRADE_COLUMNS = 5


def build_flow(job: Job, process: int) -> Dataflow:
    """Connect sources, the join and the sink."""
    flow = Dataflow("join")
    sides = [op.input(side, flow, Files(job, side)) for side in ("trades", "customers")]
    joined = op.stateful_batch("join", op.merge("both", *sides), lambda _: EnrichTrades())
    op.output("out", joined, Results(job.out, process))
    return flow


class EnrichTrades(StatefulBatchLogic):
    """One customer: versions in order of time, and trades that wait."""

    def __init__(self) -> None:
        self._versions: list[Any] = []
        self._waiting: list[Any] = []
        self._latest_trade = 0

    def on_batch(self, values: list[Any]) -> tuple[list[Any], bool]:
        """Take rows of both sides and give what is due."""
        for row in values:
            if len(row) == TRADE_COLUMNS:
                self._waiting.append(row)
            else:
                insort(self._versions, row)
        return self._due(), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[list[Any], bool]:
        """Return the rest."""
        joined = [self._join(trade) for trade in self._waiting]
        self._waiting = []
        return joined, StatefulBatchLogic.RETAIN

    def snapshot(self) -> None:
        """Keep nothing: no recovery was asked for."""

    def _due(self) -> list[Any]:
        versions = self._versions
        passed = versions[-1][0] - DISORDER_MICROS if versions else 0
        due = [trade for trade in self._waiting if trade[2] <= passed]
        if not due:
            return []
        self._waiting = [trade for trade in self._waiting if trade[2] > passed]
        joined = [self._join(trade) for trade in due]
        self._latest_trade = max(self._latest_trade, due[-1][2])
        in_force = bisect_right(versions, (self._latest_trade - DISORDER_MICROS,)) - 1
        if in_force > 0:
            del versions[:in_force]
        return joined

    def _join(self, trade: Any) -> tuple[Any, ...]:
        found = bisect_right(self._versions, (trade[2], AFTER_ALL_TIERS))
        return (*trade, *(self._versions[found - 1] if found else NO_VERSION))


class Reader(StatefulSourcePartition):
    """Reads an input's files in their order, as lists of key and row; a version's key is in no row."""

    def __init__(self, files: list[Path], key: int) -> None:
        self._lists = _keyed_rows(files, key)

    def next_batch(self) -> list[Any]:
        """Return the next list; at the end StopIteration says so."""
        return next(self._lists)

    def snapshot(self) -> None:
        """Keep nothing."""


class Files(FixedPartitionedSource):
    """One input."""

    def __init__(self, job: Job, side: str) -> None:
        self._job, self._side = job, side

    def list_parts(self) -> list[str]:
        """Return the one partition."""
        return [self._side]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Reader:
        """Open it."""
        return Reader(self._job.files(for_part), KEY_COLUMN[for_part])


class Writer(StatelessSinkPartition):
    """One worker's file of results."""

    def __init__(self, path: Path) -> None:
        numbers, texts = {"amount", "credit"}, {"symbol", "tier"}
        types = {**dict.fromkeys(numbers, pa.float64()), **dict.fromkeys(texts, pa.string())}
        self._schema = pa.schema([(name, types.get(name, pa.int64())) for name in OUTPUT_COLUMNS])
        self._file, self._rows = pq.ParquetWriter(path, self._schema), []

    def write_batch(self, items: list[Any]) -> None:
        """Take rows, and write them as soon as they are many."""
        self._rows += [row for _, row in items]
        if len(self._rows) >= ROWS_A_GROUP:
            self._write()

    def close(self) -> None:
        """Write the rest."""
        self._write()
        self._file.close()

    def _write(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
            self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
            self._rows = []


class Results(DynamicSink):
    """A file for each worker."""

    def __init__(self, folder: Path, process: int) -> None:
        self._folder, self._process = folder, process

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Writer:
        """Open it."""
        return Writer(self._folder / f"{self._process}-{worker_index}.parquet")


def _keyed_rows(files: list[Path], key: int) -> Iterator[list[Any]]:
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
            columns = [
                (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
                for column in batch.columns
            ]
            rows = zip(*(columns if key else columns[1:]), strict=True)
            yield list(zip(map(str, columns[key]), rows, strict=True))
