"""Explains in sentences what happened to a row, and what a key waits for.

A row may be buffered, a version in force, emitted, or rejected. A row is none of these if it was not read yet, if an
inner join dropped it, or if a function processed it. The explanation is made from the state after one batch, the Delta
outputs as they are now, and their logs, which name the batch that wrote a row. Nothing is written, and the query may be
running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.checkpoint import open_files
from cojoin.checkpoints.inspect.findings import Explanation, Finding, Since, state_findings
from cojoin.checkpoints.inspect.key_state import BUFFERS, as_key, as_values, find
from cojoin.checkpoints.inspect.output_rows import EmittedRows
from cojoin.checkpoints.inspect.query_state import as_snapshot, read_state
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.stored_state import open_batch
from cojoin.engine.display import format_time, show_row
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.session.sessions import finds_session
from cojoin.session.spark_checkpoint import committed_batches
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.checkpoint import Moment, Snapshot
    from cojoin.checkpoints.inspect.key_state import MatchingRows, Values
    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.storage.locations import Location
    from cojoin.storage.store import Store

_SIDE_OF = {**{name: side for name, (side, _) in BUFFERS.items()}, "versions": 1}
_LIMIT = 20


@dataclass(frozen=True)
class _Question:
    """The question, as values by column of each input; None where an input was not asked for."""

    sides: tuple[Values | None, Values | None]
    key: Any
    is_row: bool
    text: str


@finds_session
def explain(
    spark: SparkSession,
    checkpoint: Location | Snapshot,
    *,
    key: Any = None,
    input: str | None = None,  # noqa: A002 - its name in every method
    row: Mapping[str, Any] | None = None,
    at: Moment = None,
) -> Explanation:
    """Explain what happened to a row of an input, or what a key waits for.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: The query's checkpoint directory, or a ``Snapshot``.
        key: A key; a tuple where it has several columns.
        input: The name of the row's input; with only a key, the input to which the explanation is limited.
        row: Values of some of the row's columns, such as ``{"trade_id": 17}``.
        at: The batch whose state is read, as in ``read_state``; outputs are always read as they are now.

    Returns:
        The findings, and notes on look-ups that failed.

    Raises:
        ConfigurationError: Neither a key nor a row is given, or an input or a column does not exist.
        FunctionError: A value is not of its column's type.
        CheckpointError: The directory is not a checkpoint, or it no longer has the state at that moment.

    Example:
        ``print(explain(spark, "/lake/_cojoin/enriched", input="trades", row={"trade_id": 17}))``
    """
    checkpoint = as_snapshot(checkpoint, at)
    files = open_files(spark, checkpoint.path)
    state = read_state(spark, checkpoint)
    question = _ask(state, key, input, row)
    rows = find(state.stored, _wanted(state, question), state.inputs)
    since = _since(spark, files, state, question, rows) if question.is_row else None
    findings = list(state_findings(state, rows, since, _LIMIT))
    notes = [f"only {_LIMIT} of {each.total:,} rows are shown" for each in rows.values() if each.total > _LIMIT]
    emitted = EmittedRows(spark, files, state)
    for side, values in enumerate(question.sides):
        if values is not None:
            findings += emitted.emitted(side, values, is_row=question.is_row)
    findings += emitted.rejected(question.sides)
    notes += emitted.notes
    if not findings:
        findings = [Finding("unknown", _nothing(state, question, Restoration.read(files)))]
    return Explanation(checkpoint.path, question.text, state.batch_id, state.watermark, findings, notes)


def _ask(state: QueryState, key: Any, name: str | None, row: Mapping[str, Any] | None) -> _Question:
    names = [spec.name for spec in state.inputs]
    if name is not None and name not in names:
        msg = f"input: the query has no input {name!r}{did_you_mean(name, names)}; it has {' and '.join(names)}"
        raise ConfigurationError(msg)
    if key is None and row is None:
        msg = "explain: expected a key, such as key=17, or a row, such as input='trades', row={'trade_id': 17}"
        raise ConfigurationError(msg)
    keys = [None if key is None else as_key(key, spec) for spec in state.inputs]
    if row is None:
        sides = [values if name in (None, spec.name) else None for spec, values in zip(state.inputs, keys, strict=True)]
        return _Question((sides[0], sides[1]), key, False, f"key {show_row(keys[0] or {}) or '()'}")
    if name is None:
        msg = f"explain: expected input= with row=, so that it is known whose row: {' or '.join(map(repr, names))}"
        raise ConfigurationError(msg)
    side = names.index(name)
    values = {**(keys[side] or {}), **as_values(row, state.inputs[side], "row")}
    text = f"row {show_row(values)} of {name!r}"
    return _Question((None, values) if side else (values, None), key, True, text)


def _wanted(state: QueryState, question: _Question) -> dict[str, Values]:
    """Return the values to search for in each table of the state; a function's states and timers only for a key."""
    by_table: dict[str, Values] = {}
    for name in state.stored.tables:
        values = question.sides[_SIDE_OF[name]] if name in _SIDE_OF else None
        if values is not None:
            by_table[name] = values
        elif name not in _SIDE_OF and question.key is not None:
            by_table[name] = state.key_values(name, question.key)
    return by_table


