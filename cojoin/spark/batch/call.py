"""The grouped function that runs one key group: in a stream with state in and out, and once on static inputs.

In a stream, ``StreamingCall`` runs inside ``applyInPandasWithState``: each micro-batch is one call per key group, which
restores the operator from the state value and stores it again, decoded and encoded as a whole. On static inputs,
``StaticCall`` runs inside ``applyInArrow``: once, to the end of time.

A call takes packed rows, which are serialized as Arrow IPC messages (``packing``). Among them is the control input:
rows of the driver, with watermarks, the end of input, or restored state. A call emits only rows of ``(kind, payload)``.
A payload is an Arrow message of output, rejected or side-output rows, an Arrow message of this key group's row of the
snapshot when one is due, or the call's statistics as JSON.

The first call of a restored query starts with the state from the control input. If processing time matters, every key
group sets a timeout, so that it is called in the next batch even without rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cojoin.checkpoints.snapshot_row import SnapshotCadence, snapshot_row
from cojoin.engine.callbacks import UserFrames
from cojoin.engine.input_spec import stamped
from cojoin.engine.key_groups import group_labels
from cojoin.engine.local.key_group import KeyGroup, without_garbage_collection
from cojoin.engine.operator import REJECTED, Batch
from cojoin.engine.state.named_files import NamedFiles
from cojoin.engine.state.segments import SegmentContext
from cojoin.engine.values import codec
from cojoin.engine.values.codec import binary_column, read_message, write_messages
from cojoin.engine.values.hashes import add_digests, rows_digest
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError
from cojoin.spark.batch.batch_facts import BatchFacts, batch_facts, check_places, check_state
from cojoin.spark.batch.control_input import LoadedRows, RestoredState, is_restored_state
from cojoin.spark.batch.packing import CONTROL_TAG, LOADED_TAG, read_control
from cojoin.spark.batch.written_files import CallFiles, FileTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cojoin.engine.operator import Emission
    from cojoin.engine.plan import Plan
    from cojoin.engine.state.segments import SegmentStore
    from cojoin.engine.time.control_rows import Control

EMITTED_DDL = "kind tinyint, payload binary"
STATE_DDL = "state binary"
SNAPSHOT = -1
"""The kind of a key group's row of the snapshot."""

STATISTICS = 0
"""The kind of a call's statistics; the kinds of the outputs start at 1."""

_ROWS_OF_PIECE, _BYTES_OF_PIECE = 1 << 16, 16 << 20

_EMITTED_SCHEMA = pa.schema([("kind", pa.int8()), ("payload", pa.binary())])


