"""The comparison of two versions of a plan over Spark inputs, which are read and shuffled once for both versions.

A grouped function runs both versions of a plan over one key group, inside ``applyInArrow``, on the packed rows that
``StaticCall`` takes. It emits rows of ``(kind, payload)``. Kind 0 is the counts of all outputs as JSON; each kind from
1 on is one output, with its differing rows as Arrow messages. The emitted rows are persisted on the executors' disks
until the difference is garbage-collected, so that differing rows are read without running both versions again.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from cojoin.comparison.comparison import changed_settings
from cojoin.comparison.difference import Difference, OutputDifference, changed_columns, examples_of, sum_counts
from cojoin.comparison.key_group_difference import compare_key_group
from cojoin.engine.input import Input
from cojoin.engine.values.codec import binary_column, read_message, write_messages
from cojoin.engine.values.hashes import add_digests, rows_digest
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.tables import concat
from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_errors import explain
from cojoin.spark.batch.packing import CONTROL_TAG, read_control, unpack
from cojoin.spark.bound_input import BoundInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from cojoin.comparison.comparison import ComparedOutput, Comparison
    from cojoin.comparison.key_group_difference import KeyGroupDifference
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.time.control_rows import Control
    from cojoin.spark.spark_execution import SparkExecution

_DIFFERING_DDL = "kind int, payload binary"
_COUNTS = 0
"""The kind of the counts; the kinds from 1 on are the outputs in the order of ``Comparison.outputs``."""

_OTHER_CONTROL_TAG = -1
"""The tag of control rows that are for version b alone."""

_SCHEMA = pa.schema([("kind", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class _ComparingCall:
    """Runs two versions over one key group's rows; for the inputs in ``own``, version b has separate control rows."""

    comparison: Comparison
    own: frozenset[int] = frozenset()

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Compare both versions over all packed rows of a key group; return rows of ``(kind, payload)``."""
        specs = self.comparison.a.inputs
        tables = [[spec.schema.empty_table()] for spec in specs]
        a: list[Control] = []
        b: list[Control] = []
        for tag, payload in zip(packed.column("tag").to_pylist(), packed.column("payload"), strict=True):
            buffer = payload.as_buffer()
            if tag in (CONTROL_TAG, _OTHER_CONTROL_TAG):
                control = read_control(buffer.to_pybytes())
                assert control is not None
                if tag == CONTROL_TAG:
                    a.append(control)
                if (tag == _OTHER_CONTROL_TAG) == (control.input in self.own):
                    b.append(control)
            else:
                rows = read_message(buffer, specs[tag - 1].schema)
                tables[tag - 1].append(pa.Table.from_batches([rows]))
        left, right = (concat(each) for each in tables)
        return self._emitted(compare_key_group(self.comparison, (left, right), (a, b)))

    def _emitted(self, differences: dict[str, KeyGroupDifference]) -> pa.Table:
        counts = {name: [each.counts, each.by_column] for name, each in differences.items()}
        kinds, payloads = [_COUNTS], [json.dumps(counts).encode()]
        for kind, output in enumerate(self.comparison.outputs, start=1):
            rows = differences[output.name].rows
            messages = [*write_messages(rows)] if rows.num_rows else []
            kinds += [kind] * len(messages)
            payloads += [message.to_pybytes() for message in messages]
        return pa.Table.from_arrays([pa.array(kinds, pa.int32()), binary_column(payloads)], schema=_SCHEMA)


def spark_difference(comparison: Comparison, a: SparkExecution, b: SparkExecution) -> Difference:
    """Return the difference of two versions over Spark inputs; both process version a's rows.

    Raises ``ConfigurationError`` where an input has no end, or other rows in b than in a, and ``QueryFailedError``
    where a version fails.
    """
    inputs = [_history(one, other) for one, other in zip(a.bound, b.bound, strict=True)]
    # Both versions run in the same key groups, and to the end of time, so no row is rejected as too far ahead.
    left, right = (replace(each.spec, max_ahead_ms=None) for each in inputs)
    one = replace(comparison.a, left=left, right=right)
    left, right = (replace(spec, max_ahead_ms=None) for spec in comparison.b.inputs)
    other = replace(comparison.b, left=left, right=right, key_groups=one.key_groups)
    comparison = replace(comparison, a=one, b=other)
    own = [
        (mine, theirs)
        for mine, theirs in zip(inputs, comparison.b.inputs, strict=True)
        if _seen(mine.spec) != _seen(theirs)
    ]
    packed = [each.packed(one.key_groups) for each in inputs]
    for mine, theirs in own:
        # Version b's control rows over the same rows, which are not packed a second time.
        controls = _static(mine.frame, theirs, mine.tag).packed(one.key_groups).where(F.col("tag") == CONTROL_TAG)
        packed.append(controls.withColumn("tag", F.lit(_OTHER_CONTROL_TAG).cast("tinyint")))
    rows = reduce(lambda one, two: one.union(two), packed)
    call = _ComparingCall(comparison, frozenset(mine.tag for mine, _ in own))

    emitted = rows.groupBy("key_group").applyInArrow(for_workers(call), _DIFFERING_DDL).persist(StorageLevel.DISK_ONLY)
    try:
        return _difference(comparison, emitted)
    except BaseException as error:
        _release(emitted)
        if isinstance(error, PySparkException):
            raise QueryFailedError(explain(error)) from error
        raise


def _difference(comparison: Comparison, emitted: DataFrame) -> Difference:
    payloads = emitted.where(F.col("kind") == _COUNTS).select("payload").toArrow().column(0).to_pylist()
    counted = [json.loads(payload) for payload in payloads]
    kept = _Kept(emitted)
    outputs, examples = {}, []
    for kind, output in enumerate(comparison.outputs, start=1):
        groups = [each[output.name] for each in counted]
        counts = sum_counts(output, (each for each, _ in groups), (each for _, each in groups))
        rows = unpack(emitted, kind, output.differing)
        name = output.name
        outputs[name] = OutputDifference(name, counts, output.identity, _SparkRows(output, rows, kept))
        if counts.differing and comparison.examples:
            explained = rows.where(F.col("explanation").isNotNull()).toArrow().cast(output.differing)
            examples += examples_of(output, explained, comparison.examples)
    return Difference(outputs, changed_settings(comparison.a, comparison.b), tuple(examples))


class _Kept:
    """Keeps the differing rows persisted as long as it is referred to."""

    def __init__(self, emitted: DataFrame) -> None:
        weakref.finalize(self, _release, emitted).atexit = False


def _release(emitted: DataFrame) -> None:
    # If the session was stopped in the meantime, its persisted rows are already deleted.
    if not adapter_of(emitted.sparkSession).is_stopped:
        emitted.unpersist()


@dataclass(frozen=True)
class _SparkRows:
    """The differing rows of one output, as DataFrames."""

    output: ComparedOutput
    rows: DataFrame
    kept: _Kept

    def only_in(self, which: Literal["a", "b"]) -> DataFrame:
        """Return the rows that only one version has."""
        other = {"a": "b", "b": "a"}[which]
        return self._held(self.rows.where(F.col(other).isNull()).select(f"{which}.*"))

    def changed(self) -> DataFrame:
        """Return the rows that both versions have and that differ."""
        rows = self.rows.where(F.col("differs").isNotNull())
        columns = [F.col(".".join(map(back_quoted, path))).alias(name) for name, path in changed_columns(self.output)]
        return self._held(rows.select(*columns))

    def _held(self, frame: DataFrame) -> DataFrame:
        # Without the persisted rows, the DataFrame would run both versions again.
        frame._cojoin_kept = self.kept  # noqa: SLF001
        return frame


def _history(a: BoundInput, b: BoundInput) -> BoundInput:
    """Return version a's input as a static one, after a check that version b's has the same rows."""
    one = _opened(a)
    same_source = a.source is not None and a.source == b.source and a.frame.columns == b.frame.columns
    if a is not b and a.frame is not b.frame and not same_source:
        other = _opened(b)
        schema = a.spec.source_schema
        names = [back_quoted(name) for name in schema.names]
        mine, theirs = one.select(*names), other.select(*names)
        if not mine.sameSemantics(theirs):
            _check_rows(a.spec.name, mine, theirs, schema)
    return a if one is a.frame else _static(one, a.spec, a.tag)


def _opened(bound: BoundInput) -> DataFrame:
    return bound.static_frame(
        stream="a stream, which has no end; diff needs the same rows for both versions: read it with spark.read, or "
        "connect cojoin.sources.delta(...), or cojoin.kafka.source(..., to=...)",
        need="diff needs the same rows for both versions",
    )


def _static(frame: DataFrame, spec: InputSpec, tag: Any) -> BoundInput:
    """Return a static DataFrame as an input with the settings of ``spec``."""
    changes, known = spec.changes, spec.known
    span = (None, None) if changes is None else (changes.valid_from, changes.valid_to)
    span = span if known is None or known.valid_to is None else (spec.event_time, known.valid_to)
    declared = Input(
        frame,
        key=spec.key,
        event_time=None if span[0] else spec.event_time,
        name=spec.name,
        partition=spec.partition,
        sequence=spec.sequence,
        watermark=spec.watermark,
        max_ahead=None,
        late=spec.late,
        null_key=spec.null_key,
        valid_from=span[0],
        valid_to=span[1],
        **(spec.declared_axis.describe() if spec.declared_axis else {}),
        **(spec.known.arguments() if spec.known else {}),
    )
    bound = BoundInput(declared, spec.name, tag)
    # A DataFrame does not show that its rows are those of a change feed.
    bound.spec = replace(bound.spec, changes=changes, known=known)
    return bound


def _seen(spec: InputSpec) -> tuple[Any, ...]:
    """Return the settings that determine an input's control rows."""
    return spec.event_time, spec.declared_axis, spec.known, spec.partition, spec.watermark


def _check_rows(name: str, a: DataFrame, b: DataFrame, schema: pa.Schema) -> None:
    """Raise a ConfigurationError if two DataFrames do not have the same rows, by their digests."""
    one, other = _digest(a, schema), _digest(b, schema)
    if one != other:
        difference = (
            f"{one[0]:,} rows in a and {other[0]:,} in b" if one[0] != other[0] else "other rows in b than in a"
        )
        msg = (
            f"input {name!r} has {difference}; diff compares two versions over the same history, so connect both to "
            f"the same DataFrame or source"
        )
        raise ConfigurationError(msg)


def _digest(frame: DataFrame, schema: pa.Schema) -> tuple[int, int]:
    """Return the number of rows of a DataFrame, and their digest."""

    def digest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema)
            yield pa.RecordBatch.from_pydict({"rows": [rows.num_rows], "digest": [str(rows_digest(rows))]})

    # Columns are renamed by position: mapInArrow fails on names with a dot or a backtick.
    plain = frame.toDF(*(f"c{at}" for at in range(len(schema))))
    digests = plain.mapInArrow(for_workers(digest), "rows bigint, digest string").toArrow().to_pydict()
    return sum(digests["rows"]), add_digests(*map(int, cast("list[str]", digests["digest"])))
