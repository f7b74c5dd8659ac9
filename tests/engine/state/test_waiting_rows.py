"""Rows that wait in memory and in runs are taken by time as a sorted list would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.state import waiting_rows as module
from cojoin.engine.state.named_files import NamedFiles
from cojoin.engine.state.segments import Segment, SegmentContext, SegmentOptions
from cojoin.engine.state.waiting_rows import Run, WaitingRows, slice_bounds
from cojoin.engine.values import codec
from cojoin.errors import CheckpointError, CodecError
from tests.segments import MemoryStore

if TYPE_CHECKING:
    import numpy as np

ROWS = pa.schema([("at", pa.int64()), ("text", pa.string())])
TIMES = st.lists(st.integers(-5, 20), max_size=8)


def table(rows: list[tuple[int, str]]) -> pa.Table:
    return (
        pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=ROWS) if rows else ROWS.empty_table()
    )


def millis(rows: pa.Table) -> np.ndarray:
    return rows.column("at").to_numpy()


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in found.to_pylist())


def waiting(memory: pa.Table | None = None) -> WaitingRows:
    return WaitingRows(ROWS.empty_table() if memory is None else memory, millis)


class Steps:
    """Waiting rows, flushed and restored after each step, and the list that they must be."""

    def __init__(self, memory_bytes: int) -> None:
        self.store, self.options, self.batch = MemoryStore(), SegmentOptions(0, memory_bytes=memory_bytes), 0
        self.rows, self.expected, self.number = waiting(), list[tuple[int, str]](), 0

    def step(self, times: list[int], until: int) -> None:
        new = [(time, f"{self.number + place}") for place, time in enumerate(times)]
        self.number += len(times)
        self.expected += new
        self.rows.memory = table(rows_of(self.rows.memory) + new)
        due = [row for row in self.expected if row[0] <= until]
        in_memory = [row for row in rows_of(self.rows.memory) if row[0] <= until]
        self.rows.memory = table([row for row in rows_of(self.rows.memory) if row[0] > until])
        taken = [*in_memory]
        if self.rows.has_due(until):
            slice_bytes, last = self.options.slice_bytes, -100
            for bound in slice_bounds(self.rows.samples(until, slice_bytes), until, slice_bytes):
                part = rows_of(self.rows.take(bound))
                assert all(last < row[0] <= bound for row in part)
                taken += part
                last = bound
        assert sorted(taken) == sorted(due)
        self.expected = [row for row in self.expected if row[0] > until]
        assert self.rows.rows == len(self.expected)
        self.batch += 1
        context = SegmentContext(self.store, self.options, 0, self.batch)
        self.rows.flush(context)
        assert rows_of(self.rows.read_all()) == sorted(self.expected)
        described, memory = self.rows.describe(), self.rows.memory
        files = NamedFiles(runs={"held1": described} if described else {})
        assert rows_of(files.whole({"held1": memory}, self.store)["held1"]) == sorted(self.expected)
        assert files.sizes({"held1": memory})[0].rows == len(self.expected)
        self.rows = waiting(memory)
        self.rows.attach(described, context)


@given(st.lists(st.tuples(TIMES, st.integers(-6, 21)), max_size=30), st.sampled_from([1 << 9, 1 << 13, 1 << 30]))
def test_oracle_rows_come_out_by_time_as_those_of_a_list(steps: list[tuple[list[int], int]], memory: int) -> None:
    rows = Steps(memory)
    for times, until in steps:
        rows.step(times, until)
    rows.step([], 30)
    assert rows.rows.rows == 0
    assert rows.rows.runs == ()


def test_many_small_runs_are_merged_and_large_ones_stay() -> None:
    rows = Steps(1 << 16)
    for number in range(40):
        rows.step([number, number + 1, 100 - number], -10)
    assert len(rows.rows.runs) <= module._MOST_RUNS
    assert rows.rows.rows == 120
    large = Steps(1 << 9)
    for number in range(20):
        large.step([number] * 8, -10)
    assert len(large.rows.runs) == 20


def test_rows_below_the_limit_stay_in_the_state_value() -> None:
    rows, store = waiting(table([(1, "a")])), MemoryStore()
    for options in (None, SegmentOptions()):
        assert rows.flush(SegmentContext(store, options)) == 0
    assert (rows.runs, rows.memory.num_rows) == ((), 1)


def test_a_slice_has_about_so_many_bytes_and_all_rows_of_a_millisecond() -> None:
    rows = waiting(table([(time // 100, "x" * 90) for time in range(2_000)]))
    store = MemoryStore()
    context = SegmentContext(store, SegmentOptions(0, memory_bytes=16 * 30_000))
    rows.flush(context)
    bounds = slice_bounds(rows.samples(50, 30_000), 50, 30_000)
    sizes = [rows.take(bound).num_rows for bound in bounds]
    assert sum(sizes) == 2_000
    assert all(200 <= size <= 400 for size in sizes[:-1])


def test_runs_smaller_than_a_slice_count_for_slices_and_merged_files_too() -> None:
    slice_bytes, store = 1 << 16, MemoryStore()
    rows = waiting()
    for batch in range(12):
        rows.memory = table([(time, "x" * 90) for time in range(batch, 3_000, 12)])
        rows.flush(SegmentContext(store, SegmentOptions(0, memory_bytes=16 * slice_bytes), 0, batch))
    sizes = [run.bytes for run in rows.runs]
    # Key group 0 merges 16, and so has merged none.
    assert len(sizes) == 12
    assert max(sizes) < slice_bytes // 2
    bounds = slice_bounds(rows.samples(3_000, slice_bytes), 3_000, slice_bytes)
    taken = [rows.take(bound).nbytes for bound in bounds]
    assert max(taken) < 1.5 * slice_bytes
    assert len(taken) >= sum(taken) // (1.5 * slice_bytes)


def test_a_run_of_which_little_is_left_is_small_and_a_column_may_have_the_runs_own_name() -> None:
    store = MemoryStore()
    renamed = table([(time, "x" * 90) for time in range(1_000)]).rename_columns(["@time", "text"])
    rows = WaitingRows(renamed, lambda found: found.column("@time").to_numpy())
    rows.flush(SegmentContext(store, SegmentOptions(0)))
    assert rows.take(899).column("@time").to_pylist() == list(range(900))
    assert rows.runs[0].bytes == rows.runs[0].file.bytes // 10
    assert rows.read_all().num_rows == rows.rows == 100


def test_a_run_that_is_missing_or_changed_is_named() -> None:
    rows, store = waiting(table([(1, "a"), (3, "b")])), MemoryStore()
    rows.flush(SegmentContext(store, SegmentOptions(0)))
    (file,) = NamedFiles(runs={"held1": rows.describe()}).files()
    assert isinstance(file, Segment)
    content = store.files.pop(file.name)
    with pytest.raises(CheckpointError, match=rf"{file.name}: the state names this file .* missing"):
        rows.take(2)
    store.files[file.name] = content[:-8]
    with pytest.raises(CodecError, match=r"expected .* bytes, got"):
        rows.take(2)


def test_a_state_with_runs_needs_a_store_and_is_refused_by_an_earlier_release() -> None:
    rows, store = waiting(table([(1, "a")])), MemoryStore()
    rows.flush(SegmentContext(store, SegmentOptions(0)))
    with pytest.raises(CheckpointError, match=r"rows that wait in segments, such as .*no segment store"):
        waiting().attach(rows.describe(), None)
    state = codec.encode({codec.RUNS: {"held1": rows.describe()}}, {})
    # An earlier release reads format 2, and says of a newer one that it must be upgraded.
    assert (state[6], codec.encode({}, {})[6]) == (3, 2)
    assert Run.of(codec.decode(state)[0][codec.RUNS]["held1"][0]) == rows.runs[0]
