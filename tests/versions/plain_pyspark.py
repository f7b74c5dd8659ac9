"""Plain PySpark's ``mapInArrow`` and ``applyInPandasWithState``, on which cojoin rests: is what comes out right?

``python tests/versions/plain_pyspark.py`` runs with any Python that has PySpark, pandas and pyarrow, and imports
nothing of cojoin.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each row with twice its number, and a value of each kind of type that cojoin's rows have."""
    for batch in batches:
        rows = [
            {"id": 2 * row["id"], "at": row["at"], "content": b"\x00", "tags": [None, "a"]} for row in batch.to_pylist()
        ]
        columns = {
            "id": pa.int64(),
            "at": pa.timestamp("us", "UTC"),
            "content": pa.binary(),
            "tags": pa.list_(pa.string()),
        }
        yield pa.RecordBatch.from_pylist(rows, pa.schema(columns))


def counted(key: tuple[Any, ...], frames: Iterable[Any], state: Any) -> Iterator[Any]:
    """Yield how many rows of a key have come in all batches, which the state keeps as bytes."""
    import pandas as pd

    rows = sum(len(frame) for frame in frames) + (int(state.get[0]) if state.exists else 0)
    state.update((str(rows).encode(),))
    yield pd.DataFrame({"key": [key[0]], "rows": [rows]})


def main() -> None:
    """Run both, the second over two batches, and compare what came out."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master("local[1]").appName("plain PySpark")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
    spark = builder.config(map=settings).getOrCreate()
    ids = spark.range(6, numPartitions=1).selectExpr("id", "timestamp_micros(id) at")
    mapped = ids.mapInArrow(doubled, "id long, at timestamp, content binary, tags array<string>")
    rows = [(row.id, bytes(row.content), row.tags) for row in mapped.collect()]
    assert rows == [(2 * number, b"\x00", [None, "a"]) for number in range(6)], rows
    with tempfile.TemporaryDirectory() as folder:
        ids.repartition(2).selectExpr("id % 2 key").write.parquet(f"{folder}/rows")
        stream = spark.readStream.schema("key long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/rows")
        counts = stream.groupBy("key").applyInPandasWithState(
            counted, "key long, rows long", "state binary", "update", "NoTimeout"
        )
        emitted: list[tuple[int, int, int]] = []
        writer = counts.writeStream.outputMode("update").foreachBatch(
            lambda frame, number: emitted.extend((number, row.key, row["rows"]) for row in frame.collect())
        )
        writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(
            availableNow=True
        ).start().awaitTermination()
    newest = {key: rows for _, key, rows in sorted(emitted)}
    assert newest == {0: 3, 1: 3}, emitted
    assert {number for number, *_ in emitted} == {0, 1}, emitted
    spark.stop()


if __name__ == "__main__":
    main()
