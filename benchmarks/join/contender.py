"""What a contender is, and what its process and the runner tell each other; nothing here needs more than Python.

A contender's process gets its job as arguments, prints a line of JSON when the timed part starts and one when it is
done, and leaves its result below ``work/out``. What takes time once for every program, such as imports and the start of
a JVM, comes before the first line. Whoever knows how long each batch took tells that in a third line.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.join.environments import Environment
    from benchmarks.join.oracle import Answer

__all__ = ["FILES_PER_BATCH", "OUTPUT_COLUMNS", "OUTPUT_DDL", "Contender", "Job", "tell", "timed"]

FILES_PER_BATCH = 2
OUTPUT_DDL = """trade_id bigint, customer_id bigint, event_time timestamp, amount double, symbol string,
    customers_event_time timestamp, tier string, credit double"""
OUTPUT_COLUMNS = ("trade_id", "customer_id", "event_time", "amount", "symbol", "customers_event_time", "tier", "credit")


@dataclass(frozen=True)
class Contender:
    """One way to do the join.

    Attributes:
        name: What it is called on the command line.
        about: What it is, in a line.
        module: Its program.
        sink: ``"delta"`` or ``"parquet"``.
        source: ``"files"``, or ``"delta"`` where the same files are Delta tables.
        environment: Where it runs; None is the Python that runs the benchmark.
        command: Gives the words of its command line for its environment and job, where that is no Python module.
        answer: Which join the result is; None for a floor, whose result is all rows of both inputs.
        static: Whether it reads all rows at once, and not as a stream.
        trades_at_most: More than this would take it longer than three minutes.
        timeout_seconds: When it is given up.
    """

    name: str
    about: str
    module: str
    sink: str = "parquet"
    source: str = "files"
    environment: Environment | None = None
    command: Callable[[Contender, Path, Path], list[str]] | None = None
    answer: Answer | None = "backward"
    static: bool = False
    trades_at_most: int | None = None
    timeout_seconds: float = 900

    @property
    def floor(self) -> str:
        """The floor with the same sink."""
        if self.static:
            return "plain-static"
        if self.source == "delta":
            return "plain-from-delta"
        return "plain" if self.sink == "delta" else "plain-parquet"

    def words(self, data: Path, work: Path) -> list[str]:
        """Return the words of its command line."""
        if self.command is not None:
            return self.command(self, data, work)
        python = sys.executable if self.environment is None else str(self.environment.python)
        return [python, "-m", self.module, self.name, self.sink, str(data), str(work)]


@dataclass(frozen=True)
class Job:
    """What a contender's process is to do.

    Attributes:
        name: Which contender.
        sink: ``"delta"`` or ``"parquet"``.
        data: The folder of ``trades`` and ``customers``.
        work: A folder of its own.
    """

    name: str
    sink: str
    data: Path
    work: Path

    @classmethod
    def of_arguments(cls) -> Job:
        """Read what ``Contender.words`` wrote."""
        name, sink, data, work = sys.argv[1:5]
        return cls(name, sink, Path(data), Path(work))

    @property
    def out(self) -> Path:
        """Where the result goes."""
        return self.work / "out"

    def files(self, side: str) -> list[Path]:
        """List the files of an input in their order."""
        return sorted((self.data / side).glob("*.parquet"))


@contextmanager
def timed() -> Iterator[None]:
    """Time a block and tell its start and its end."""
    tell("started")
    started = time.perf_counter()
    yield
    tell("finished", seconds=time.perf_counter() - started)


def tell(event: str, **values: Any) -> None:
    """Tell the runner something."""
    print(json.dumps({"event": event, **values}), flush=True)
