"""``cojoin checkpoints``: shows the snapshots, state and progress of a query, takes and removes snapshots, erases keys.

All commands but ``savepoint``, ``clean`` and ``erase`` only read, and all but ``erase`` work also while the query runs.
``list``, ``show`` and ``progress`` start no Spark where this process reaches the checkpoint by itself
(``store_without_spark``). With ``--json`` the standard output is one JSON document; all other messages go to the
standard error.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.lease import holder, is_live
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.cli import run_report
from cojoin.cli.embedded_spark import SHORT_RUN, local_session, store_without_spark
from cojoin.cli.run_report import say, tell
from cojoin.engine.display import format_bytes, format_time, text_table
from cojoin.engine.values.rows import decode_rows, dump_json, value_of_text
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.checkpoints.snapshots import SnapshotIndex
    from cojoin.cli.options import Arguments
    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.store import Store


_Read = TypeVar("_Read")


def run_checkpoints(arguments: Arguments) -> int:
    """Run the command, and return the exit code."""
    return 0 if _read_without_spark(arguments) else _run_in_session(arguments)


def _read_without_spark(arguments: Arguments) -> bool:
    """Run a command that only reads files, if this process reaches them by itself, and return whether it did."""
    if arguments.action not in {"list", "show", "progress"}:
        return False
    files = store_without_spark(arguments.path, arguments.conf)
    if files is None:
        return False
    command = _Command(arguments, None, files)
    if arguments.action == "progress":
        from cojoin.checkpoints.progress_table import read_progress_rows  # noqa: PLC0415 - it imports Spark

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
            Path(folder), _aside, master=arguments.master, conf={**SHORT_RUN, **arguments.conf}, log=arguments.log
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
        self._arguments, self._session, self._files = arguments, spark, files
        self._query = read_query(files)
        self._snapshots = Snapshots(files)

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    def snapshots(self) -> None:
        read = [self._readable(partial(self._snapshots.read, each)) for each in self._snapshots.batch_ids()]
        snapshots = [each for each in read if each is not None]
        if self._arguments.json:
            self._print_json([_snapshot_values(each) for each in snapshots])
            return
        last, held_by = self._readable(Manifests(self._files).last), self._readable(partial(holder, self._files))
        say(_headline(self._arguments.path, self._query["query"], last, held_by))
        say()
        say(_snapshots(snapshots))

    def _readable(self, read: Callable[[], _Read | None]) -> _Read | None:
        """Return the result of a read; print the error of a damaged file and return None, so that the rest is shown."""
        try:
            return read()
        except CheckpointError as error:
            _aside(f"cojoin: {without_login(str(error))}")
            return None

    def show(self) -> None:
        from cojoin.checkpoints.checkpoint import find_snapshot  # noqa: PLC0415
        from cojoin.checkpoints.restoration import Restoration  # noqa: PLC0415

        held_by = holder(self._files)
        if self._arguments.at is None and not self._snapshots.batch_ids():
            # A query that is new, or that takes no snapshots, has none.
            self._show_without_snapshot(held_by)
            return
        snapshot = find_snapshot(self._files, self._arguments.at)
        origin = self._readable(partial(Restoration.read, self._files))
        if self._arguments.json:
            values = _snapshot_values(snapshot, self._query)
            restored = {"checkpoint": without_login(origin.origin), "batch_id": origin.batch_id} if origin else None
            self._print_json({**values, "restored_from": restored, "lease": held_by})
            return
        lives = held_by is not None and is_live(self._files)
        restored_from = f"batch {origin.batch_id} of {without_login(origin.origin)}" if origin else None
        say(_snapshot(snapshot, self._query, held_by, lives=lives, restored_from=restored_from))

    def _show_without_snapshot(self, held_by: str | None) -> None:
        last = Manifests(self._files).last()
        values = {"batch_id": None, "newest_batch": None if last is None else last.batch_id, "lease": held_by}
        headline = _headline(self._arguments.path, self._query["query"], last, held_by)
        self._show(values, f"{headline}\n\n{_snapshots([])}")

    def state(self) -> None:
        """Show the state: an overview, a key, or the rows of one part."""
        from cojoin.checkpoints.inspect.key_state import plain  # noqa: PLC0415
        from cojoin.checkpoints.inspect.query_state import read_state  # noqa: PLC0415

        arguments = self._arguments
        state = read_state(self._spark, arguments.path, arguments.at)
        if arguments.key is not None:
            key_state = state.key(typed_key(arguments.key, state.inputs[0]))
            self._show(key_state.as_dict(), str(key_state))
        elif arguments.name is not None:
            rows = self._part(state, arguments.name).limit(arguments.limit).toArrow()
            listed = [plain(row) for row in decode_rows(rows, beyond=str)] if arguments.json else None
            self._show(listed, run_report.rows(rows))
        else:
            tables = [{"name": name, "rows": rows, "bytes": size} for name, rows, size in state.tables()]
            values = {"batch_id": state.batch_id, "taken_at": state.taken_at, "watermark": state.watermark}
            self._show({**values, "origin": state.origin, "tables": tables}, str(state))

    def progress(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        from cojoin.checkpoints.inspect.query_state import read_progress  # noqa: PLC0415

        frame = read_progress(self._spark, self._arguments.path)
        self.show_progress(frame.orderBy(F.desc("batch_id")).limit(self._arguments.limit).orderBy("batch_id").toArrow())

    def show_progress(self, batches: pa.Table) -> None:
        """Show the last of some batches."""
        from cojoin.checkpoints.inspect.key_state import plain  # noqa: PLC0415

        last = batches.slice(max(0, batches.num_rows - self._arguments.limit))
        rows = [plain(row) for row in decode_rows(last, beyond=str)]
        self._show(rows, _progress(rows))

    def explain(self) -> None:
        """Explain what happened to a row, or what a row or a key waits for."""
        from cojoin.checkpoints.inspect.explain import explain  # noqa: PLC0415
        from cojoin.checkpoints.inspect.query_state import stored_inputs  # noqa: PLC0415

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
        from cojoin.checkpoints.inspect.query_state import savepoint  # noqa: PLC0415

        taken = savepoint(self._spark, self._arguments.path)
        snapshot = self._snapshots.read(int(taken.at))  # type: ignore[arg-type]
        assert snapshot is not None
        if self._arguments.json:
            self._print_json(_snapshot_values(snapshot))
            return
        tell(
            f"Kept the state after batch {snapshot.batch_id}: {snapshot.rows:,} rows. "
            f"`cojoin run JOB --restore-from {shlex.quote(without_login(self._arguments.path))} --at "
            f"{snapshot.batch_id} ...` begins a new query with it."
        )

    def clean(self) -> None:
        from cojoin.checkpoints.state_table import StateCleaner  # noqa: PLC0415

        arguments = self._arguments
        snapshots = self._snapshots.all()
        obsolete = self._obsolete(snapshots)
        freed = None if arguments.dry_run or not obsolete else StateCleaner(self._spark, self._files).clean(obsolete)
        kept = [each.batch_id for each in snapshots if each.batch_id not in obsolete]
        values = {"removed": obsolete, "kept": kept, "freed_bytes": freed, "dry_run": arguments.dry_run}
        self._show(values, _cleaned(obsolete, kept, freed, dry_run=arguments.dry_run))

    def erase(self) -> None:
        """Take keys out of the state."""
        from cojoin.checkpoints.inspect.query_state import stored_inputs  # noqa: PLC0415
        from cojoin.spark.savepoints.erase import erase  # noqa: PLC0415

        arguments, left = self._arguments, stored_inputs(self._query["query"])[0]
        keys = [typed_key(each, left) for each in arguments.key]
        done = erase(self._spark, arguments.path, keys, arguments.into, counts=not arguments.no_counts)
        self._show(done.as_dict(), str(done))

    def _obsolete(self, snapshots: list[SnapshotIndex]) -> list[int]:
        arguments = self._arguments
        if arguments.keep is not None:
            return self._snapshots.obsolete(arguments.keep, savepoints_too=arguments.savepoints)
        batch_id = arguments.batch
        chosen = next((each for each in snapshots if each.batch_id == batch_id), None)
        if chosen is None:
            numbers = f"those of batches {', '.join(str(each.batch_id) for each in snapshots)}" if snapshots else "none"
            msg = f"{self._files.named} has no snapshot of batch {batch_id}; it has {numbers}"
            raise CheckpointError(msg)
        base = self._snapshots.base_of(snapshots)
        if chosen.batch_id == base:
            msg = (
                f"{self._files.named}: the query's next snapshot builds on that of batch {batch_id}, so it "
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


def _headline(path: str, query: Mapping[str, Any], last: Manifest | None, held_by: str | None) -> str:
    """Return lines about a checkpoint: its query, its newest batch, and the run that holds it."""
    left, right = (each["name"] for each in query["inputs"])
    operator = str(query.get("function") or query["operator"].replace("_", " "))
    lines = [f"{without_login(path)}: {operator} of {left!r} with {right!r}, {query['key_groups']} key groups"]
    if last is None:
        lines.append("no batch is finished yet")
    else:
        drained = ", drained" if last.report.drained else ""
        lines.append(f"newest batch {last.batch_id}, watermark {format_time(last.report.watermark)}{drained}")
    if held_by is not None:
        lines.append(f"held by {held_by}")
    return "\n".join(lines)


def _snapshots(snapshots: Sequence[SnapshotIndex]) -> str:
    if not snapshots:
        return "no snapshots: one is taken at every --checkpoint-interval, and by `cojoin checkpoints savepoint`"
    rows = [("batch", "kind", "taken at (UTC)", "watermark (UTC)", "key groups", "rows", "size", "written")]
    rows += [
        (
            str(snapshot.batch_id),
            snapshot.kind,
            f"{snapshot.taken_at:%Y-%m-%d %H:%M:%S}",
            format_time(snapshot.manifest.report.watermark),
            str(snapshot.key_groups),
            f"{snapshot.rows:,}",
            format_bytes(snapshot.state_bytes),
            format_bytes(snapshot.written_bytes),
        )
        for snapshot in snapshots
    ]
    return text_table(rows)


def _snapshot(
    snapshot: SnapshotIndex,
    query: Mapping[str, Any],
    held_by: str | None,
    *,
    lives: bool,
    restored_from: str | None,
) -> str:
    manifest, sources = snapshot.manifest, _sources(query)
    sizes = f"{format_bytes(snapshot.state_bytes)}, of which this snapshot wrote {format_bytes(snapshot.written_bytes)}"
    stored = sorted((each for each, groups in snapshot.content_batch_ids.items() if groups), key=int)
    lines = [
        f"batch {snapshot.batch_id}, a {snapshot.kind} taken at {snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC",
        f"query {manifest.query_id}, run {manifest.epoch}"
        + (f", restored from {restored_from}" if restored_from else ""),
        f"{snapshot.rows:,} rows in {snapshot.key_groups} key groups; state {sizes}",
        "its content is stored in the snapshots of batches " + ", ".join(stored),
        "",
        manifest.report.table(),
        "",
        "sources continue at",
    ]
    lines += [
        f"  {name}, {source}: {offset}" for (name, source), offset in zip(sources, manifest.offsets, strict=False)
    ]
    lines += ["", "outputs"] if manifest.outputs else ["", "no output was written yet"]
    lines += [f"  {name}: {_place(location)}" for name, location in manifest.outputs.items()]
    if held_by is None:
        lease = "no query runs on the checkpoint"
    else:
        lease = f"{'a query runs on it' if lives else 'its last query did not end properly'}: {held_by}"
    return "\n".join([*lines, "", lease])


def _snapshot_values(snapshot: SnapshotIndex, query: Mapping[str, Any] | None = None) -> Any:
    """Return a snapshot as values for JSON, with its details if the query is given."""
    values = {
        "batch_id": snapshot.batch_id,
        "kind": snapshot.kind,
        "taken_at": snapshot.taken_at,
        "watermark": snapshot.manifest.report.watermark,
        "key_groups": snapshot.key_groups,
        "rows": snapshot.rows,
        "state_bytes": snapshot.state_bytes,
        "written_bytes": snapshot.written_bytes,
    }
    if query is None:
        return values
    manifest, sources = snapshot.manifest, _sources(query)
    return {
        **values,
        "query_id": manifest.query_id,
        "epoch": manifest.epoch,
        "content_batch_ids": {each: groups for each, groups in snapshot.content_batch_ids.items() if groups},
        "sources": [
            {"input": name, "source": source, "offset": offset}
            for (name, source), offset in zip(sources, manifest.offsets, strict=False)
        ],
        "outputs": {
            name: {field: without_login(each) if isinstance(each, str) else each for field, each in location.items()}
            for name, location in manifest.outputs.items()
        },
        "report": manifest.report.as_dict(),
    }


def _progress(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the batches in rows of ``read_progress``."""
    if not rows:
        return "no batch is finished yet"
    names = [each["name"] for each in rows[-1]["inputs"]]
    table = [
        (
            "batch",
            "at (UTC)",
            "watermark (UTC)",
            "held by",
            *(f"{name} {column}" for name in names for column in ("in", "wait")),
            "rejected",
            "rows out",
            "state",
        )
    ]
    for row in rows:
        inputs = row["inputs"]
        held = row["holding_input"] or ""
        partition = next((each["holding_partition"] for each in inputs if each["name"] == held), None)
        table.append(
            (
                str(row["batch_id"]),
                _moment(row["processing_time"]).partition(".")[0],
                "end of time" if row["drained"] else _moment(row["watermark"]),
                held if partition in (None, "[]") else f"{held} {partition}",
                *(f"{each[column]:,}" for each in inputs for column in ("rows_in", "buffered")),
                f"{sum(count for each in inputs for count in each['rejected'].values()):,}",
                f"{row['rows_out']:,}",
                format_bytes(row["state_bytes"]),
            )
        )
    return text_table(table)


