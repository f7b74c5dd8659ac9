"""What the processes of ``replay.py`` tell each other: which topics, how much a batch, and what each measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tests.kafka.history import fill, largest_in_a_window
from tests.kafka.records import OUT_OF_ORDERNESS_SECONDS, PARTITIONS, expected_join, values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    import pyarrow as pa

    from tests.kafka.history import History
    from tests.servers.broker import Broker

__all__ = ["Measured", "Replay", "prepare"]

DRIFT_MINUTES = 10
_JOB, _EXPECTED = "job.json", "expected.parquet"


@dataclass(frozen=True)
class Replay:
    """Two filled topics, and how they are read.

    Attributes:
        folder: Where the oracle's rows are.
        servers: The broker's address.
        topics: The trades' topic and the versions'.
        sizes: How many records each holds.
        held_by_the_bound: How many trades, and how many versions, come at most within the drift bound and the bound of
            their disorder.
        max_records: How many records of each input a batch has at most.
        heap: The heap of each contender's JVM, as Spark says it.
        drift_minutes: How far one partition may be ahead of another.
        format: The format of the values.
        registry: The address of the registry with their schemas; empty for JSON.
    """

    folder: str
    servers: str
    topics: tuple[str, str]
    sizes: tuple[int, int]
    held_by_the_bound: tuple[int, int]
    max_records: int
    heap: str = "1g"
    drift_minutes: int = DRIFT_MINUTES
    format: str = "json"
    registry: str = ""

    @property
    def batches(self) -> int:
        """In how many batches all is read, if each is full."""
        return -(-max(self.sizes) // self.max_records)

    def expected(self) -> pa.Table:
        """Return the rows that the join must give."""
        return pq.read_table(Path(self.folder) / _EXPECTED)

    def in_batches_of(self, max_records: int) -> Replay:
        """Return the same, in smaller or larger batches."""
        return replace(self, max_records=max_records)

    def write(self, folder: Path) -> Path:
        """Write it where another process finds it."""
        path = folder / _JOB
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Replay:
        """Read what ``write`` wrote."""
        stored = json.loads(path.read_text())
        pairs = {name: tuple(stored[name]) for name in ("topics", "sizes", "held_by_the_bound")}
        return cls(**{**stored, **pairs})


@dataclass(frozen=True)
class Measured:
    """What one contender did.

    Attributes:
        name: Which.
        seconds: From the query's start to its end.
        batches: Each batch's seconds.
        late: Late trades and versions, rejected or applied.
        buffered: The most trades, and the most versions, that waited at the end of a batch.
        faults: What is wrong with the result, and how many rows; empty if nothing is.
        peak_bytes: The most memory of the process and all its children.
        cpu_seconds: What they used of the processors from the query's start to its end.
    """

    name: str
    seconds: float
    batches: list[float]
    peak_bytes: int
    late: tuple[int, int] = (0, 0)
    buffered: tuple[int, int] = (0, 0)
    faults: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    def to_json(self) -> str:
        """Spell it in a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Measured:
        """Read what ``to_json`` spelled."""
        stored: dict[str, Any] = json.loads(text)
        pairs = {name: tuple(stored[name]) for name in ("late", "buffered")}
        return cls(**{**stored, **pairs})


def prepare(
    broker: Broker,
    history: History,
    folder: Path,
    max_records: int,
    topics: tuple[str, str] = ("trades", "customers"),
    encoders: Sequence[Callable[[pd.DataFrame], Sequence[str | bytes]]] = (values, values),
) -> Replay:
    """Fill two new topics with a history, and keep what the join must give.

    Args:
        broker: Where the topics go.
        history: What they hold.
        folder: Where the oracle's rows go.
        max_records: How many records of each input a batch has at most.
        topics: The names of the topics.
        encoders: What makes each topic's values.
    """
    window = DRIFT_MINUTES * 60_000 + OUT_OF_ORDERNESS_SECONDS * 1_000
    sides = history.trades, history.customers
    for topic, records, encode in zip(topics, sides, encoders, strict=True):
        broker.create_topic(topic, PARTITIONS)
        fill(broker.bootstrap_servers, topic, records, encode=encode)
    pq.write_table(expected_join(history), folder / _EXPECTED)
    sizes, held = (
        (measure(history.trades), measure(history.customers))
        for measure in (len, lambda records: largest_in_a_window(records["micros"], window))
    )
    return Replay(str(folder), broker.bootstrap_servers, topics, sizes, held, max_records)
