"""Two topics that get rows at a steady rate, and what is known of each row: when it was sent and when it became due.

Event times pass as fast as the clock; a record comes up to the bound after its event time. Each row of the oracle, and
the instant from which on nothing but speed kept a trade from the table, follow from what was sent.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tests.kafka.history import make_producer, record_keys
from tests.kafka.records import PARTITIONS, Records, values

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Pace", "SteadyWriter"]

_TICK_SECONDS = 0.02
_PATIENCE_SECONDS = 60
_TIERS = np.array(["basic", "silver", "gold", "platin"])


@dataclass(frozen=True)
class Pace:
    """What is sent.

    Attributes:
        seconds: For how long.
        rate: Rows a second to each of the topics.
        keys: Distinct customers.
        disorder_ms: How much later than its event time a record comes at most.
        seed: Of the random numbers.
    """

    seconds: float
    rate: int = 2_000
    keys: int = 10_000
    disorder_ms: int = 1_000
    seed: int = 7


@dataclass
class SteadyWriter:
    """Writes inside its ``with`` block until its seconds are over.

    Attributes:
        servers: The broker's address.
        topics: The trades' topic and the versions'.
        pace: What is sent.
    """

    servers: str
    topics: tuple[str, str]
    pace: Pace
    _frames: tuple[list[pd.DataFrame], list[pd.DataFrame]] = field(default_factory=lambda: ([], []))
    _failed: list[object] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._rng = np.random.default_rng(self.pace.seed)
        self._ends = np.zeros((2, PARTITIONS), np.int64)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def is_writing(self) -> bool:
        """Whether more is to come."""
        return self._thread.is_alive()

    def sides(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return what was sent, after the end; ``sent`` is in epoch seconds."""
        assert not self.is_writing
        assert not self._failed, self._failed[:3]
        trades, customers = (pd.concat(frames, ignore_index=True) for frames in self._frames)
        return trades, customers

    def records(self) -> Records:
        """Return it as the oracle takes it."""
        trades, customers = (side.drop(columns="sent") for side in self.sides())
        return Records(trades, customers)

    def due(self) -> pd.Series:
        """Return, by trade, the instant from which on the watermarks of all partitions let it out, in epoch seconds."""
        trades, customers = self.sides()
        times = trades["micros"].to_numpy() // 1_000
        due = trades["sent"].to_numpy().copy()
        for side in (trades, customers):
            for _, part in side.groupby("partition"):
                passed = np.maximum.accumulate(part["micros"].to_numpy() // 1_000) - self.pace.disorder_ms - 1
                place = np.searchsorted(passed, times, side="left")
                sent = np.append(part["sent"].to_numpy(), np.inf)
                due = np.maximum(due, sent[place])
        return pd.Series(due, index=trades["trade_id"].to_numpy())

    def _run(self) -> None:
        producer = make_producer(self.servers, self._failed)
        try:
            started, owed = time.monotonic(), 0.0
            before = started
            while (now := time.monotonic()) - started < self.pace.seconds and not self._stopping.is_set():
                owed += (now - before) * self.pace.rate
                before = now
                if count := int(owed):
                    owed -= count
                    for side, frame in enumerate(self._make(count)):
                        self._frames[side].append(frame)
                        self._send(producer, side, frame)
                producer.poll(0)
                self._stopping.wait(_TICK_SECONDS)
            if producer.flush(_PATIENCE_SECONDS):
                self._failed.append("the broker did not take everything in time")
        except BaseException as error:  # it must not vanish with the thread
            self._failed.append(error)
            raise

    def _make(self, count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        rng = self._rng
        frames = []
        for side, (number, what) in enumerate((("trade_id", "amount"), ("version_id", "tier"))):
            first, now = sum(map(len, self._frames[side])), time.time_ns() // 1_000
            partition = rng.integers(0, PARTITIONS, count)
            frame = pd.DataFrame(
                {
                    number: np.arange(first, first + count),
                    "customer_id": rng.integers(0, self.pace.keys, count),
                    "micros": now - (rng.random(count) * self.pace.disorder_ms * 1_000).astype(np.int64),
                    what: rng.integers(1, 1 << 20, count) / 8 if side == 0 else rng.choice(_TIERS, count),
                    "partition": partition,
                    "sent": now / 1e6,
                }
            )
            # One producer that keeps the order writes into an empty topic: a record's place is a count.
            frame["offset"] = self._ends[side][partition] + frame.groupby("partition").cumcount().to_numpy()
            self._ends[side] += np.bincount(partition, minlength=PARTITIONS)
            frames.append(frame)
        return frames[0], frames[1]

    def _send(self, producer: object, side: int, frame: pd.DataFrame) -> None:
        at = int(frame["sent"].iloc[0] * 1_000)
        bodies, keys = values(frame.drop(columns="sent")), record_keys(frame)
        for value, key, partition in zip(bodies, keys, frame["partition"].tolist(), strict=True):
            producer.produce(self.topics[side], value, key, partition, timestamp=at)  # type: ignore[attr-defined]
