"""The cost of a commit of one file on a local disk, without the JVM and by Delta's classes, by the size of the table.

    python -m benchmarks.tables.commits [--files 10 10000] [--commits 60] [--spark]

A commit looks at the table, compares the application's version, looks at the file, and commits; the file itself is
written before. Each line has the median and the largest of all commits, in milliseconds, log checkpoints included. With
``--spark`` the last lines have the ratio for the commits of a batch: one to an output of each size, and two to tables
of the first size, which the progress and the state are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.delta.actions import DataFile
from cojoin.delta.table_batches import TableBatches
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.storage.local_store import LocalStore
from cojoin.storage.parquet_files import WrittenFile

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA, APP = pa.schema([("id", pa.int64())]), "query/output"
STATISTICS = '{"numRecords":1,"minValues":{"id":1},"maxValues":{"id":1},"nullCount":{"id":0}}'


def make(folder: Path, files: int) -> None:
    """Make a table of many files in one commit."""
    (folder / "out").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}, schema=SCHEMA), folder / "out" / "0.parquet")
    content = (folder / "out" / "0.parquet").read_bytes()
    for number in range(1, files):
        (folder / "out" / f"{number}.parquet").write_bytes(content)
    added = [DataFile(f"{number}.parquet", len(content), 1, STATISTICS) for number in range(files)]
    TableWriter(LocalStore(str(folder)), "out").commit(
        Change({APP: 0}, SCHEMA, added), lambda _: False, new=NewTable(SCHEMA)
    )


def measure(name: str, folder: Path, commits: int, append: Callable[..., Any]) -> float:
    """Append files of one row, print what the commits took, and return the median."""
    content, taken = (folder / "out" / "0.parquet").read_bytes(), []
    for batch_id in range(1, commits + 1):
        (folder / "out" / f"more-{batch_id}.parquet").write_bytes(content)
        file = WrittenFile(f"more-{batch_id}.parquet", 1, len(content), 1, STATISTICS)
        begin = time.perf_counter()
        append(SCHEMA, [file], batch_id, query_id="q", is_done=lambda newest, wanted=batch_id: newest >= wanted)
        taken.append(1000 * (time.perf_counter() - begin))
    return report(name, taken)


def report(name: str, taken: list[float]) -> float:
    """Print what commits took, in milliseconds, and return the median."""
    print(f"  {name:16} median {statistics.median(taken):7.1f} ms, largest {max(taken):7.1f} ms", flush=True)
    return statistics.median(taken)


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", type=int, default=[10, 10_000])
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--spark", action="store_true", help="by Spark's writer, too")
    chosen = parser.parse_args()
    ours_by_size, sparks_by_size = dict[int, float](), dict[int, float]()
    with tempfile.TemporaryDirectory() as root:
        for files in chosen.files:
            print(f"a table of {files} files, {chosen.commits} commits")
            folder = Path(root) / str(files)
            make(folder, files)
            ours = TableBatches(LocalStore(str(folder)), "out", APP, 1)
            ours_by_size[files] = measure("without the JVM", folder, chosen.commits, ours.append)
            if chosen.spark:
                from benchmarks.session import make_session  # noqa: PLC0415

                make(folder / "again", files)
                spark = make_session("commits", Path(root))
                row = spark.range(1).coalesce(1).cache()
                taken = []
                for _ in range(chosen.commits):
                    begin = time.perf_counter()
                    row.write.format("delta").mode("append").save(f"{folder}/again/out")
                    taken.append(1000 * (time.perf_counter() - begin))
                sparks_by_size[files] = report("by Spark, a row", taken)
    small = chosen.files[0]
    for files in sparks_by_size:
        batches = [each[files] + 2 * each[small] for each in (ours_by_size, sparks_by_size)]
        print(f"a batch's three commits, its output of {files} files: {batches[0] / batches[1]:.2f} of Spark's time")


if __name__ == "__main__":
    main()
