"""Spark's micro-batches on a simulated disk: they are planned, executed by ``foreachBatch`` and committed in its logs.

The rules are those of ``MicroBatchExecution`` and ``FileStreamSource``: a batch is planned in ``spark/offsets`` before
it runs and committed in ``spark/commits`` afterwards; one that is planned and not committed runs again as it was
planned; and a query ends where another one has written an entry first. Which rows are new when a batch is planned is
random, so a batch that is planned anew differs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.errors import CheckpointError
from tests.simulation.simulated_clock import SimulatedThreads, scheduler
from tests.simulation.simulated_frames import Frame, TableFrame, delete_rows, read_rows
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.checkpoints.snapshot_row import SnapshotCadence
    from tests.simulation.simulated_disk import Disk

__all__ = [
    "CONTROL",
    "NOTHING",
    "Emitted",
    "Lake",
    "Session",
    "Stream",
    "failed",
    "files_read",
    "log_offset",
    "read_text",
]

NOTHING = "-"
"""The offset of a source of which nothing was read."""

CONTROL = 2
"""The number of the control input among the sources."""


@dataclass
class Lake:
    """What the inputs hold so far: the number of left rows, and of the right input's files."""

    left: int = 0
    right: int = 0


class _Settings:
    def __init__(self) -> None:
        self._values: dict[str, Any] = {"spark.master": "local[2]"}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, "true" if name.endswith("noDataMicroBatches.enabled") else default)

    def set(self, name: str, value: Any) -> None:
        self._values[name] = value

    def unset(self, name: str) -> None:
        self._values.pop(name, None)


class Session:
    """A Spark session of one process."""

    def __init__(self, disk: Disk, lake: Lake) -> None:
        self.disk, self.lake = disk, lake
        self.conf = _Settings()
        self.streams = None

    @property
    def read(self) -> Session:
        return self

    def schema(self, _: Any) -> Session:
        return self

    def format(self, _: str) -> Session:
        return self

    def parquet(self, *paths: str) -> Frame:
        """Return the rows of files, which are looked for now and read at each action."""
        gone = self.disk.operate(
            "exists", paths[0], lambda: [each for each in paths if each not in self.disk.files], error=failed
        )
        if gone:
            msg = f"[PATH_NOT_FOUND] Path does not exist: {gone[0]}"
            raise PySparkException(msg)
        return Frame(self.disk, lambda: [row for path in paths for row in read_rows(self.disk, path)])

    def load(self, path: str) -> TableFrame:
        """Return the rows of a Delta table."""
        return TableFrame(self.disk, path)

    def range(self, _: int) -> Frame:
        """Return a frame without rows, of which ``empty_frame`` makes columns."""
        return Frame(self.disk, list)

    def createDataFrame(self, rows: list[dict[str, Any]], _: Any = None) -> Frame:  # noqa: N802
        return Frame(self.disk, lambda: rows)

    def sql(self, statement: str) -> None:
        """Delete rows of the state table, the one statement that a history has."""
        delete_rows(self.disk, statement)

    def store(self, root: str, what: str = "checkpoint") -> SimulatedStore:
        return SimulatedStore(self.disk, root, what)


class ConcurrentLogError(PySparkException):
    """Another query has written an entry of Spark's log."""


def failed(message: str) -> Exception:
    return PySparkException(message)


@dataclass
class Stream:
    """What ``DataFrame.writeStream`` returns.

    Attributes:
        session: The session.
        root: The query's checkpoint.
        run_batch: ``foreachBatch``.
        key_groups: The number of key groups.
        cadence: When a snapshot is due.
    """

    session: Session
    root: str
    key_groups: int
    cadence: SnapshotCadence
    run_batch: Callable[[Emitted, int], None] = lambda *_: None
    once: bool = False
    bounded: bool = False

    @property
    def writeStream(self) -> Stream:  # noqa: N802
        return self

    def foreachBatch(self, run: Callable[[Emitted, int], None]) -> Stream:  # noqa: N802
        self.run_batch = run
        return self

    def option(self, *_: Any) -> Stream:
        return self

    def queryName(self, _: str) -> Stream:  # noqa: N802
        return self

    def trigger(self, *, once: bool = False, availableNow: bool = False, processingTime: str = "") -> Stream:  # noqa: N803
        del processingTime
        self.once, self.bounded = once, availableNow
        return self

    def start(self) -> Execution:
        return Execution(self, once=self.once, bounded=self.bounded)


