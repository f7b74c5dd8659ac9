"""The points at which a driver is killed, suspended, or fails: which method is entered or left, and in which batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kills.points import Point

if TYPE_CHECKING:
    from benchmarks.kills.points import Condition

__all__ = ["FAILURES", "FILES", "POINTS", "RANDOM", "SQL_POINTS", "SUSPENSIONS"]

FILES = 5
"""How many files each input has, so how many batches a run has before its drain."""


def _of_batch(arguments: tuple[Any, ...], batch: int) -> bool:
    """Return whether a call is of a batch: by what bears its number, or else by the number itself."""
    numbers = [number for each in arguments[1:] if isinstance(number := getattr(each, "batch_id", None), int)]
    return batch in (numbers or [each for each in arguments[1:] if type(each) is int])


def _output(name: str, number: int | None = None) -> Condition:
    def is_meant(arguments: tuple[Any, ...], batch: int) -> bool:
        writer, marker = arguments[0], arguments[-1]
        is_output = writer._output.name == name  # noqa: SLF001 - the writer has no other name
        written = getattr(marker, "batch_id", marker)
        # The chosen batch may have no rows for it: then it is the next one that has.
        return bool(is_output and (written >= batch if number is None else written == number))

    return is_meant


def _output_of_sql(arguments: tuple[Any, ...], _: int) -> bool:
    return bool(arguments[0]._output.name == "output")  # noqa: SLF001 - the writer has no other name


def _kind(name: str) -> Condition:
    return lambda arguments, _: arguments[1].kind == name


def _stage(name: str) -> Condition:
    return lambda arguments, _: arguments[0].stage == name


def _first_batch(arguments: tuple[Any, ...], _: int) -> bool:
    return _of_batch(arguments, 0)


def _drained(arguments: tuple[Any, ...], _: int) -> bool:
    return bool(arguments[1].report.drained)


def _created(name: str) -> Condition:
    return lambda arguments, _: _new_file(arguments)[0] == name and not arguments[0].exists(name)


def _replaced(name: str, content: str = "") -> Condition:
    def is_meant(arguments: tuple[Any, ...], _: int) -> bool:
        own, new = _new_file(arguments)
        return own == name and content.encode() in new and arguments[0].exists(name)

    return is_meant


def _of_state(arguments: tuple[Any, ...], _: int) -> bool:
    return str(arguments[1]).startswith("state/")


def _promoted(arguments: tuple[Any, ...], _: int) -> bool:
    name, content = _new_file(arguments)
    return name.startswith("snapshots/") and b'"savepoint"' in content


def _new_file(arguments: tuple[Any, ...]) -> tuple[str, bytes]:
    """Return the name and content of a file that is about to get its name: a local one lies there under another."""
    if isinstance(arguments[1], Path):
        return arguments[2], arguments[1].read_bytes()
    return arguments[1], arguments[2]


_SINK_NAMES = ("delta_sink:DeltaWriter", "parquet_sink:ParquetWriter")
_BATCHES, _STATE = "cojoin.spark.query.batch_writer:BatchWriter", "cojoin.checkpoints.state_table:StateTable"
_SQL = "cojoin.sql.sql_sink:SqlWriter"
_WRITERS = (*(f"cojoin.spark.sinks.{name}" for name in _SINK_NAMES), _SQL)
_SINKS = tuple(f"{name}.{how}" for name in _WRITERS for how in ("write", "commit"))
_SNAPSHOTS = "cojoin.checkpoints.snapshots:Snapshots.write"
_MANIFESTS = "cojoin.checkpoints.manifest:Manifests"
_PROGRESS = "cojoin.checkpoints.progress_table:ProgressTable"
_LOCAL, _OBJECTS = "cojoin.storage.local_store:LocalStore", "cojoin.storage.object_store:ObjectStore"
# A file is replaced in one step: on a local disk by a rename, on an object store by the write itself.
_REPLACES = (f"{_LOCAL}._put_in_place", f"{_OBJECTS}.write_bytes", f"{_OBJECTS}.replace")
_DELETES = (f"{_LOCAL}.delete", f"{_OBJECTS}.delete")
_CONTROL, _RESTORE, _START = "cojoin.checkpoints.control", "cojoin.spark.savepoints.restore", "cojoin.spark.query.start"
_RESTORATION = "cojoin.spark.savepoints.restore:Restoration.write"


def _at(phase: str, **defaults: Any) -> Any:
    """Return what makes the points of a phase: by name, and the method or methods."""

    def point(name: str, *where: str, **options: Any) -> Point:
        return Point(phase, name, where, **(defaults | options))

    return point


RANDOM = Point("a random moment", "by the clock")

_start = _at("a start")
_batch = _at("a batch", condition=_of_batch)
_snapshot = _at("a snapshot", condition=_of_batch)
_counted = _at("a counted batch", condition=_of_batch)
_cleaning = _at("cleaning up")
_savepoint = _at("a savepoint", job="savepoint")
_restoration = _at("a restoration", job="restoration")
_same_table = _at("the same table", job="same table")
_drain = _at("a drain")

_OUTPUT = _batch("before the output's commit", *_SINKS, enters=True, condition=_output("output"))
_OUTPUT_DONE = _batch("output committed", *_SINKS, condition=_output("output"))
_REJECTED = _batch("before the rejected rows' commit", *_SINKS, enters=True, condition=_output("rejected"))
_REJECTED_DONE = _batch("rejected rows committed", *_SINKS, condition=_output("rejected"))
_ROWS = _snapshot("before its rows", f"{_STATE}.write", enters=True)
_INDEX = _snapshot("rows written, no index", _SNAPSHOTS, enters=True)
_INDEXED = _snapshot("it counts, no manifest", _SNAPSHOTS)
_MANIFEST = _batch("before the manifest", f"{_MANIFESTS}.write", enters=True)
_COUNTS = _counted("manifest written", f"{_MANIFESTS}.write")
_ALL_WRITTEN = _counted("all written, not Spark's commit", f"{_BATCHES}.__call__")

POINTS: tuple[Point, ...] = (
    _start("checkpoint claimed", f"{_START}:claim_checkpoint"),
    _start("sources noted", f"{_START}:note_sources"),
    _start("settings noted", "cojoin.spark.query.planned_batch:note_sources", job="changed"),
    _start("before Spark's query", "cojoin.spark.query.query:Query._run", enters=True),
    _start("first batch, before the manifest", f"{_MANIFESTS}.write", enters=True, condition=_first_batch),
    _batch("before its action", f"{_BATCHES}.__call__", enters=True),
    _batch("executed, nothing written", f"{_BATCHES}._report"),
    _OUTPUT,
    _OUTPUT_DONE,
    _REJECTED,
    _REJECTED_DONE,
    _MANIFEST,
    _batch("before a beat is replaced", *_REPLACES, enters=True, condition=_replaced("beats/000000000001.json")),
    _ROWS,
    _INDEX,
    _INDEXED,
    _COUNTS,
    _counted("noted for the progress table", f"{_PROGRESS}.add"),
    _ALL_WRITTEN,
    _cleaning("snapshots no longer count", "cojoin.checkpoints.state_table:StateCleaner._unneeded", enters=True),
    _cleaning("rows deleted, files there", *_DELETES, enters=True, condition=_of_state),
    _cleaning("a file of rows gone", *_DELETES, condition=_of_state),
    _savepoint("rows written, no index", _SNAPSHOTS, enters=True, condition=_kind("savepoint")),
    _savepoint("savepoint counts", _SNAPSHOTS, condition=_kind("savepoint")),
    _savepoint("before a checkpoint's is made one", *_REPLACES, enters=True, condition=_promoted, job="promotion"),
    _restoration("query.json written", f"{_START}:claim_checkpoint"),
    _restoration("begun", _RESTORATION, condition=_stage("begun")),
    _restoration("state's rows written", f"{_RESTORE}:register_messages", enters=True),
    _restoration("state's rows registered", f"{_RESTORE}:register_messages"),
    _restoration("before offsets/0", *_REPLACES, enters=True, condition=_created("spark/offsets/0")),
    _restoration("offsets/0 written", f"{_RESTORE}:plan_first_batch"),
    _restoration("before 'written'", *_REPLACES, enters=True, condition=_replaced("restored.json", "written")),
    _restoration("'written'", _RESTORATION, condition=_stage("written")),
    _restoration("first batch: state committed", _SNAPSHOTS, enters=True, condition=_first_batch),
    _restoration("first batch: manifest written", f"{_MANIFESTS}.write", condition=_first_batch),
    _restoration("first batch committed", f"{_START}:finish_restoration", enters=True),
    _restoration("before offsets/0 is replaced", *_REPLACES, enters=True, condition=_replaced("spark/offsets/0")),
    _restoration("offsets/0 replaced", *_REPLACES, enters=True, condition=_created("spark/offsets/1")),
    _restoration("offsets/1 written", _RESTORATION, enters=True, condition=_stage("ready")),
    _restoration("before 'ready'", *_REPLACES, enters=True, condition=_replaced("restored.json", "ready")),
    _restoration("'ready'", _RESTORATION, condition=_stage("ready")),
    _same_table("old query ended", f"{_RESTORE}:end"),
    _same_table("output cut back", "cojoin.checkpoints.output_tables:cut_back"),
    _drain("before it is planned", "cojoin.spark.query.query:plan_drain", enters=True),
    _drain("promised", f"{_CONTROL}:register_messages", enters=True),
    _drain("registered", f"{_CONTROL}:register_messages"),
    _drain("planned", "cojoin.spark.query.query:plan_drain"),
    _drain("output committed", *_SINKS, condition=_output("output", FILES)),
    _drain("manifest written", f"{_MANIFESTS}.write", condition=_drained),
    _drain("progress committed", f"{_MANIFESTS}.clean", enters=True),
)

SUSPENSIONS: tuple[Point, ...] = (
    _batch("before the first look at the lease", f"{_BATCHES}.__call__", enters=True),
    _batch(
        "after the first look at the lease",
        "cojoin.spark.sinks.delta_sink:DeltaWriter.target",
        f"{_SQL}.target",
        enters=True,
        condition=_output("output"),
    ),
    _batch("executed and looked, nothing written", f"{_BATCHES}._report", enters=True),
    _OUTPUT,
    _REJECTED,
    _ROWS,
    _INDEX,
    _MANIFEST,
    _counted("before the progress", f"{_PROGRESS}.add", enters=True),
    _ALL_WRITTEN,
)
"""Where a driver is suspended: on both sides of each look at the lease, and before each commit."""

SQL_POINTS: tuple[Point, ...] = (
    _OUTPUT,
    _batch("rows in the database, not committed", f"{_SQL}._upsert", condition=_output_of_sql),
    _batch("fence row read", f"{_SQL}._has_batch", condition=_output_of_sql),
    _OUTPUT_DONE,
)
"""Where a driver that writes to a database is killed or suspended; its transaction is open at the second and third."""

FAILURES: tuple[Point, ...] = (_OUTPUT, _OUTPUT_DONE, _REJECTED, _REJECTED_DONE, _ROWS, _INDEXED, _MANIFEST, _COUNTS)
"""Where a batch fails of itself, in a driver that lives on."""
