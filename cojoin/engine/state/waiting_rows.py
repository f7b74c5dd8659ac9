"""The rows of one input that wait for the watermark: in memory, and beyond a limit in *runs*, sorted by event time.

Rows in memory are part of the state value. Once they exceed a limit (``SegmentOptions``), they become a run: an
immutable file next to the checkpoint's segments, whose rows are sorted by timestamp. The state value has each run's
name, and how many of its rows were taken. A batch takes from each run the rows that the watermark has passed; they are
the next ones in the file. Once all rows of a run are taken, the state value no longer names it, and its file is deleted
as a segment's would be.

Due rows are taken in slices of time of some megabytes each. All rows of one millisecond are in one slice. When there
are many small runs, they are merged into larger ones. A snapshot reads all runs into memory.

Writing a run costs a sort and a file. Each batch in which rows of a run are due opens it and reads its timestamps, in
some 0.1 to 2 ms; a file of a non-local store is read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.state.segments import Segment, SegmentContext, write_file
from cojoin.engine.values.tables import concat, take_rows
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.state.segments import SegmentStore

_TIME = "@time"
"""The name of a run's first column, of timestamps. It is read by its position, since an input may use the name, too."""

_MOST_RUNS = 16
"""The most runs that are merged at a time, and the most small runs that a key group keeps."""

_BATCH_BYTES = 1 << 20
_SAMPLES = 4
"""The number of samples in a slice; their timestamps and bytes decide where it ends."""