def _since(
    spark: SparkSession, files: Store, state: QueryState, question: _Question, rows: Mapping[str, MatchingRows]
) -> Since | None:
    """Return the batch since which a row waits, by a binary search through the states that Spark still has.

    None unless exactly one buffered row was found.
    """
    waiting = [name for name in rows if name in BUFFERS and rows[name].total]
    if len(waiting) != 1 or rows[waiting[0]].total != 1:
        return None
    side, _ = BUFFERS[waiting[0]]
    tables = {name: values for name, values in _wanted(state, question).items() if name in BUFFERS}
    batches = [each for each in _batches_with_rows(files, side) if each < state.batch_id]
    first, last, exact = 0, len(batches), False
    since = state.batch_id
    while first < last:
        middle = (first + last) // 2
        try:
            stored = open_batch(spark, files, batches[middle])
            waits = any(each.total for each in find(stored, tables, state.inputs).values())
        except CheckpointError:
            # Spark no longer has the state after this batch.
            first = middle + 1
            continue
        if waits:
            since, last = batches[middle], middle
        else:
            first, exact = middle + 1, True
    # Where Spark has no earlier state, the row may have come with this batch or before.
    return Since(since, exact or since == 0)


def _batches_with_rows(files: Store, side: int) -> list[int]:
    """Return the committed batches that read rows of an input, preceded by the first committed batch."""
    manifests, committed = Manifests(files), {*committed_batches(files)}
    batches: list[int] = []
    before = 0
    for batch_id in manifests.batch_ids():
        manifest = manifests.read(batch_id)
        if manifest is None:
            continue
        rows = manifest.report.inputs[side].rows_in
        if batch_id in committed and (rows != before or not batches):
            batches.append(batch_id)
        before = rows
    return batches


def _nothing(state: QueryState, question: _Question, restored: Restoration | None) -> str:
    if not question.is_row:
        return "It has no rows that wait, no state, and no row in any output that could be read."
    side = 1 if question.sides[0] is None else 0
    spec = state.inputs[side]
    why = ["it was not read yet" + _read_until(state, side)]
    if restored is not None:
        origin = without_login(restored.origin)
        why.append(
            f"the query of {origin!r} had read it by its batch {restored.batch_id}, after which this one began: "
            f"explain({origin!r}, ...) has the answer"
        )
    operator = state.query["operator"]
    if operator == "process":
        why.append("the function took it, which leaves no trace but its state and output")
    elif side == 0 and state.query["how"] == "inner":
        why.append("it had no match, and an inner join leaves such rows out")
    elif side == 1:
        why.append("a newer one superseded it, or its time is over")
    reasons = f"either {', or '.join(why)}" if why[1:] else why[0]
    return f"No such row of {spec.name!r} is buffered, emitted or rejected, as far as could be looked up: {reasons}."


def _read_until(state: QueryState, side: int) -> str:
    if state.report is None or state.report.inputs[side].max_timestamp == NONE:
        return ""
    return f" (the latest event time read so far is {format_time(state.report.inputs[side].max_timestamp)})"
