"""The ways through files: which sink, which kind of function, who reads; each beside its floor in `benchmarks.join`."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.join.contender import Job
from benchmarks.join.contenders import cojoin_joins, plain
from benchmarks.join.generate import Size, generate
from benchmarks.join.oracle import find_faults
from benchmarks.join.registry import BY_NAME
from benchmarks.join.result import count_rows, result_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["WAYS", "JoinGuard"]

WAYS = ("asof", "asof-known", "asof-by-spark", "asof-from-delta", "rows", "asof-parquet", "rows-parquet", "static")
_SIZE = Size(200_000, 40_000, 2_000, 4)


class JoinGuard:
    """Runs the ways in a session, each before its floor, so that a cold session never makes a way look fast."""

    def __init__(self, spark: SparkSession, folder: Path, size: Size = _SIZE) -> None:
        """Make the data.

        Args:
            spark: The session.
            folder: An empty folder for data and results.
            size: How much there is to join.
        """
        self._spark, self._folder, self._size = spark, folder, size
        self._data, self._numbers = folder / "data", count()
        self._floors: dict[str, float] = {}
        generate(size, self._data)

    def ratios(self, way: str) -> Iterator[float]:
        """Yield the way's time over its floor's.

        The first goes by the floor as the way before was measured by, if it is the same; each other one measures anew.

        Raises:
            AssertionError: A result is wrong.
        """
        name = BY_NAME[way].floor
        floor = self._floors.get(name)
        while True:
            own = self.seconds(way)
            if floor is None:
                floor = self._floors[name] = self.seconds(name)
            print(f"{way}: {own:.2f} s, {name}: {floor:.2f} s", flush=True)
            yield own / floor
            floor = None

    def seconds(self, name: str) -> float:
        """Run a way or a floor once and return its seconds.

        Raises:
            AssertionError: Its result is wrong.
        """
        contender = BY_NAME[name]
        job = Job(name, contender.sink, self._data, self._folder / f"{next(self._numbers)}")
        job.work.mkdir()
        run = plain.run if contender.answer is None else cojoin_joins.run
        started = time.perf_counter()
        try:
            run(self._spark, job)
        finally:
            self._spark.conf.unset("spark.cojoin.parquet")
            self._spark.conf.unset("spark.cojoin.delta")
        seconds = time.perf_counter() - started
        files = result_files(job.out, job.sink)
        if contender.answer is None:
            assert count_rows(files) == self._size.trades + self._size.versions
        else:
            assert not (faults := find_faults(self._data, files)), faults
        return seconds
