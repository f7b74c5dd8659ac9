"""``cojoin checkpoints``: shows the snapshots, state and progress of a query, takes and removes snapshots, erases keys.

All commands but ``savepoint``, ``clean`` and ``erase`` only read, and all but ``erase`` work also while the query runs.
``list``, ``show`` and ``progress`` start no Spark where this process reaches the checkpoint by itself
(``without_spark``). With ``--json`` the standard output is one JSON document; all other messages go to the standard
error.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cojoin.cli import checkpoint_report, run_report
from cojoin.cli.checkpoint_texts import as_json, typed_key, typed_row
from cojoin.cli.embedded_spark import local_session
from cojoin.cli.run_report import say, tell
from cojoin.cli.without_spark import store_without_spark
from cojoin.engine.values.rows import decode_rows, dump_json
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.spark.sources.secrets import without_login

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.snapshot_record import Snapshot
    from cojoin.cli.arguments import Arguments
    from cojoin.storage.store import Store

__all__ = ["run_checkpoints"]

_Read = TypeVar("_Read")

# A short command gains more from quick compilation than from fast code.
_SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def run_checkpoints(arguments: Arguments) -> int:
    """Run the command, and return the exit code."""
    return 0 if _read_without_spark(arguments) else _run_in_session(arguments)


def _read_without_spark(arguments: Arguments) -> bool:
    """Run a command that only reads files, if this process reaches them by itself, and return whether it did."""
    from cojoin.checkpoints.progress_rows import read_progress_rows  # noqa: PLC0415 - so that --help is quick

    if arguments.action not in {"list", "show", "progress"}:
        return False
    files = store_without_spark(arguments.path, arguments.conf)
    if files is None:
        return False
    command = _Command(arguments, None, files)
    if arguments.action == "progress":
        rows = read_progress_rows(files)
        if rows is not None:
            command.show_progress(rows)
        return rows is not None
    (command.snapshots if arguments.action == "list" else command.show)()
    return True


def _run_in_session(arguments: Arguments) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="cojoin-checkpoints-", ignore_cleanup_errors=True) as folder,
        local_session(
            Path(folder), _aside, master=arguments.master, conf={**_SETTINGS, **arguments.conf}, log=arguments.log
        ) as spark,
    ):
        from cojoin.checkpoints.checkpoint import open_files  # noqa: PLC0415 - Java is checked before Spark

        command = _Command(arguments, spark, open_files(spark, arguments.path))
        actions: dict[str, Callable[[], None]] = {
            "list": command.snapshots,
            "show": command.show,
            "state": command.state,
            "progress": command.progress,
            "explain": command.explain,
            "savepoint": command.savepoint,
            "clean": command.clean,
            "erase": command.erase,
        }
        actions[arguments.action]()
    return 0


def _aside(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class _Command:
    """A command with its open checkpoint, and its session where it has one."""

    def __init__(self, arguments: Arguments, spark: SparkSession | None, files: Store) -> None:
        from cojoin.checkpoints.identity import read_query  # noqa: PLC0415
        from cojoin.checkpoints.snapshots import Snapshots  # noqa: PLC0415

        self._arguments, self._session, self._files = arguments, spark, files
        self._query = read_query(files)
        self._snapshots = Snapshots(files)

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    def snapshots(self) -> None:
        """List the snapshots."""
        from cojoin.checkpoints.lease_record import holder  # noqa: PLC0415
        from cojoin.checkpoints.manifest import Manifests  # noqa: PLC0415

        read = [self._readable(partial(self._snapshots.read, each)) for each in self._snapshots.batch_ids()]
        found = [each for each in read if each is not None]
        if self._arguments.json:
            self._print_json([checkpoint_report.snapshot_values(each) for each in found])
            return
        last, held_by = self._readable(Manifests(self._files).last), self._readable(partial(holder, self._files))
        say(checkpoint_report.headline(self._arguments.path, self._query["query"], last, held_by))
        say()
        say(checkpoint_report.snapshots(found))

    def _readable(self, read: Callable[[], _Read | None]) -> _Read | None:
        """Return what is read; where it is damaged, print the error and return None, so that the rest is shown."""
        try:
            return read()
        except CheckpointError as error:
            _aside(f"cojoin: {without_login(str(error))}")
            return None

    def show(self) -> None:
        """Show one snapshot."""
        from cojoin.checkpoints.checkpoint import find_snapshot  # noqa: PLC0415
        from cojoin.checkpoints.lease_liveness import is_live  # noqa: PLC0415
        from cojoin.checkpoints.lease_record import holder  # noqa: PLC0415

        held_by = holder(self._files)
        if self._arguments.at is None and not self._snapshots.batch_ids():
            # A query that is new, or that takes no snapshots, has none; this is not an error.
            self._show_without_snapshot(held_by)
            return
        snapshot = find_snapshot(self._files, self._arguments.at)
        if self._arguments.json:
            values = checkpoint_report.snapshot_values(snapshot, self._query, detailed=True)
            self._print_json({**values, "lease": held_by})
            return
        lives = held_by is not None and is_live(self._files)
        say(checkpoint_report.snapshot(snapshot, self._query, held_by, lives=lives))

    def _show_without_snapshot(self, held_by: str | None) -> None:
        from cojoin.checkpoints.manifest import Manifests  # noqa: PLC0415

        last = Manifests(self._files).last()
        values = {"batch_id": None, "newest_batch": None if last is None else last.batch_id, "lease": held_by}
        headline = checkpoint_report.headline(self._arguments.path, self._query["query"], last, held_by)
        self._show(values, f"{headline}\n\n{checkpoint_report.snapshots([])}")

    def state(self) -> None:
        """Show the state: an overview, a key, or the rows of one part."""
        from cojoin.checkpoints.inspect.key_state import plain  # noqa: PLC0415
        from cojoin.checkpoints.inspect.read import read_state  # noqa: PLC0415

        arguments = self._arguments
        state = read_state(self._spark, arguments.path, arguments.at)
        if arguments.key is not None:
            found = state.key(typed_key(arguments.key, state.inputs[0]))
            self._show(found.as_dict(), str(found))
        elif arguments.name is not None:
            rows = self._part(state, arguments.name).limit(arguments.limit).toArrow()
            listed = [plain(row) for row in decode_rows(rows, beyond=str)] if arguments.json else None
            self._show(listed, run_report.rows(rows))
        else:
            tables = [{"name": name, "rows": rows, "bytes": size} for name, rows, size in state.tables()]
            values = {"batch_id": state.batch_id, "taken_at": state.taken_at, "watermark": state.watermark}
            self._show({**values, "origin": state.origin, "tables": tables}, str(state))

    def progress(self) -> None:
        """Show the last batches."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        from cojoin.checkpoints.inspect.read import read_progress  # noqa: PLC0415

        frame = read_progress(self._spark, self._arguments.path)
        self.show_progress(frame.orderBy(F.desc("batch_id")).limit(self._arguments.limit).orderBy("batch_id").toArrow())

    def show_progress(self, found: pa.Table) -> None:
        """Show the last of some batches."""
        from cojoin.checkpoints.inspect.key_state import plain  # noqa: PLC0415

        last = found.slice(max(0, found.num_rows - self._arguments.limit))
        rows = [plain(row) for row in decode_rows(last, beyond=str)]
        self._show(rows, checkpoint_report.progress(rows))

    def explain(self) -> None:
        """Explain what happened to a row, or what a row or a key waits for."""
        from cojoin.checkpoints.inspect.explain import explain  # noqa: PLC0415
        from cojoin.checkpoints.inspect.read import stored_inputs  # noqa: PLC0415

        arguments = self._arguments
        inputs = stored_inputs(self._query["query"])
        spec = next((each for each in inputs if each.name == arguments.input), inputs[0])
        explanation = explain(
            self._spark,
            arguments.path,
            key=None if arguments.key is None else typed_key(arguments.key, inputs[0]),
            input=arguments.input,
            row=typed_row(arguments.row, spec) if arguments.row else None,
            at=arguments.at,
        )
        self._show(explanation.as_dict(), str(explanation))

    def savepoint(self) -> None:
        """Take a savepoint."""
        from cojoin.checkpoints.inspect.read import savepoint  # noqa: PLC0415

        taken = savepoint(self._spark, self._arguments.path)
        snapshot = self._snapshots.read(int(taken.at))  # type: ignore[arg-type]
        assert snapshot is not None
        if self._arguments.json:
            self._print_json(checkpoint_report.snapshot_values(snapshot))
            return
        tell(
            f"Kept the state after batch {snapshot.batch_id}: {snapshot.rows:,} rows. "
            f"`cojoin run JOB --restore-from {shlex.quote(without_login(self._arguments.path))} --at "
            f"{snapshot.batch_id} ...` begins a new query with it."
        )

    def clean(self) -> None:
        """Remove snapshots."""
        from cojoin.checkpoints.state_cleaner import StateCleaner  # noqa: PLC0415

        arguments = self._arguments
        found = self._snapshots.all()
        obsolete = self._obsolete(found)
        freed = None if arguments.dry_run or not obsolete else StateCleaner(self._spark, self._files).clean(obsolete)
        kept = [each.batch_id for each in found if each.batch_id not in obsolete]
        values = {"removed": obsolete, "kept": kept, "freed_bytes": freed, "dry_run": arguments.dry_run}
        self._show(values, checkpoint_report.cleaned(obsolete, kept, freed, dry_run=arguments.dry_run))

    def erase(self) -> None:
        """Take keys out of the state."""
        from cojoin.checkpoints.inspect.read import stored_inputs  # noqa: PLC0415
        from cojoin.spark.savepoints.erase import erase  # noqa: PLC0415

        arguments, left = self._arguments, stored_inputs(self._query["query"])[0]
        keys = [typed_key(each, left) for each in arguments.key]
        done = erase(self._spark, arguments.path, keys, arguments.into, counts=not arguments.no_counts)
        self._show(done.as_dict(), str(done))

    def _obsolete(self, found: list[Snapshot]) -> list[int]:
        arguments = self._arguments
        if arguments.keep is not None:
            return self._snapshots.obsolete(arguments.keep, savepoints_too=arguments.savepoints)
        batch_id = arguments.batch
        chosen = next((each for each in found if each.batch_id == batch_id), None)
        if chosen is None:
            there = ", ".join(str(each.batch_id) for each in found) or "none"
            msg = f"checkpoint {self._files.root}: there is no snapshot of batch {batch_id}; there are: {there}"
            raise CheckpointError(msg)
        base = self._snapshots.base_of(found)
        if chosen.batch_id == base:
            msg = (
                f"checkpoint {self._files.root}: the query's next snapshot builds on that of batch {batch_id}, so it "
                f"can't be removed until there is a newer one; if the query will not be started again, delete the "
                f"whole directory"
            )
            raise CheckpointError(msg)
        return [chosen.batch_id]

    def _part(self, state: QueryState, name: str) -> DataFrame:
        # A state may have the name of another part, so a prefix distinguishes them.
        prefixed = {f"state:{each}": frame for each, frame in state.states.items()}
        parts: dict[str, DataFrame] = {**state.states, **prefixed, "timers": state.timers, **state.buffered}
        if state.versions is not None:
            parts["versions"] = state.versions
        if name == "keys":
            return state.largest_keys(self._arguments.limit)
        if name not in parts:
            known = [*state.buffered, *(["versions"] if state.versions is not None else []), "timers", "keys"]
            known += state.states
            msg = f"--name: the state has no part {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}"
            raise ConfigurationError(msg)
        return parts[name]

    def _show(self, values: Any, text: str) -> None:
        if self._arguments.json:
            self._print_json(values)
        else:
            path = self._arguments.path
            say(text.replace(path, without_login(path)))

    def _print_json(self, values: Any) -> None:
        say(dump_json(values, indent=1, default=as_json))
