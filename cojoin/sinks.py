"""The sinks of a query: ``delta``, ``kafka``, ``parquet``, ``sql``, or a callable.

- ``delta`` is exactly once: each batch is one transaction with the query's and the batch's ids, so a batch that is run
  again is skipped (``delta_sink``). It appends, or keeps one row for each key (``upsert=``).
- ``kafka`` is exactly once for consumers that read committed records: each batch is one transaction with the batch's
  marker (``cojoin.kafka.sink``).
- ``parquet`` is exactly once for readers that read the whole folder between two batches: each batch has its own folder,
  which is replaced if the batch is run again (``parquet_sink``).
- ``sql`` is exactly once: each batch is one transaction with the query's row in another table (``cojoin.sql``).
- A callable receives ``(DataFrame, batch_id)`` and may receive a batch twice, with the same id.

A Delta table *fences off* a suspended driver whose checkpoint another driver has taken over meanwhile: each commit
compares the epoch of the driver's lease within Delta's own transaction. That holds where the workers write the files.
Where Spark writes them (partitions, writer options), the epoch is compared right before the commit. A commit of the
suspended driver after that comparison can only add a batch that the table does not have yet. A Kafka topic fences off
the driver as well: Kafka refuses its producer, and the topic's marker has the later epoch. So does a database: its row
of the query has the later epoch. The other sinks do not: the lease is read right before each call, and a write that has
begun by then may still finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.installed_packages import imported

if TYPE_CHECKING:
    from cojoin.kafka.sink.kafka_sink import KafkaSink, kafka
    from cojoin.spark.sinks.delta_sink import DeltaSink
    from cojoin.spark.sinks.parquet_sink import ParquetSink
    from cojoin.spark.sinks.sink import Sink
    from cojoin.spark.sinks.sinks import SinkLike, as_sink, delta, parquet
    from cojoin.sql.sql_sink import SqlSink, sql

__all__ = [
    "DeltaSink",
    "KafkaSink",
    "ParquetSink",
    "Sink",
    "SinkLike",
    "SqlSink",
    "as_sink",
    "delta",
    "kafka",
    "parquet",
    "sql",
]

_MODULES = {
    "DeltaSink": "cojoin.spark.sinks.delta_sink",
    "ParquetSink": "cojoin.spark.sinks.parquet_sink",
    "Sink": "cojoin.spark.sinks.sink",
    **dict.fromkeys(("SinkLike", "as_sink", "delta", "parquet"), "cojoin.spark.sinks.sinks"),
    **dict.fromkeys(("KafkaSink", "kafka"), "cojoin.kafka.sink.kafka_sink"),
    **dict.fromkeys(("SqlSink", "sql"), "cojoin.sql.sql_sink"),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return imported("cojoin.sinks", _MODULES, name)
    # Spark's writers have one method per format; for the name of such a format, the error shows a callable instead.
    msg = (
        f"module 'cojoin.sinks' has no attribute {name!r}; it has delta, kafka, parquet and sql, and for any other "
        f"format a query takes a callable: output=lambda frame, batch_id: frame.write..."
    )
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
