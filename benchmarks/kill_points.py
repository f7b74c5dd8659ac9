"""The points at which the driver of ``kills.py`` is killed: which method is entered or left, and in which batch.

Nothing of cojoin is changed: the driver's own process alone puts a step before or after the method, and there it dies.
What a point needs to be reached (a restoration, a savepoint, another query's table) is its job.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FILES", "POINTS", "RANDOM", "JobKind", "Point"]

JobKind: TypeAlias = Literal["run", "savepoint", "promotion", "restoration", "same table"]
"""A savepoint is taken of a batch without a snapshot; a promotion makes a checkpoint one."""

FILES = 5
"""How many files each input has, so how many batches a run has before its drain."""

Condition: TypeAlias = "Callable[[tuple[Any, ...], int], bool]"
"""Whether a call is the one, by its arguments and the batch that was chosen."""


@dataclass(frozen=True)
class Point:
    """A point at which the driver dies.

    Attributes:
        phase: To what it belongs.
        name: What has just happened.
        where: The method, as ``module:Class.method`` or ``module:function``; None for a moment by the clock.
        enters: Whether the driver dies before the method, or after.
        condition: Which of the method's calls it is.
        job: What the driver does.
        halves: Whether the driver dies inside the method, which replaces a file: the old one is gone, the new one not
            yet there.
    """

    phase: str
    name: str
    where: str | None
    enters: bool = False
    condition: Condition = lambda _, __: True
    job: JobKind = "run"
    halves: bool = False

    def arm(self, batch: int, die: Callable[[], NoReturn]) -> None:
        """Put the step into this process."""
        if self.where is None:
            return
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        original = getattr(owner, name)

        @wraps(original)
        def stepped(*arguments: Any, **options: Any) -> Any:
            is_meant = self.condition(arguments, batch)
            if is_meant and self.halves:
                files = arguments[0]
                files._system = _NoRename(files._system, die)  # noqa: SLF001 - between its two halves there is no name
            elif is_meant and self.enters:
                die()
            result = original(*arguments, **options)
            if is_meant:
                die()
            return result

        setattr(owner, name, stepped)


class _NoRename:
    """A file system whose process dies when a new file is to get its name."""

    def __init__(self, system: Any, die: Callable[[], NoReturn]) -> None:
        self._system, self._die = system, die

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def rename(self, source: Any, target: Any) -> Any:
        if source.getName().endswith(".tmp"):
            self._die()
        return self._system.rename(source, target)


def _of_batch(arguments: tuple[Any, ...], batch: int) -> bool:
    """Tell by the batch's number, or by what bears one."""
    return any(getattr(each, "batch_id", each) == batch for each in arguments[1:])


def _output(name: str, number: int | None = None) -> Condition:
    def is_meant(arguments: tuple[Any, ...], batch: int) -> bool:
        context = arguments[-1]
        return bool(context.output == name and context.batch_id == (batch if number is None else number))

    return is_meant


def _kind(name: str) -> Condition:
    return lambda arguments, _: arguments[1].kind == name


def _stage(name: str) -> Condition:
    return lambda arguments, _: arguments[0].stage == name


def _first_batch(arguments: tuple[Any, ...], _: int) -> bool:
    return _of_batch(arguments, 0)


def _drained(arguments: tuple[Any, ...], _: int) -> bool:
    return bool(arguments[1].report.drained)


def _named(name: str, content: str = "") -> Condition:
    return lambda arguments, _: arguments[1] == name and content.encode() in _bytes(arguments[-1])


def _replaced(name: str, content: str = "") -> Condition:
    named = _named(name, content)
    return lambda arguments, batch: named(arguments, batch) and arguments[0].exists(name)


def _promoted(arguments: tuple[Any, ...], _: int) -> bool:
    return arguments[1].startswith("snapshots/") and b'"savepoint"' in arguments[2]


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


_BATCHES, _STATE = "cojoin.spark.batches:BatchWriter", "cojoin.checkpoints.state_table:StateTable"
_SINK = "cojoin.spark.delta_sink:DeltaSink.commit"
_SNAPSHOTS = "cojoin.checkpoints.snapshots:Snapshots.write"
_MANIFESTS = "cojoin.checkpoints.manifest:Manifests"
_FILES = "cojoin.checkpoints.files:CheckpointFiles"
_CONTROL, _RESTORE, _START = "cojoin.checkpoints.control", "cojoin.spark.restore", "cojoin.spark.start"
_RESTORATION = f"{_RESTORE}:Restoration.write"