class StreamingCall:
    """Runs one key group's part of a micro-batch inside ``applyInPandasWithState``.

    Args:
        plan: The operation and its inputs.
        resumed_at: The ids of the first micro-batches after a restart.
        cadence: When a snapshot is due.
        segments: The store of flushed segments; None keeps all rows in the state value.
        facts_setting: The session setting that carries the ``BatchFacts`` (Spark Connect); None where Spark's local
            properties do.
    """

    def __init__(
        self,
        plan: Plan,
        resumed_at: frozenset[int] = frozenset(),
        cadence: SnapshotCadence | None = None,
        segments: SegmentStore | None = None,
        facts_setting: str | None = None,
    ) -> None:
        self._plan, self._segments, self._facts_setting = plan, segments, facts_setting
        self._resumed_at = resumed_at
        self._cadence = cadence or SnapshotCadence()
        self._numbers = {label: number for number, label in enumerate(group_labels(plan.key_groups))}
        self._outputs = dict(plan.outputs)

    def __call__(self, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        """Restore the operator, run the batch, store the operator's state, and yield rows of ``(kind, payload)``.

        ``key`` has the label of the key group, ``frames`` the packed rows, and ``state`` is Spark's ``GroupState``.
        """
        facts = batch_facts(self._facts_setting)
        check_places(facts.places)
        stamp = (facts.batch_id, state.getCurrentProcessingTimeMs()) if self._plan.stamps_rejected else None
        emitted = _Emitted(self._outputs, facts.files, stamp, self._plan.emitted_columns)
        try:
            # Spark would show the frames of cojoin and not those of the user's function.
            with UserFrames(), without_garbage_collection():
                yield from self._run(key, frames, state, facts, emitted)
            emitted.files.keep()
        finally:
            emitted.files.remove()

    def _run(
        self, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any, facts: BatchFacts, emitted: _Emitted
    ) -> Iterator[pd.DataFrame]:
        started = time.perf_counter()
        running = KeyGroup(self._plan, self._numbers[int(key[0])])
        group, operator = running.number, running.operator
        now, batch_id = state.getCurrentProcessingTimeMs(), facts.batch_id
        if self._segments is not None:
            operator.segmenting = SegmentContext(self._segments, self._plan.segments, group, batch_id)
        expected = facts.state
        options = self._plan.segments if self._segments is not None else None
        most_bytes = None if options is None else options.slice_bytes
        with running, RestoredState(int(key[0]), expected.get("query_id"), self._plan.inputs, most_bytes) as restored:
            if state.exists:
                header, tables = codec.decode(state.get[0])
                check_state(header.get(codec.WRITTEN), group, expected)
                operator.load(header, tables)
            elif expected.get("called") is not None:
                check_state(None, group, expected)
            packed = (
                (tag, payload) for frame in frames for tag, payload in zip(frame["tag"], frame["payload"], strict=True)
            )
            batch, row_bytes = _unpack_batch(self._plan, packed, restored, batch_id)
            if restored and state.exists:
                msg = (
                    f"key group {group} has a state already, and a restored one was read: a file in control/ of the "
                    f"checkpoint is not the one that was written; put the checkpoint back from a backup"
                )
                raise CheckpointError(msg)
            if restored:
                restored.load_into(operator, keeps_counts=group == 0)
            resumed = batch_id in self._resumed_at or bool(restored)
            batch = replace(
                batch, processing_time=now, resumed=resumed, holds=facts.holds, snapshots=facts.loads.snapshots
            )
            yield from emitted.frames(running.process(batch))
            header, tables, written = operator.flush()
            saved, content_batch_id = header["saved"], None
            # A drained query can't continue, so it needs no snapshot.
            is_due = operator.watermark.status() != "finished" and self._cadence.is_due(saved, batch_id, now)
        if restored or is_due:
            row, header["saved"] = snapshot_row(group, batch_id, header, tables)
            content_batch_id = header["saved"]["content_batch_id"]
            yield _frame(SNAPSHOT, write_messages(row))
        elif saved is None:
            # Until the first snapshot, the interval counts from the batch that began the state.
            header["saved"] = {"batch_id": batch_id - 1, "time": now}
        header[codec.WRITTEN] = [group, batch_id, expected.get("query_id")]
        encoded, segments = codec.encode(header, tables), NamedFiles.of(header).files()
        state.update((encoded,))
        if self._plan.needs_clock and self._plan.has_timeouts and operator.watermark.status() != "finished":
            # All key groups must be called in the next batch, as only all of them together make up its report.
            state.setTimeoutDuration(1)
        names = {segment.name for segment in segments}
        unnamed = [] if operator.segmenting is None else sorted({*operator.segmenting.written} - names)
        statistics = {
            **running.report(len(encoded) + sum(segment.bytes for segment in segments)),
            "segments": sorted(names),
            **({"unnamed": unnamed} if unnamed else {}),
            "segment_bytes_written": written,
            "call_ms": round(1000 * (time.perf_counter() - started), 1),
            "digests": emitted.digests,
            "row_bytes": row_bytes,
            "content_batch_id": content_batch_id,
            "saved": {name: header["saved"][name] for name in ("batch_id", "time")},
            "loads": facts.loads.as_dict()["rows"],
        }
        yield _frame(STATISTICS, [json.dumps(statistics).encode()])


class _Emitted:
    """A call's emissions: many rows of an output at once go to a file of this call, all others are messages.

    Args:
        outputs: The kind and the columns of each output, by name.
        places: Where the call may write the rows of some outputs (``BatchFacts.files``).
        stamp: The micro-batch and its processing time, which rejected rows get; None leaves them as they are.
        columns: The columns of those outputs that are limited to some, by name.
    """

    def __init__(
        self,
        outputs: Mapping[str, tuple[int, pa.Schema]],
        places: Mapping[int, Mapping[str, str]],
        stamp: tuple[int, int] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._stamp, self._columns = stamp, columns or {}
        self.digests: dict[str, int] = {}
        self._kinds = {name: kind for name, (kind, _) in outputs.items()}
        schemas = dict(outputs.values())
        self.files = CallFiles(
            {kind: FileTarget(place["folder"], schemas[kind], place["compression"]) for kind, place in places.items()}
        )

    def frames(self, emissions: Iterable[Emission]) -> Iterator[pd.DataFrame]:
        """Yield rows of ``(kind, payload)``; files are complete at the end."""
        for emission in emissions:
            kind, table = self._kinds[emission.kind], emission.table
            if emission.kind in self._columns:
                table = table.select(list(self._columns[emission.kind]))
            digest = rows_digest(table)
            self.digests[emission.kind] = add_digests(self.digests.get(emission.kind, 0), digest)
            if self._stamp is not None and emission.kind == REJECTED:
                # Without the stamp in the digest, a batch that an earlier version has written is the same batch.
                table = stamped(table, *self._stamp)
            if not self.files.take(kind, table):
                yield _frame(kind, write_messages(table))
        for kind, line in self.files.complete():
            yield _frame(kind, [line])


class StaticCall:
    """Runs one key group's rows once, to the end of time, inside ``applyInArrow``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kinds = {name: kind for name, (kind, _) in plan.outputs.items()}

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Run the operator over all packed rows of a key group; return rows of ``(kind, payload)``."""
        tags, payloads = packed.column("tag").to_pylist(), packed.column("payload")
        with UserFrames(), without_garbage_collection(), KeyGroup(self._plan) as running:
            batch, _ = _unpack_batch(self._plan, zip(tags, payloads, strict=True))
            emissions = running.process(Batch(batch.rows, batch.controls, end_of_input=True))
            return self._result(emissions, lambda: json.dumps({"inputs": running.operator.report()["inputs"]}))

    def _result(self, emissions: Iterable[Emission], statistics: Callable[[], str]) -> pa.Table:
        """Return what the call returns; ``statistics`` are there once all emissions were taken."""
        emitted = [
            (self._kinds[emission.kind], payload)
            for emission in emissions
            for payload in write_messages(emission.table)
        ]
        emitted.append((STATISTICS, pa.py_buffer(statistics().encode())))
        kinds, outputs = [kind for kind, _ in emitted], [payload for _, payload in emitted]
        return pa.Table.from_arrays([pa.array(kinds, pa.int8()), binary_column(outputs)], schema=_EMITTED_SCHEMA)


class StaticRows(StaticCall):
    """As ``StaticCall``, but returns the rows of one output in its columns, and a last row with the statistics alone.

    ``statistics`` is the name of their column, the last one, of texts.
    """

    def __init__(self, plan: Plan, name: str, statistics: str) -> None:
        super().__init__(plan)
        self._name, self._own = name, plan.outputs[name][1]
        self._schema = pa.schema([*self._own, pa.field(statistics, pa.string())])

    def _result(self, emissions: Iterable[Emission], statistics: Callable[[], str]) -> pa.Table:
        pieces: list[pa.RecordBatch] = []
        for emission in emissions:
            if emission.kind == self._name:
                rows = emission.table.combine_chunks()
                table = pa.Table.from_arrays([*rows.columns, pa.nulls(rows.num_rows, pa.string())], schema=self._schema)
                # Each piece crosses to the JVM as one Arrow batch.
                most = max(1, rows.num_rows * _BYTES_OF_PIECE // max(1, rows.nbytes))
                pieces += table.to_batches(max_chunksize=min(most, _ROWS_OF_PIECE))
        last = [*(pa.nulls(1, field.type) for field in self._own), pa.array([statistics()], pa.string())]
        return pa.Table.from_batches([*pieces, pa.RecordBatch.from_arrays(last, schema=self._schema)])


def _unpack_batch(
    plan: Plan, packed: Iterable[tuple[int, Any]], restored: RestoredState | None = None, batch_id: int = -1
) -> tuple[Batch, list[int]]:
    """Return a call's rows, and each input's largest mean row size per message, in bytes.

    Messages with restored state go to ``restored``.
    """
    pieces: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    controls: list[Control] = []
    ended, row_bytes, loaded = False, [0, 0], LoadedRows(plan.right, batch_id, plan.loaded_schema)
    for tag, payload in packed:
        buffer = payload.as_buffer() if isinstance(payload, pa.Scalar) else pa.py_buffer(payload)
        if tag == CONTROL_TAG and restored is not None and is_restored_state(buffer):
            restored.add(buffer)
        elif tag == CONTROL_TAG:
            control = read_control(buffer.to_pybytes())
            ended |= control is None
            controls += [control] if control else []
        elif tag == LOADED_TAG:
            loaded.add(buffer)
        else:
            rows = read_message(buffer, plan.inputs[tag - 1].schema)
            pieces[tag - 1].append(rows)
            row_bytes[tag - 1] = max(row_bytes[tag - 1], rows.nbytes // rows.num_rows)
    load, rows_of_load = loaded.take()
    if plan.loaded_schema is not None:
        label = f"input {plan.right.name!r}"
        evolved = [evolve(pa.Table.from_batches([rows]), plan.right.schema, label) for rows in rows_of_load]
        rows_of_load = [rows for table in evolved for rows in table.to_batches()]
    pieces[1].extend(rows_of_load)
    row_bytes[1] = max([row_bytes[1], *(rows.nbytes // rows.num_rows for rows in rows_of_load)])
    left, right = (
        concat([spec.schema.empty_table(), *(pa.Table.from_batches([piece]) for piece in side)])
        for spec, side in zip(plan.inputs, pieces, strict=True)
    )
    return Batch((left, right), controls, end_of_input=ended, load=load), row_bytes


def _frame(kind: int, payloads: Iterable[pa.Buffer | bytes]) -> pd.DataFrame:
    contents = [payload.to_pybytes() if isinstance(payload, pa.Buffer) else payload for payload in payloads]
    frame: pd.DataFrame = pd.DataFrame({"kind": np.full(len(contents), kind, dtype=np.int8), "payload": contents})
    return frame
