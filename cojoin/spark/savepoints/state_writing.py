"""Writes a state from DataFrames as a savepoint: the parts are checked, packed by key group, and then written.

Nothing is written before all columns, types and rows are checked. The DataFrames are read once: the packed rows stay on
the executors' disks until they are written. (Flink: the State Processor API's ``SavepointWriter``.)
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.checkpoint import Snapshot
from cojoin.checkpoints.identity import WrittenState, check_free, describe_query, described_at, read_query
from cojoin.checkpoints.inspect.key_state import STATE
from cojoin.checkpoints.inspect.query_state import state_manifest
from cojoin.checkpoints.query_changes import check_evolution
from cojoin.engine import rescaling
from cojoin.errors import CheckpointError, ConfigurationError, FunctionError
from cojoin.session.sessions import open_store
from cojoin.spark.savepoints.new_savepoint import (
    NewSavepoint,
    Positions,
    WatermarkLike,
    compute_facts,
    group_headers,
    keep,
    moments,
    new_watermark,
    written_report,
)
from cojoin.spark.savepoints.state_packing import Part, packed_contents
from cojoin.spark.savepoints.state_parts import GivenParts, PartShape, StateTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.engine.operator import Operator
    from cojoin.engine.plan import Plan
    from cojoin.spark.bound_input import BoundInput


@dataclass(frozen=True)
class StateParts:
    """The parts of a state that a user passes; None leaves one as it is in the state that is followed, or empty.

    Buffered rows and the watermark are by input, states by name; None as a value of ``states`` leaves a state out.
    ``from_existing`` is the state that is followed.
    """

    versions: DataFrame | None = None
    buffered: Mapping[str, DataFrame] = field(default_factory=dict)
    states: Mapping[str, DataFrame | None] = field(default_factory=dict)
    timers: DataFrame | None = None
    watermark: WatermarkLike = None
    from_existing: QueryState | None = None


def write_parts(spark: SparkSession, path: str, plan: Plan, bound: Sequence[BoundInput], parts: StateParts) -> Snapshot:
    """Write a state as a savepoint; see ``cojoin.write_state``."""
    files = open_store(spark, path)
    files.check_place()
    check_free(files, "write_state")
    existing = parts.from_existing
    description = describe_query(
        plan.operation.describe(), plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock
    )
    positions = _positions(spark, plan, bound, existing, description)
    declared = moments(parts.watermark, plan.inputs)
    operator = plan.create_operator()
    try:
        header, target = _begin(plan, operator, declared, existing)
    finally:
        with contextlib.suppress(FunctionError):
            operator.close()
    chosen = _parts(target, parts, existing)
    _check_kept(plan, header, chosen)
    contents = keep(packed_contents(spark, chosen, target.schemas, plan.inputs, plan.key_groups))
    try:
        facts = compute_facts(contents, plan.key_groups)
        if facts.faults:
            raise _faulty(facts.faults)
        if existing is None:
            # As if these versions had come, and were in force since.
            header["counts"][1]["done"] = sum(each.get("versions", 0) for each in facts.rows.values())
        batch_id = 0 if existing is None else existing.batch_id
        header = header | {"watermark": new_watermark(plan, declared, _largest(facts.statistics), header["watermark"])}
        loaded = plan.create_operator()
        loaded.load_parts(header, {}, keeps_counts=True)
        names = (plan.left.name, plan.right.name)
        report = written_report(batch_id, names, loaded, header, facts.rows, facts.sizes)
        origin = None if existing is None else open_store(spark, existing.path).root
        note = WrittenState("write_state", origin, batch_id)
        savepoint = NewSavepoint(spark, files, note, description, positions)
        savepoint.write(contents, group_headers(header, facts.rows), report)
    finally:
        contents.unpersist()
    return Snapshot(path, batch_id)


def _positions(
    spark: SparkSession,
    plan: Plan,
    bound: Sequence[BoundInput],
    existing: QueryState | None,
    description: Mapping[str, Any],
) -> Positions:
    """Return the positions of the sources: their beginnings, or those in another checkpoint."""
    if existing is None:
        sources = []
        for spec, own in zip(plan.inputs, bound, strict=True):
            if own.source is None:
                msg = (
                    f"write_state: input {spec.name!r} is a DataFrame, which has no positions from which a query "
                    f"could continue; give cojoin.Input a source: cojoin.kafka.source, cojoin.sources.delta or files"
                )
                raise ConfigurationError(msg)
            sources.append(own.source.recognised(spark, f"input {spec.name!r}", None))
        return Positions(str(uuid.uuid4()), sources)
    origin = open_store(spark, existing.path)
    stored = read_query(origin)
    check_evolution(described_at(stored, existing.batch_id), description, origin.named)
    manifest = state_manifest(origin, existing)
    return Positions(manifest.query_id, stored["sources"], manifest, origin)


def _begin(
    plan: Plan, operator: Operator, declared: Sequence[int | None], existing: QueryState | None
) -> tuple[dict[str, Any], StateTarget]:
    """Return the header that the state begins with, and the operator's shape; its function is opened for that."""
    header, _ = operator.parts()
    if existing is not None:
        former = rescaling.merged_header(existing.stored.headers)
        if former["operator"] != header["operator"]:
            msg = f"write_state: the state is of a {former['operator']}, the query runs a {header['operator']}"
            raise CheckpointError(msg)
        header = dict(former)
    else:
        header["processing_time"] = int(1000 * time.time())
    header["watermark"] = new_watermark(plan, declared, former=None if existing is None else header["watermark"])
    operator.load_parts(header, {}, keeps_counts=True)
    operator.check_states()
    backend = getattr(operator, "state_backend", None)
    descriptors = {} if backend is None else backend.descriptors()
    schemas = {name: table.schema for name, table in operator.parts()[1].items()}
    described = plan.operation.describe()
    title = f"function {described['function']}" if backend is not None else described["operator"].replace("_", " ")
    by_clock = bool(getattr(plan.operation, "sets_processing_time_timers", False))
    watermark = operator.watermark.current()
    return header, StateTarget(plan.inputs, schemas, descriptors, watermark, by_clock, title)


