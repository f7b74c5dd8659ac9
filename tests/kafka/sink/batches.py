"""A batch of one record, written by a transaction without a query."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.kafka.sink.topic_transactions import TopicMarker, TopicTransactions
from cojoin.spark.sinks.batch_marker import BatchMarker

if TYPE_CHECKING:
    from cojoin.kafka.sink.topic_producer import TopicTarget

__all__ = ["write_batch"]

RECORDS = pa.RecordBatch.from_pydict({"key": [b"1"], "value": [b'{"id":1}']})


def write_batch(to: TopicTarget, wait: float = 0.0) -> None:
    """Write the batch in a transaction, which stays open for some seconds."""
    with closing(TopicTransactions(to, at_start=True)) as transactions:
        transactions.take_over()
        transactions.begin()
        transactions.send(RECORDS)
        time.sleep(wait)
        transactions.mark(TopicMarker(0, 1, 1, BatchMarker(0, 1, 1, "offsets")))
        transactions.commit()
