"""Kafka topics, read by ranges of offsets that advance through event time together: history, then live.

    import cojoin as cj

    trades = cj.kafka.source(
        "localhost:9092", "trades", schema="trade_id long, customer_id long, event_time timestamp", from_="2026-01-05"
    )

Needs confluent-kafka: ``pip install "cojoin[kafka]"``.
"""

from __future__ import annotations

from cojoin.kafka.columns import RecordColumn, header, key, timestamp
from cojoin.kafka.records import Record
from cojoin.kafka.source import KafkaSource, source

__all__ = ["KafkaSource", "Record", "RecordColumn", "header", "key", "source", "timestamp"]