def _parts(target: StateTarget, parts: StateParts, existing: QueryState | None) -> list[Part]:
    """Return all parts of the state: the user's, and the others of the state that is followed."""
    checked, parts_of_state = GivenParts(target), []
    replaced: set[str] = set()
    if parts.versions is not None:
        parts_of_state.append(checked.versions(parts.versions))
        replaced.add("versions")
    for name, frame in parts.buffered.items():
        part = checked.buffered(name, frame)
        parts_of_state.append(part)
        # An operator that has no rows of a kind may have had them before.
        replaced |= {"held1", "waiting", "left"} if part.shape.table == "0" else {"held2", "right"}
    for name, state in parts.states.items():
        replaced.add(STATE + name)
        if state is not None:
            parts_of_state.append(checked.state(name, state))
    if parts.timers is not None:
        parts_of_state.append(checked.timers(parts.timers))
        replaced |= {"timers", "processing_timers"}
    if existing is not None:
        parts_of_state += [_kept(target, existing, name) for name in existing.stored.tables if name not in replaced]
    return parts_of_state


def _kept(target: StateTarget, existing: QueryState, name: str) -> Part:
    """Return a table of the state that is followed, as it is."""
    schema = existing.stored.tables[name].schema
    keys = tuple(schema.names.index(each) for each in rescaling.key_columns(name, target.inputs))
    frame = existing.stored.numbered(name)
    spreading = tuple(map(schema.names.index, rescaling.spreading_columns(name, target.inputs, schema)))
    return Part(frame, PartShape(f"table {name!r}", "table", name, schema, schema, keys, spreading=spreading))


def _check_kept(plan: Plan, header: Mapping[str, Any], parts: Sequence[Part]) -> None:
    """Check, on the driver, that the tables that are taken as they are fit the query."""
    kept = {each.shape.table: each.shape.target.empty_table() for each in parts if each.shape.kind == "table"}
    operator = plan.create_operator()
    try:
        operator.load_parts(header, kept, keeps_counts=True)
        operator.check_states()
    finally:
        with contextlib.suppress(FunctionError):
            operator.close()


def _largest(statistics: Mapping[int, Mapping[str, Any]]) -> list[int | None]:
    """Return the largest timestamp of each input's rows in the state, in epoch milliseconds."""
    both = [[each["largest"][side] for each in statistics.values()] for side in (0, 1)]
    return [max((time for time in times if time is not None), default=None) for times in both]


def _faulty(faults: Mapping[str, int]) -> CheckpointError:
    listed = [f"{why} ({count:,} in all)" if count > 1 else why for why, count in sorted(faults.items())]
    more = [f"and {len(listed) - 5} more"] if len(listed) > 5 else []
    return CheckpointError(f"write_state: {'; '.join([*listed[:5], *more])}. Nothing was written")
