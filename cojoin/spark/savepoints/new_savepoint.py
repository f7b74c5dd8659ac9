"""Writes a savepoint that no query has taken into its own directory, from the contents of its key groups.

The directory is leased while it is written. The note (``WrittenState``) comes first, then the rows of the state table,
the logs of file sources, the index of the snapshot, and last of all the description of the query, which makes the
directory a checkpoint. If the writer is killed before that, no query can begin with the directory, and the next call
writes it again.

The law of conservation holds in the state's header as in any state: of each input, the rows that came in are those that
are done, those that are buffered, and those that were rejected. One key group has the counters of rows done and
rejected, and each counts its own buffered rows, as after a rescaling.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import StorageLevel

from cojoin.checkpoints.identity import WrittenState, check_free, delete_unfinished, describe_written
from cojoin.checkpoints.inspect.key_state import BUFFERS
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifest
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, snapshot_row
from cojoin.checkpoints.state_commits import Claim
from cojoin.checkpoints.state_table import StateTable
from cojoin.engine.batch_report import BatchReport, merge_reports, parse_report
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.operator_watermark import OperatorWatermark
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values import codec
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.session import spark_checkpoint
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_checkpoint import NOTHING_READ
from cojoin.session.workers import SharedPlaces, begun
from cojoin.storage.local_store import LocalStore
from cojoin.storage.place_tokens import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.identity import SourceDescription
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.plan import Plan
    from cojoin.storage.store import Store

WatermarkLike: TypeAlias = datetime | int | Mapping[str, datetime | int | None] | None
"""A time up to which an input is complete: a datetime with a time zone or epoch milliseconds, for both or by input."""


def moments(declared: WatermarkLike, inputs: Sequence[InputSpec]) -> list[int | None]:
    """Return the watermark that a user declares for each input, in epoch milliseconds; None where there is none."""
    names = [spec.name for spec in inputs]
    if isinstance(declared, (datetime, int)) or declared is None or not hasattr(declared, "keys"):
        return [_millis(declared)] * 2
    for name in declared:
        if name not in names:
            msg = f"write_state: watermark: the query has no input {name!r}{did_you_mean(str(name), names)}"
            raise ConfigurationError(msg)
    return [_millis(declared.get(name)) for name in names]


def _millis(declared: Any) -> int | None:
    if declared is None:
        return None
    if isinstance(declared, datetime) and declared.tzinfo is not None:
        # By whole numbers: a float has too few digits for some microseconds.
        whole = declared.replace(microsecond=0)
        return int(whole.timestamp()) * 1000 + declared.microsecond // 1000
    if isinstance(declared, int) and not isinstance(declared, bool) and -(1 << 63) <= declared < (1 << 63) - 1:
        return declared
    msg = (
        f"write_state: watermark: expected a datetime with a time zone, epoch milliseconds, or a dict of these by "
        f"input, got {declared!r}"
    )
    raise ConfigurationError(msg)


def new_watermark(
    plan: Plan,
    declared: Sequence[int | None],
    largest: Sequence[int | None] = (None, None),
    former: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the watermarks of a state, as the header has them; a ConfigurationError if one would go back.

    ``declared`` are the inputs' watermarks in epoch milliseconds, and ``largest`` the largest timestamps of their rows
    in the state; None keeps those of ``former``, the state that this one follows.
    """
    watermark = OperatorWatermark([spec.watermark for spec in plan.inputs], plan.time)
    if former is not None:
        watermark.restore(former)
    for spec, input_watermark, until, newest in zip(plan.inputs, watermark.inputs, declared, largest, strict=True):
        now = input_watermark.snapshot()
        if until is not None:
            if until < now["merge"]["current"]:
                msg = (
                    f"write_state: watermark: that of input {spec.name!r} is at {now['merge']['current']} in the state "
                    f"that this one follows, and can't go back to {until} (epoch milliseconds)"
                )
                raise ConfigurationError(msg)
            now["merge"]["current"] = until
        seen = max(NONE if newest is None else newest, NONE if until is None else until)
        if seen > input_watermark.max_timestamp():
            # Under the name of an input's only partition, which has no separate watermark, and holds nothing back.
            now["largest"][ONE_PARTITION] = seen
        input_watermark.restore(now)
    snapshot = watermark.snapshot()
    if former is not None:
        # A strategy that has no idleness now forgets since when partitions are silent; the state keeps it.
        for mine, old in zip(snapshot["inputs"], former["inputs"], strict=True):
            mine["silent_since"], mine["never_spoke"] = old["silent_since"], old["never_spoke"]
    return snapshot