RANDOM = Point("a random moment", "by the clock", None)

_batch = partial(Point, "a batch", condition=_of_batch)
_cleaning = partial(Point, "cleaning up")
_savepoint = partial(Point, "a savepoint", job="savepoint")
_restoration = partial(Point, "a restoration", job="restoration")
_same_table = partial(Point, "the same table", job="same table")
_drain = partial(Point, "a drain")

POINTS: tuple[Point, ...] = (
    _batch("before its action", f"{_BATCHES}.__call__", enters=True),
    _batch("executed, nothing written", f"{_BATCHES}._report"),
    _batch("output committed", _SINK, condition=_output("output")),
    _batch("rejected rows committed", _SINK, condition=_output("rejected")),
    _batch("state table committed", _SNAPSHOTS, enters=True),
    _batch("snapshot counts", _SNAPSHOTS),
    _batch("manifest written", f"{_MANIFESTS}.write"),
    _batch("all written, not Spark's commit", f"{_BATCHES}.__call__"),
    _batch("lease.json half replaced", f"{_FILES}.write_bytes", condition=_replaced("lease.json"), halves=True),
    _cleaning("snapshots no longer count", f"{_STATE}._unneeded", enters=True),
    _cleaning("rows deleted, files there", f"{_FILES}.delete_directory", enters=True),
    _cleaning("a folder of files gone", f"{_FILES}.delete_directory"),
    _savepoint("rows written, no index", _SNAPSHOTS, enters=True, condition=_kind("savepoint")),
    _savepoint("savepoint counts", _SNAPSHOTS, condition=_kind("savepoint")),
    _savepoint(
        "a checkpoint's half made one", f"{_FILES}.write_bytes", condition=_promoted, job="promotion", halves=True
    ),
    _restoration("query.json written", f"{_START}:claim_checkpoint"),
    _restoration("begun", _RESTORATION, condition=_stage("begun")),
    _restoration("state's rows written", f"{_RESTORE}:register_messages", enters=True),
    _restoration("state's rows registered", f"{_RESTORE}:register_messages"),
    _restoration("before offsets/0", f"{_FILES}.write", enters=True, condition=_named("spark/offsets/0")),
    _restoration("offsets/0 written", f"{_RESTORE}:plan_first_batch"),
    _restoration(
        "'written' half replaced", f"{_FILES}.write_bytes", condition=_replaced("restored.json", "written"), halves=True
    ),
    _restoration("'written'", _RESTORATION, condition=_stage("written")),
    _restoration("first batch: state committed", _SNAPSHOTS, enters=True, condition=_first_batch),
    _restoration("first batch: manifest written", f"{_MANIFESTS}.write", condition=_first_batch),
    _restoration("first batch committed", f"{_START}:finish_restoration", enters=True),
    _restoration(
        "offsets/0 half replaced", f"{_FILES}.write_bytes", condition=_replaced("spark/offsets/0"), halves=True
    ),
    _restoration("offsets/0 replaced", f"{_FILES}.write", enters=True, condition=_named("spark/offsets/1")),
    _restoration("offsets/1 written", _RESTORATION, enters=True, condition=_stage("ready")),
    _restoration(
        "'ready' half replaced", f"{_FILES}.write_bytes", condition=_replaced("restored.json", "ready"), halves=True
    ),
    _restoration("'ready'", _RESTORATION, condition=_stage("ready")),
    _same_table("old query ended", f"{_RESTORE}:end"),
    _same_table("output cut back", "cojoin.checkpoints.outputs:cut_back"),
    _drain("before it is planned", "cojoin.spark.query:plan_drain", enters=True),
    _drain("promised", f"{_CONTROL}:register_messages", enters=True),
    _drain("registered", f"{_CONTROL}:register_messages"),
    _drain("planned", "cojoin.spark.query:plan_drain"),
    _drain("output committed", _SINK, condition=_output("output", FILES)),
    _drain("manifest written", f"{_MANIFESTS}.write", condition=_drained),
    _drain("progress committed", f"{_MANIFESTS}.clean", enters=True),
)