class Execution:
    """A running query of Spark's."""

    def __init__(self, stream: Stream, *, once: bool, bounded: bool) -> None:
        self._stream, self._once, self._bounded = stream, once, bounded
        self._session, self._disk, self._spark = stream.session, stream.session.disk, f"{stream.root}/spark"
        self._is_stopped = False
        self._error: BaseException | None = None
        self._is_done = SimulatedThreads.Event()
        SimulatedThreads.Thread(self._run, name="stream").start()

    def awaitTermination(self) -> None:  # noqa: N802
        self._is_done.wait()
        if self._error is not None:
            msg = f"[STREAM_FAILED] Query x terminated with exception: {self._error}"
            raise PySparkException(msg) from self._error

    def stop(self) -> None:
        self._is_stopped = True
        self._is_done.wait()

    def _run(self) -> None:
        try:
            self._batches()
        except Exception as error:  # noqa: BLE001 - ``awaitTermination`` raises it
            self._error = error
            if not isinstance(error, (PySparkException, CheckpointError)):
                text = f"{type(error).__module__}.{type(error).__name__}: {error}"
                self._error = PySparkException(text)
        self._is_done.set()

    def _batches(self) -> None:
        lake = self._session.lake
        available = (lake.left, lake.right) if self._bounded else None
        self._write_first("metadata", '{"id": "x"}')
        for source in (1, CONTROL):
            self._write_first(f"sources/{source}/.directory", "")
        planned, committed = self._newest("offsets"), self._newest("commits")
        lines = [NOTHING, NOTHING, NOTHING] if planned is None else self._entry(planned)
        before = [NOTHING, NOTHING, NOTHING]
        if planned is not None and planned != committed:
            before = self._entry(planned - 1) if planned else before
        elif planned is not None:
            before = lines
        batch_id = -1 if planned is None else planned
        must_run = planned is not None and planned != committed
        while not self._is_stopped:
            if not must_run:
                found = self._plan(batch_id + 1, before, available)
                if found is None:
                    if self._bounded or self._once:
                        return
                    scheduler().sleep(5.0)
                    continue
                batch_id, lines = batch_id + 1, found
            self._stream.run_batch(Emitted(self._stream, batch_id, before, lines), batch_id)
            self._add("commit batch", f"commits/{batch_id}", "v1\n{}")
            before, must_run = lines, False
            if self._once:
                return

    def _newest(self, folder: str) -> int | None:
        names = self._disk.operate(
            "list", f"{self._spark}/{folder}", lambda: self._disk.below(f"{self._spark}/{folder}")
        )
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _entry(self, batch_id: int) -> list[str]:
        content = read_text(self._disk, "read", f"{self._spark}/offsets/{batch_id}")
        return content.decode().splitlines()[2:]

    def _write_first(self, name: str, text: str) -> None:
        path = f"{self._spark}/{name}"

        def effect() -> None:
            if path not in self._disk.files:
                self._disk.put(path, text.encode())

        self._disk.operate("write", path, effect, error=failed, torn=lambda: self._disk.torn_at(path))

    def _add(self, operation: str, name: str, text: str) -> None:
        """Write an entry of Spark's log, where there is none."""
        path = f"{self._spark}/{name}"

        def effect() -> bool:
            if path in self._disk.files:
                return False
            self._disk.put(path, text.encode())
            return True

        if not self._disk.operate(operation, path, effect, error=failed, torn=lambda: self._disk.torn_at(path)):
            msg = f"[CONCURRENT_STREAM_LOG_UPDATE] another query has written {name}"
            raise ConcurrentLogError(msg)

    def _plan(self, batch_id: int, before: Sequence[str], available: tuple[int, int] | None) -> list[str] | None:
        """Plan a batch of what is new; return its offsets, or None where nothing is new."""
        random, lake = scheduler().random, self._session.lake
        limit = (lake.left, lake.right) if available is None else available
        read = 0 if before[0] == NOTHING else int(json.loads(before[0])["rows"])
        left = min(limit[0], read + random.randint(1, 9))
        lines = [before[0] if left <= read else json.dumps({"rows": left})]
        files = [f"/lake/right/{number}" for number in range(limit[1])]
        lines.append(self._find_files(1, files, random.randint(1, 3)))
        root = self._stream.root
        names = self._disk.operate("list", f"{root}/control", lambda: sorted(self._disk.all_below(f"{root}/control")))
        messages = [each for each in names if not _is_hidden(each)]
        lines.append(self._find_files(CONTROL, messages, len(messages)))
        if lines == list(before):
            return None
        moment = json.dumps({"batchTimestampMs": int(1000 * scheduler().now)})
        self._add("plan batch", f"offsets/{batch_id}", "\n".join(["v1", moment, *lines]))
        return lines

    def _find_files(self, source: int, there: Sequence[str], most: int) -> str:
        """Write new files into the log of a file source, and return its offset."""
        log = f"{self._spark}/sources/{source}"
        known, newest = files_read(self._disk, log, None)
        new = [each for each in there if each not in known][:most]
        if new:
            newest += 1
            entries = [json.dumps({"path": each, "timestamp": 0, "batchId": newest}) for each in new]
            self._add("write state", f"sources/{source}/{newest}", "\n".join(["v1", *entries]))
        return NOTHING if newest < 0 else json.dumps({"logOffset": newest})


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def read_text(disk: Disk, operation: str, path: str) -> bytes:
    def effect() -> bytes | None:
        file = disk.files.get(path)
        return None if file is None else file.content

    content = disk.operate(operation, path, effect, error=failed)
    if content is None:
        msg = f"FileNotFoundException: {path} is not there"
        raise PySparkException(msg)
    return content


def files_read(disk: Disk, log: str, until: int | None) -> tuple[list[str], int]:
    """Return the files in the log of a file source up to an entry, and the number of the last entry."""
    found: list[str] = []
    numbers = {int(name.partition(".")[0]) for name in disk.below(log) if name[0].isdigit()}
    for number in sorted(each for each in numbers if until is None or each <= until):
        compact, file = disk.files.get(f"{log}/{number}.compact"), disk.files.get(f"{log}/{number}")
        if compact is not None:
            found = []
        entry = compact or file
        assert entry is not None
        found += [json.loads(line)["path"] for line in entry.content.decode().splitlines()[1:]]
    return found, max(numbers, default=-1) if until is None else until


def log_offset(line: str) -> int:
    return -1 if line == NOTHING else int(json.loads(line)["logOffset"])


class Emitted:
    """The rows that a batch's calls emit: what ``foreachBatch`` passes."""

    def __init__(self, stream: Stream, batch_id: int, before: Sequence[str], lines: Sequence[str]) -> None:
        self.stream, self.batch_id, self.before, self.lines = stream, batch_id, before, lines

    @property
    def sparkSession(self) -> Session:  # noqa: N802
        return self.stream.session