def group_headers(header: Mapping[str, Any], rows: Mapping[int, Mapping[str, int]]) -> dict[int, str]:
    """Return each key group's header as JSON, from that of all together and from the rows of each table by key group.

    The first key group gets the counters.
    """
    nothing: dict[str, Any] = {"rows_in": 0, "done": 0, "late_applied": 0, "rejected": {}}
    headers = {}
    for group, tables in rows.items():
        counts = []
        for side in (0, 1):
            own = dict(header["counts"][side]) if group == 0 else dict(nothing)
            buffered = _buffered(tables, side)
            counts.append(own | {"rows_in": own["done"] + buffered + sum(own["rejected"].values())})
        rows_out = header["rows_out"] if group == 0 else 0
        headers[group] = json.dumps({**header, "counts": counts, "rows_out": rows_out, "saved": None})
    return headers


def _buffered(tables: Mapping[str, int], side: int) -> int:
    return sum(tables.get(name, 0) for name, (owner, _) in BUFFERS.items() if owner == side)


def written_report(
    batch_id: int,
    names: tuple[str, str],
    operator: Operator | None,
    header: Mapping[str, Any],
    rows: Mapping[int, Mapping[str, int]],
    sizes: Mapping[int, int],
    former: BatchReport | None = None,
) -> BatchReport:
    """Return the report of a written state, from the header of all key groups together.

    ``rows`` has the rows of each table and ``sizes`` the bytes of the content, by key group. ``operator`` has the
    header loaded; without it, watermarks and partitions are those of ``former``, the report of the state that this one
    follows.
    """
    whole: Counter[str] = Counter()
    for counts in rows.values():
        whole.update(counts)
    inputs = []
    for side in (0, 1):
        own, buffered = header["counts"][side], _buffered(whole, side)
        rows_in = own["done"] + buffered + sum(own["rejected"].values())
        inputs.append({**own, "rows_in": rows_in, "buffered": buffered})
    details = {}
    if "versions" in whole:
        details["versions_in_force"] = whole["versions"]
    if "timers" in whole:
        details |= {"timers": whole["timers"] + whole.get("processing_timers", 0), "timers_not_fired": 0}
    by_group = {str(group): size for group, size in sorted(sizes.items())}
    if operator is None:
        assert former is not None
        report = former.as_dict()
        report["inputs"] = [before | own for before, own in zip(report["inputs"], inputs, strict=True)]
        report |= {"details": details, "state_bytes": sum(sizes.values()), "state_bytes_by_key_group": by_group}
        # The former batch's large key may be one that is taken out.
        return parse_report(report | {"segment_bytes_written": 0, "large_key": None})
    report = operator.report() | {"inputs": inputs, "details": details, "key_group": 0, "emitted": {}}
    merged = merge_reports(batch_id, names, [{**report, "state_bytes": sum(sizes.values())}]).as_dict()
    return parse_report(merged | {"state_bytes_by_key_group": by_group})


_CONTROL_SOURCE = "2"
"""The number of the control input among a query's sources; its messages stay in its own checkpoint."""


@dataclass(frozen=True)
class Positions:
    """The positions at which the sources and outputs of a query that begins with a savepoint continue.

    ``query_id`` is the id of the query whose outputs are continued, or a new one. ``manifest`` is the one that is
    followed, None where nothing was read and written; ``files`` is its checkpoint, with the logs of the file sources.
    """

    query_id: str
    sources: Sequence[SourceDescription]
    manifest: Manifest | None = None
    files: Store | None = None

    def of(self, report: BatchReport) -> Manifest:
        """Return the manifest of a savepoint with these positions."""
        if self.manifest is None:
            return Manifest(self.query_id, report, [NOTHING_READ] * 3, {}, {})
        # The control input, the runs and the segments are the other checkpoint's alone.
        return replace(
            self.manifest,
            report=report,
            offsets=[*self.manifest.offsets[:-1], NOTHING_READ],
            logs={number: log for number, log in self.manifest.logs.items() if number != _CONTROL_SOURCE},
            durations_ms={},
            epoch=0,
            segments=(),
            described=0,
            called=None,
            previous=None,
        )


