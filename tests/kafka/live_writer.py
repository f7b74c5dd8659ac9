"""A producer that goes on writing to two topics while a query reads them, and knows what it wrote.

Records go on at a steady rate, with event times from a chosen instant on that pass as fast as the clock. Within each
partition they come up to five seconds after later ones, and none is before the first instant. Where each record came to
stand is what the broker acknowledged, so the oracle covers these records as it does those that were there before.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tests.kafka.history import make_producer, record_keys, record_times
from tests.kafka.records import OUT_OF_ORDERNESS_SECONDS, PARTITIONS, Records, values

if TYPE_CHECKING:
    from confluent_kafka import Message
    from typing_extensions import Self

_TICK_SECONDS = 0.05
_PATIENCE_SECONDS = 60
_BOUND = OUT_OF_ORDERNESS_SECONDS * 1_000_000  # microseconds
_TIERS = np.array(["basic", "silver", "gold", "platin"])


class LiveWriter:
    """Writes inside its `with` block, until its seconds are over or the block ends; reads as a thread does.

    Args:
        servers: The broker's address.
        topics: The names of the trades' and of the versions' topic.
        before: What the topics hold already; customers and numbers go on from it.
        seconds: How long it writes.
        begin: The first event time in epoch milliseconds; None is now.
        trades_a_second: How many trades it writes in a second; versions are a tenth of them.
        seed: Of the random numbers.

    Example:
        >>> with LiveWriter(servers, ("trades", "customers"), history, begin=history.end) as writer:  # doctest: +SKIP
        ...     query = start()
        ...     writer.join()
        >>> expected = expected_join(writer.records())  # doctest: +SKIP
    """

    def __init__(
        self,
        servers: str,
        topics: tuple[str, str],
        before: Records,
        *,
        seconds: float = 120,
        begin: int | None = None,
        trades_a_second: int = 500,
        seed: int = 7,
    ) -> None:
        self._topics, self._before, self._seconds = topics, before, seconds
        self._begin = 1000 * (time.time_ns() // 1_000_000 if begin is None else begin)
        self._trades_a_second = trades_a_second
        self._rng = np.random.default_rng(seed)
        self._failed: list[object] = []
        self._producer = make_producer(servers, self._failed, reports=True)
        self._written: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
        self._stood: tuple[dict[int, int], dict[int, int]] = ({}, {})  # the offset of each record that was taken
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def is_writing(self) -> bool:
        """Whether more is to come."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until its seconds are over and the broker has taken everything."""
        self._thread.join()

    def written(self) -> int:
        """Return how many records the broker has taken by now."""
        return sum(map(len, self._stood))

    def records(self) -> Records:
        """Return what was there before and what it wrote, after the end."""
        assert not self.is_writing
        assert not self._failed, self._failed[:3]
        sides = []
        before = self._before.trades, self._before.customers
        for frame, frames, stood in zip(before, self._written, self._stood, strict=True):
            written = pd.concat(frames, ignore_index=True)
            assert len(stood) == len(written), "records that the broker never acknowledged"
            written["offset"] = written.iloc[:, 0].map(stood)
            sides.append(pd.concat([frame, written], ignore_index=True))
        return Records(*sides)

    def _run(self) -> None:
        try:
            self._write()
            if self._producer.flush(_PATIENCE_SECONDS):
                self._failed.append("the broker did not take everything in time")
        except BaseException as error:  # it must not vanish with the thread
            self._failed.append(error)
            raise

    def _write(self) -> None:
        started, passed, owed = time.monotonic(), 0.0, 0.0
        while passed < self._seconds and not self._stopping.is_set():
            now = time.monotonic() - started
            owed += (now - passed) * self._trades_a_second
            passed = now
            count = int(owed)
            if count:
                owed -= count
                self._write_some(count, self._begin + int(passed * 1_000_000))
            self._producer.poll(0)
            self._stopping.wait(_TICK_SECONDS)

    def _write_some(self, count: int, now: int) -> None:
        """Write trades, and versions of the same customers, a part of them at the very instant of a trade."""
        rng, before = self._rng, self._before
        keys = before.trades["customer_id"].to_numpy()
        trades = self._frame(0, rng.choice(keys, count), self._moments(count, now))
        trades.insert(3, "amount", rng.integers(1, 1 << 20, count) / 8)
        of = rng.integers(0, count, max(1, count // 10))
        same = rng.random(len(of)) < 0.3
        micros = np.where(same, trades["micros"].to_numpy()[of], self._moments(len(of), now))
        versions = self._frame(1, trades["customer_id"].to_numpy()[of], micros)
        versions.insert(3, "tier", rng.choice(_TIERS, len(of)))
        for side, frame in enumerate((trades, versions)):
            self._written[side].append(frame)
            self._produce(side, frame)

    def _moments(self, count: int, now: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        delays = (self._rng.beta(0.2, 0.2, count) * _BOUND).astype(np.int64)
        return np.maximum(now - delays, self._begin)

    def _frame(self, side: int, customers: np.ndarray, micros: np.ndarray) -> pd.DataFrame:
        first = len((self._before.trades, self._before.customers)[side]) + sum(map(len, self._written[side]))
        return pd.DataFrame(
            {
                ("trade_id", "version_id")[side]: np.arange(first, first + len(customers)),
                "customer_id": customers,
                "micros": micros,
                "partition": self._rng.integers(0, PARTITIONS, len(customers)),
                "offset": -1,
            }
        )

    def _produce(self, side: int, frame: pd.DataFrame) -> None:
        ids, partitions, times = frame.iloc[:, 0].tolist(), frame["partition"].tolist(), record_times(frame)
        stood = self._stood[side]

        def report(number: int) -> object:
            def take(error: object, message: Message) -> None:
                if error is not None:
                    self._failed.append(error)
                else:
                    stood[number] = message.offset()

            return take

        for number, value, key, partition, at in zip(
            ids, values(frame), record_keys(frame), partitions, times, strict=True
        ):
            self._producer.produce(self._topics[side], value, key, partition, timestamp=at, on_delivery=report(number))