def _cleaned(removed: Sequence[int], kept: Sequence[int], freed: int | None, *, dry_run: bool) -> str:
    """Return a sentence about the snapshots that were removed, or would be removed."""
    left = f"kept: {', '.join(map(str, kept)) or 'none'}"
    if not removed:
        return f"Nothing to remove; {left}."
    batches = ", ".join(map(str, removed))
    if dry_run:
        return f"Would remove the snapshots of batches {batches}; {left}."
    return f"Removed the snapshots of batches {batches}, {format_bytes(freed or 0)} of files; {left}."


def _sources(query: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = [source["name"] for source in query["query"]["inputs"]]
    sources = [
        "a DataFrame"
        if source is None
        else f"{source['format']} {without_login(str(source['location'] or ''))}".strip()
        for source in query["sources"]
    ]
    return list(zip(names, sources, strict=True))


def _place(location: Mapping[str, Any]) -> str:
    where = " ".join(
        f"{kind} {without_login(str(value))}"
        for kind, value in location.items()
        if kind not in {"version", "id", "batch_id"}
    )
    if location["batch_id"] is None:
        return f"{where}, nothing written yet"
    version = f" at version {location['version']}" if "version" in location else ""
    return f"{where}{version}, last written in batch {location['batch_id']}"


def _moment(value: datetime | None) -> str:
    if value is None:
        return "none"
    moment = value.astimezone(timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def typed_key(text: str, spec: InputSpec) -> Any:
    """Read a key: the values of its columns, separated by commas."""
    if len(spec.key) == 1:
        return typed_value(text, spec.schema.field(spec.key[0]).type, f"--key {spec.key[0]}")
    parts = text.split(",") if text else []
    if len(parts) != len(spec.key):
        msg = f"--key: expected values of {', '.join(spec.key)} separated by commas, got {text!r}"
        raise ConfigurationError(msg)
    return tuple(
        typed_value(part.strip(), spec.schema.field(name).type, f"--key {name}")
        for name, part in zip(spec.key, parts, strict=True)
    )


def typed_row(pairs: Sequence[tuple[str, str | None]], spec: InputSpec) -> dict[str, Any]:
    """Read the values of columns; that of an unknown column stays a text, and ``explain`` refuses it."""
    return {
        name: text
        if text is None or name not in spec.schema.names
        else typed_value(text, spec.schema.field(name).type, f"--row {name}")
        for name, text in pairs
    }


def typed_value(text: str, dtype: pa.DataType, subject: str) -> Any:
    """Read a value of a type (``value_of_text``); the error names the subject."""
    try:
        return value_of_text(text, dtype)
    except (ValueError, OverflowError, NotImplementedError):
        msg = f"{subject}: expected a value of the type {dtype}, got {text!r}"
        raise ConfigurationError(msg) from None


def as_json(value: Any) -> Any:
    """Return a value that JSON can represent: times as ISO 8601, bytes as hex digits, other values as their text."""
    if isinstance(value, datetime) or hasattr(value, "isoformat"):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
