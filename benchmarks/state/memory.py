"""``python -m benchmarks.state.memory``: the memory of a worker whose state is ten times its budget.

A process of its own runs one key group's as-of join through state values, as a task does: it decodes a value, processes
a batch, flushes and encodes. Half of the state is versions, which are changed meanwhile, and half trades that wait for
the right input. A snapshot is taken every twentieth batch. In the end all rows of the state are read once, as messages
of which a new operator is restored. Then the right input goes on, and all trades are joined. They must have the last
versions of their keys.

The memory is ``RssAnon``: pages of files that are mapped are not in it, since the system takes them back when it needs
them. The peak is above that of the same process after two batches of a small state.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.findings import Findings
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.checkpoints.snapshot_row import snapshot_row
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import AsofJoin
from cojoin.engine.local.key_group import without_garbage_collection
from cojoin.engine.operator import Batch
from cojoin.engine.state.named_files import SEGMENTS, NamedFiles
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values import codec
from cojoin.spark.batch.control_input import RestoredState

_TIME = pa.timestamp("us", "UTC")
_LEFT_SCHEMA = pa.schema([("id", pa.int64()), ("time", _TIME), ("trade", pa.int64()), ("note", pa.string())])
_RIGHT_SCHEMA = pa.schema([("id", pa.int64()), ("time", _TIME), ("number", pa.int64()), ("profile", pa.string())])
_WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
_LEFT, _RIGHT = (
    InputSpec(name, schema, ("id",), "time", watermark=_WATERMARK)
    for name, schema in (("trades", _LEFT_SCHEMA), ("customers", _RIGHT_SCHEMA))
)
_TEXT_BYTES, _ROW_BYTES, _BATCH_ROWS = 180, 208, 20_000
_SNAPSHOT_EVERY = 20


class _Worker:
    """One key group's state value and its files, which each batch decodes, changes and encodes."""

    def __init__(self, folder: Path, budget: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.store, self.options = SegmentFolder(folder.as_uri()), SegmentOptions(memory_bytes=budget)
        self.value: bytes | None = None
        self.batch, self.rows_out, self.checksum, self.milliseconds = 0, 0, 0, 0.0

    def run(self, left: pa.Table, right: pa.Table, *, ends: bool = False) -> None:
        """Run one batch."""
        started = time.perf_counter()
        operator = AsofJoin().create_operator(_LEFT, _RIGHT)
        operator.segmenting = SegmentContext(self.store, self.options, 0, self.batch)
        if self.value is not None:
            operator.load(*codec.decode(self.value))
        controls = [_control(1, left), _control(2, right)]
        with without_garbage_collection():
            batch = Batch((left, right), [each for each in controls if each.rows], end_of_input=ends)
            for emission in operator.process(batch):
                self.rows_out += emission.table.num_rows
                columns = [emission.table.column(name).to_numpy() for name in ("trade", "number")]
                self.checksum += _sum_of_products(*columns)
        header, tables, _ = operator.flush()
        if not self.batch % _SNAPSHOT_EVERY:
            _, header["saved"] = snapshot_row(0, self.batch, header, tables)
        self.value = codec.encode(header, tables)
        self._clean(NamedFiles.of(header))
        self.batch += 1
        self.milliseconds = max(self.milliseconds, 1000 * (time.perf_counter() - started))

    def restore(self) -> tuple[int, int]:
        """Restore a new operator from messages, and return how many rows they had, and how many the value counted."""
        assert self.value is not None
        header, tables = codec.decode(self.value)
        files, rows = NamedFiles.of(header), 0
        whole = {name: each for name, each in header.items() if name not in (SEGMENTS, codec.RUNS)}
        operator = AsofJoin().create_operator(_LEFT, _RIGHT)
        operator.segmenting = SegmentContext(self.store, self.options, 0, self.batch)
        names = [size.name for size in files.sizes(tables)]
        with RestoredState(0, None, (_LEFT, _RIGHT), self.options.slice_bytes) as restored:
            restored.add(_message({"restored": whole}, {name: tables[name].slice(0, 0) for name in names}))
            for name in names:
                for piece in files.pieces(name, tables, self.store):
                    for start in range(0, piece.num_rows, _BATCH_ROWS):
                        restored.add(_message({}, {name: piece.slice(start, _BATCH_ROWS)}))
                    rows += piece.num_rows
            restored.load_into(operator, keeps_counts=True)
        counted = sum(size.rows for size in files.sizes(tables))
        header, tables, _ = operator.flush()
        self.value = codec.encode(header, tables)
        self.batch += 1
        return rows, counted

    def _clean(self, files: NamedFiles) -> None:
        """Delete the files that the state no longer names."""
        kept = {file.name for file in files.files()}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink()


def _message(header: dict[str, Any], tables: dict[str, pa.Table]) -> pa.Buffer:
    return pa.py_buffer(codec.encode({**header, "for": [None, 0, uuid.uuid4().hex]}, tables))


def _control(number: int, rows: pa.Table) -> Control:
    if not rows.num_rows:
        return Control(number)
    return Control(
        number, {ONE_PARTITION: int(rows.column("time").cast(pa.int64()).to_numpy().max()) // 1_000}, rows.num_rows
    )


def _sum_of_products(some: np.ndarray, others: np.ndarray) -> int:
    return int((some % 1009 * (others % 100_003)).sum())


def _rows(schema: pa.Schema, ids: np.ndarray, times: np.ndarray, numbers: np.ndarray) -> pa.Table:
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * _TEXT_BYTES
    letters = np.random.default_rng(int(numbers[0])).integers(97, 123, offsets[-1], dtype=np.uint8)
    texts = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(letters))
    return pa.table([pa.array(ids), pa.array(times).cast(_TIME), pa.array(numbers), texts], schema=schema)


def _warm(folder: Path, budget: int) -> None:
    """Run two batches of a small state, so that an idle process has what each one has."""
    worker, numbers = _Worker(folder, budget), np.arange(_BATCH_ROWS)
    for batch in range(2):
        times = (batch * _BATCH_ROWS + numbers) * 1_000
        worker.run(*(_rows(schema, numbers, times, numbers) for schema in (_LEFT_SCHEMA, _RIGHT_SCHEMA)))


def _work(folder: Path, budget: int, times: int) -> None:
    """Run in the process that is measured: print when it begins, and what it has found."""
    worker, rng = _Worker(folder, budget), np.random.default_rng(5)
    none = (_LEFT_SCHEMA.empty_table(), _RIGHT_SCHEMA.empty_table())
    _warm(folder.with_name("warm"), budget)
    keys = times * budget // 2 // _ROW_BYTES
    last, clock = np.full(keys, -1, dtype=np.int64), 1_768_435_200_000_000
    order = rng.permutation(keys)
    print("idle", flush=True)
    sys.stdin.readline()
    for number, start in enumerate(range(0, keys, _BATCH_ROWS)):
        new = order[start : start + _BATCH_ROWS]
        changed = np.unique(rng.choice(order[: start + 1], _BATCH_ROWS // 5))
        ids = np.concatenate([new, changed])
        numbers = np.arange(len(ids)) + number * 10 * _BATCH_ROWS
        # The second one of a key in a batch is the later one.
        versions = _rows(_RIGHT_SCHEMA, ids, clock + np.arange(len(ids)) * 10, numbers)
        last[ids] = numbers
        clock += len(ids) * 10 + 10_000_000
        worker.run(_rows(_LEFT_SCHEMA, new[:1], np.array([clock]), np.array([0])), versions)
    # The trade of the last batch with versions waits, too.
    waiting, wanted, clock = 1, 0, clock + 10_000_000
    for start in range(0, keys, _BATCH_ROWS):
        count = min(_BATCH_ROWS, keys - start)
        ids, trades = rng.integers(0, keys, count), np.arange(start, start + count)
        # They come in any order of time, and all of them wait.
        moments = clock + rng.integers(0, 3_600_000_000, count)
        worker.run(_rows(_LEFT_SCHEMA, ids, moments, trades), none[1])
        wanted += _sum_of_products(trades, last[ids])
        waiting += count
    read, named = worker.restore()
    # The versions of the watermark's own millisecond wait, and those before them are kept.
    is_whole = read == named and keys + waiting <= read < keys + waiting + 200
    size, before = sum(path.stat().st_size for path in folder.iterdir()), worker.rows_out
    worker.run(*none, ends=True)
    is_right = worker.checksum == wanted and worker.rows_out - before == waiting and is_whole
    print(f"{int(is_right)} {size} {worker.batch} {worker.milliseconds:.0f}", flush=True)


def measure(budget: int, times: int) -> tuple[int, int, list[int], float]:
    """Return the peak above the idle process, that with files' pages, what the process has printed, and its seconds."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        command = [sys.executable, "-m", "benchmarks.state.memory", "--work", f"{folder}/segments"]
        command += ["--budgets", str(budget), "--times", str(times)]
        started = time.monotonic()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "idle\n"
            idle = _memory(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            peaks = list(idle)
            while process.poll() is None:
                now = _memory(process.pid)
                peaks = [max(pair) for pair in zip(peaks, now, strict=True)] if now[0] else peaks
                time.sleep(0.005)
            found = [int(each) for each in process.stdout.readline().split()]
    return peaks[0] - idle[0], peaks[1] - idle[1], found, time.monotonic() - started


def _memory(process: int) -> tuple[int, int]:
    """Return a process's own memory in bytes, and all that is resident, with pages of files."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    values = {
        line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "VmRSS"))
    }
    return values.get("RssAnon", 0), values.get("VmRSS", 0)


def main() -> None:
    """Measure the peak for each budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", type=int, nargs="+", default=[128 << 20, 1 << 30], help="in bytes")
    parser.add_argument("--times", type=int, default=10, help="how many times its budget the state is")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        _work(Path(options.work), options.budgets[0], options.times)
        return
    findings = Findings()
    for budget in options.budgets:
        own, resident, found, seconds = measure(budget, options.times)
        is_right, size, batches, slowest = found or (0, 0, 0, 0)
        asked = f"budget {budget / 1e6:,.0f} MB, state {options.times} times that: at most 1.3 times the budget"
        told = f"{own / 1e6:,.0f} MB, {own / budget:.2f} ({resident / 1e6:,.0f} MB with pages of files); "
        told += (
            f"files of {size / 1e6:,.0f} MB, {batches} batches in {seconds:.0f} s, the slowest {slowest / 1000:.1f} s"
        )
        findings.add(asked, told, holds=own <= 1.3 * budget)
        findings.add("its rows are right", "yes" if is_right else "no", holds=bool(is_right))
    sys.exit(not findings.hold)


if __name__ == "__main__":
    main()