@dataclass(frozen=True)
class Run:
    """The record of a run in the state value: its file, and the number of its rows that were taken.

    ``first`` and ``last`` are the timestamps of the first and the last of the other rows, in epoch milliseconds.
    """

    file: Segment
    first: int
    last: int
    taken: int = 0

    @property
    def rows(self) -> int:
        """The number of rows that were not taken."""
        return self.file.rows - self.taken

    def as_list(self) -> list[Any]:
        """Return the attributes as JSON values."""
        return [self.file.as_list(), self.first, self.last, self.taken]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Run:
        """Return the record that ``as_list`` returned."""
        return cls(Segment(*values[0]), *values[1:])

    @property
    def bytes(self) -> int:
        """The size of the rows that were not taken, in bytes of the file."""
        return self.file.bytes * self.rows // self.file.rows

    def rows_up_to(self, until: int, store: SegmentStore) -> tuple[pa.Table, Run | None]:
        """Return the rows up to a timestamp, and the record of the run without them; None where no row remains."""
        table, times = self._open(store)
        stop = int(np.searchsorted(times, until, "right"))
        rest = None if stop == len(times) else replace(self, first=int(times[stop]), taken=self.taken + stop)
        return table.slice(0, stop), rest

    def samples(self, until: int, share: int, store: SegmentStore) -> Iterator[tuple[int, int]]:
        """Yield the timestamps of some due rows, each with the bytes of the rows after the one before it.

        The rows of one sample have about ``share`` bytes.
        """
        _, times = self._open(store)
        due = times[: int(np.searchsorted(times, until, "right"))]
        row_bytes = max(1, self.file.bytes // self.file.rows)
        step = max(1, share // row_bytes)
        yield from ((int(time), step * row_bytes) for time in due[step - 1 :: step])
        if len(due) % step:
            yield int(due[-1]), len(due) % step * row_bytes

    def _open(self, store: SegmentStore) -> tuple[pa.Table, NDArray[np.int64]]:
        table = pa.ipc.open_file(self.file.content(store)).read_all().slice(self.taken)
        return table.remove_column(0), table.column(0).to_numpy()


class WaitingRows:
    """The rows of one input that wait for the watermark, in memory and in runs.

    ``millis`` returns the timestamps of rows. ``evolved`` converts rows of a run to the input's present columns.
    """

    def __init__(
        self,
        memory: pa.Table,
        millis: Callable[[pa.Table], NDArray[np.int64]],
        evolved: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> None:
        self.memory = memory
        self.runs: tuple[Run, ...] = ()
        self._millis, self._evolved = millis, evolved
        self._store: SegmentStore | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.memory.num_rows) + sum(run.rows for run in self.runs)

    def read_all(self) -> pa.Table:
        """Return all rows; all runs are read."""
        if not self.runs:
            return self.memory
        pieces = [run.rows_up_to(run.last, self._run_store)[0] for run in self.runs]
        return concat([self.memory, *map(self._evolved, pieces)])

    def forget(self) -> None:
        """Forget all rows."""
        self.memory, self.runs = self.memory.slice(0, 0), ()

    def has_due(self, until: int) -> bool:
        """Return whether runs have rows up to a timestamp."""
        return any(run.first <= until for run in self.runs)

    def samples(self, until: int, slice_bytes: int) -> list[tuple[int, int]]:
        """Return timestamps of due rows in runs, each with the bytes of the rows up to it, for ``slice_bounds``."""
        due = [run for run in self.runs if run.first <= until]
        share = slice_bytes // (_SAMPLES * max(1, len(due)))
        return [sample for run in due for sample in run.samples(until, share, self._run_store)]

    def take(self, until: int) -> pa.Table:
        """Return the rows of runs up to a timestamp, and remove them."""
        pieces, runs = [self.memory.slice(0, 0)], []
        for run in self.runs:
            rest: Run | None = run
            if run.first <= until:
                rows, rest = run.rows_up_to(until, self._run_store)
                pieces.append(self._evolved(rows))
            if rest is not None:
                runs.append(rest)
        self.runs = tuple(runs)
        return concat(pieces)

    def flush(self, segmenting: SegmentContext) -> int:
        """Write the rows in memory as a run if they exceed the limit, and return the bytes written.

        Before that, small runs are merged if there are many. The number differs by key group, so that the key groups
        merge theirs in different batches.
        """
        options = segmenting.options
        if options is None or self.memory.nbytes <= options.waiting_bytes or not self.memory.num_rows:
            return 0
        self._store = segmenting.store
        small = tuple(run for run in self.runs if run.bytes < options.slice_bytes // 2)
        written: list[Run] = []
        if len(small) >= _MOST_RUNS - segmenting.key_group % (_MOST_RUNS // 2):
            written += self._merged(small, segmenting.store, segmenting, options.slice_bytes)
            self.runs = (*(run for run in self.runs if run not in small), *written)
        written.append(_write(segmenting, self.memory, self._millis(self.memory)))
        self.runs, self.memory = (*self.runs, written[-1]), self.memory.slice(0, 0)
        return sum(run.file.bytes for run in written)

    def move(self, store: SegmentStore) -> list[Run]:
        """Move the rows in memory to a run in another store, for ``adopt``, and return its record."""
        rows, self.memory = self.memory, self.memory.slice(0, 0)
        return [_write(SegmentContext(store), rows, self._millis(rows))] if rows.num_rows else []

    def adopt(self, runs: Sequence[Run], store: SegmentStore, segmenting: SegmentContext) -> None:
        """Copy the rows of another store's runs, some runs at a time, into runs that each have one slice of time."""
        assert segmenting.options is not None
        self._store = segmenting.store
        for start in range(0, len(runs), _MOST_RUNS):
            merged = tuple(runs[start : start + _MOST_RUNS])
            self.runs += self._merged(merged, store, segmenting, segmenting.options.slice_bytes)

    def _merged(
        self, runs: tuple[Run, ...], store: SegmentStore, segmenting: SegmentContext, slice_bytes: int
    ) -> tuple[Run, ...]:
        """Write the rows of runs of ``store`` as new runs, each with a slice of time of about ``slice_bytes``."""
        source = WaitingRows(self.memory.slice(0, 0), self._millis, self._evolved)
        source.runs, source._store = runs, store
        last = max(run.last for run in runs)
        slices = (source.take(until) for until in slice_bounds(source.samples(last, slice_bytes), last, slice_bytes))
        return tuple(_write(segmenting, rows, self._millis(rows)) for rows in slices if rows.num_rows)

    @property
    def _run_store(self) -> SegmentStore:
        assert self._store is not None
        return self._store

    def describe(self) -> list[Any]:
        """Return the records of the runs for a state value's header, as JSON values."""
        return [run.as_list() for run in self.runs]

    def attach(self, described: Sequence[Any], segmenting: SegmentContext | None) -> None:
        """Restore the runs that ``describe`` returned."""
        if not described:
            return
        if segmenting is None:
            msg = (
                f"the state has rows that wait in segments, such as {described[0][0][0]}, and no segment store is "
                f"configured; run the query with its own checkpoint, where pyarrow can read it"
            )
            raise CheckpointError(msg)
        self.runs, self._store = tuple(map(Run.of, described)), segmenting.store


def slice_bounds(samples: Sequence[tuple[int, int]], until: int, slice_bytes: int) -> list[int]:
    """Return the timestamps at which slices of about ``slice_bytes`` end; the last is ``until``.

    ``samples`` are timestamps, each with the bytes of the rows up to it that no earlier sample counts.

    >>> slice_bounds([(1, 60), (5, 60), (7, 60), (7, 60), (9, 10)], 9, 100)
    [5, 7, 9]
    """
    bounds: list[int] = []
    size = 0
    for time, weight in sorted(samples):
        size += weight
        if size >= slice_bytes and time < until and (not bounds or time > bounds[-1]):
            bounds.append(time)
            size = 0
    return [*bounds, until]


def _write(segmenting: SegmentContext, rows: pa.Table, millis: NDArray[np.int64]) -> Run:
    order = np.argsort(millis, kind="stable")
    times = millis[order]
    table = take_rows(rows, order).add_column(0, pa.field(_TIME, pa.int64()), pa.array(times)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, _BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
    content = sink.getvalue()
    name, digest = write_file(segmenting, content)
    return Run(Segment(name, table.num_rows, 0, content.size, digest), int(times[0]), int(times[-1]))