@dataclass(frozen=True)
class GroupFacts:
    """The tasks' statistics, with the rows of each table and the bytes by key group, and faulty rows by fault."""

    rows: Mapping[int, Mapping[str, int]]
    sizes: Mapping[int, int]
    statistics: Mapping[int, Mapping[str, Any]]
    faults: Mapping[str, int]


@dataclass(frozen=True)
class NewSavepoint:
    """A savepoint that is about to be written to a directory; ``query`` is the description of the query for it."""

    spark: SparkSession
    files: Store
    note: WrittenState
    query: Mapping[str, Any]
    positions: Positions

    def write(
        self,
        contents: DataFrame,
        headers: Mapping[int, str],
        report: BatchReport,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the savepoint from ``key_group int, content binary`` of all key groups, and their headers as JSON.

        ``check`` raises an error where the savepoint must not count; it is called right before it does. A
        CheckpointError means that the directory holds something else, or that another process writes into it.
        """
        files = self.files
        check_free(files, self.note.by)
        is_local = isinstance(files, LocalStore) and adapter_of(self.spark).has_other_hosts
        places = SharedPlaces([Place("checkpoint", files.root.removeprefix("file:"))]) if is_local else None
        with begun(places, self.spark, to_the_end=True):
            self._write(contents, headers, report, check)

    def _write(
        self, contents: DataFrame, headers: Mapping[int, str], report: BatchReport, check: Callable[[], None]
    ) -> None:
        files, manifest = self.files, self.positions.of(report)
        lease = Lease.acquire(files)
        try:
            check_free(files, self.note.by)
            self.note.write(files)
            delete_unfinished(files)
            rows = _snapshot_rows(contents, headers, report.batch_id)
            self._write_logs(manifest.offsets, lease)
            lease.check()
            table, claim = StateTable(self.spark, files), Claim.of_run(lease.epoch, report.batch_id)
            taken = table.write(
                rows, manifest, "savepoint", len(headers), remembered=False, claim=claim, check=lease.check
            )
            if taken is None:
                msg = f"{files.named}: not all key groups were written; write the state again"
                raise CheckpointError(msg)
            check()
            lease.check()
            describe_written(files, self.positions.query_id, self.query, self.positions.sources)
        finally:
            lease.release()

    def _write_logs(self, offsets: Sequence[str], lease: Lease) -> None:
        """Write the logs of the file sources up to the offsets."""
        origin = self.positions.files
        if origin is None:
            return
        interval = spark_checkpoint.compact_interval(self.spark)
        for number, (source, offset) in enumerate(zip(self.positions.sources, offsets, strict=False)):
            if source is None or source["format"] == "delta" or offset == NOTHING_READ:
                continue
            position = json.loads(offset)
            if position.keys() == {"logOffset"}:
                entries, last = spark_checkpoint.source_entries(origin, number), int(position["logOffset"])
                spark_checkpoint.write_source_log(
                    self.files, number, entries, last, interval=interval, check=lease.check
                )


def _snapshot_rows(contents: DataFrame, headers: Mapping[int, str], batch_id: int) -> DataFrame:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                _, tables = codec.decode(content.as_buffer().to_pybytes())
                row, _ = snapshot_row(group, batch_id, json.loads(headers[group]), tables)
                yield from row.to_batches()

    return contents.select("key_group", "content").mapInArrow(for_workers(rows), spark_schema(STATE_SCHEMA))


def keep(contents: DataFrame) -> DataFrame:
    """Return contents that are computed once, since they are checked before any of them is written."""
    return contents.persist(StorageLevel.DISK_ONLY)


def compute_facts(contents: DataFrame, key_groups: int) -> GroupFacts:
    """Compute contents (``CONTENT_DDL``), and return the tasks' statistics; all key groups must be in them once."""
    rows = contents.selectExpr("key_group", "statistics", "length(content) AS size").collect()
    if sorted(row.key_group for row in rows) != [*range(key_groups)]:
        msg = f"the state has the key groups {sorted(row.key_group for row in rows)}, expected all of {key_groups}"
        raise CheckpointError(msg)
    statistics = {row.key_group: json.loads(row.statistics) for row in sorted(rows, key=lambda row: int(row.key_group))}
    faults: dict[str, int] = {}
    for own in statistics.values():
        for why, count in own["faults"].items():
            faults[why] = faults.get(why, 0) + count
    counts = {group: own["rows"] for group, own in statistics.items()}
    return GroupFacts(counts, {row.key_group: row.size for row in rows}, statistics, faults)
