"""Captured keys: their file, which is JSON with one line a row, and their replay on a new run.

The file has the format's version, the inputs' names, and for each key the cases that it covers, its state, its
micro-batches, and its output rows with their event times. A file of another structure is refused.

A captured batch runs as one micro-batch: its rows, the watermarks that both inputs have reached, and the processing
time. So a row that was late is late again, and a timer fires between the same rows. The last batch has the largest
event time of all keys' rows, because a drain fires timers up to it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.engine.display import difference
from cojoin.engine.input_spec import controls_of
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.key_group import Rejected
from cojoin.engine.local.local_run import LocalRun, decode_states
from cojoin.engine.operator import OUTPUT
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.encoding import encode_input
from cojoin.engine.values.json_values import row_from_json, row_to_json
from cojoin.engine.values.rows import dump_json
from cojoin.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.capture.history import History
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.local.key_group import EmittedRow
    from cojoin.engine.plan import Plan


_VERSION = 1
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times are written as UTC
_MILLISECOND = timedelta(milliseconds=1)
_END = "end of time"


@dataclass(frozen=True)
class CapturedBatch:
    """A micro-batch of one key; its rows are JSON objects by column name, left input first, in the order of arrival.

    The watermarks are those of both inputs after these rows; ``-2**63`` stands for none. A processing time of 0 is
    unknown. ``last_event`` is the largest event time of all rows if the inputs end after this batch, else None. All
    times are epoch milliseconds.
    """

    rows: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = ((), ())
    watermarks: tuple[int, int] = (NONE, NONE)
    processing_time: int = 0
    last_event: int | None = None

    def controls(self) -> list[Control]:
        """Return control rows with the watermarks and the processing time, which the rows do not determine."""
        seen = {} if self.last_event is None else {ONE_PARTITION: self.last_event}
        return [
            Control(
                number,  # type: ignore[arg-type]
                seen,
                processing_time=self.processing_time,
                marks=dict.fromkeys(seen, NONE),
                watermarks={} if watermark == NONE else {ONE_PARTITION: watermark},
            )
            for number, watermark in enumerate(self.watermarks, start=1)
        ]


@dataclass(frozen=True)
class OutcomeRow:
    """An emitted row: its event time in epoch milliseconds, None if it has none, and its JSON object."""

    timestamp: int | None
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Outcomes:
    """The output of a join or a function for one key: each output in its order, side outputs by tag id."""

    output: Sequence[OutcomeRow] = ()
    side_outputs: Mapping[str, Sequence[OutcomeRow]] = field(default_factory=dict)
    rejected: Sequence[Rejected] = ()


@dataclass(frozen=True)
class CapturedKey:
    """One captured key: the cases that its rows are an example of, its micro-batches, and their output.

    The state is that of the key before these batches, as a snapshot of a harness or stepper; None if it had none.
    """

    covers: tuple[str, ...]
    batches: tuple[CapturedBatch, ...]
    expected: Outcomes
    state: bytes | None = None


class _Line(str):
    """JSON that stands on one line."""

    __slots__ = ()


def write_captured(inputs: tuple[str, str], keys: Mapping[str, CapturedKey]) -> str:
    """Return the content of a file of captured keys, which ``keys`` has by their texts; the left input is first."""
    made = {
        key: {
            "covers": _line(list(captured.covers)),
            **({} if captured.state is None else {"state": b64encode(captured.state).decode()}),
            "batches": [_batch_to_json(batch, inputs) for batch in captured.batches],
            **_outcomes_to_json(captured.expected),
        }
        for key, captured in keys.items()
    }
    return f"{_layout({'captured': _VERSION, 'inputs': _line(list(inputs)), 'keys': made})}\n"


def read_captured(text: str) -> tuple[tuple[str, str], dict[str, CapturedKey]]:
    """Return the inputs' names and the keys of a file; an error if ``write_captured`` can't have written it."""
    try:
        content = json.loads(text)
        version = content["captured"]
        if version == _VERSION:
            left, right = content["inputs"]
            return (left, right), {key: _read_key(each, (left, right)) for key, each in content["keys"].items()}
    except ConfigurationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"expected what cojoin.testing.capture writes ({type(error).__name__}: {error}); capture again"
        raise ConfigurationError(msg) from error
    msg = f"expected format {_VERSION} of captured rows, got {version!r}; capture again with this version of cojoin"
    raise ConfigurationError(msg)


def time_to_json(millis: int | None) -> str | None:
    """Return a time in epoch milliseconds as a text in UTC; None where there is none.

    >>> time_to_json(1_500), time_to_json(-(2**63))
    ('1970-01-01T00:00:01.500Z', None)
    """
    if millis is None or millis == NONE:
        return None
    if millis == END_OF_TIME:
        return _END
    try:
        return f"{(_EPOCH + millis * _MILLISECOND).isoformat(timespec='milliseconds')}Z"
    except OverflowError:
        return str(millis)


def time_from_json(text: str | None) -> int:
    """Return the epoch milliseconds of a text of ``time_to_json``; ``-2**63`` for None.

    >>> time_from_json("1970-01-01T00:00:01.500Z")
    1500
    """
    if text is None:
        return NONE
    try:
        if text == _END:
            return END_OF_TIME
        if not text.endswith("Z"):
            return int(text)
        return (datetime.fromisoformat(text.removesuffix("Z")) - _EPOCH) // _MILLISECOND
    except (TypeError, ValueError, AttributeError):
        msg = f"expected a time such as '2026-01-15T09:00:00.000Z', got {text!r}"
        raise SchemaError(msg) from None


def _batch_to_json(batch: CapturedBatch, names: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if batch.processing_time:
        values["processing_time"] = time_to_json(batch.processing_time)
    for side, name in enumerate(names):
        if batch.rows[side]:
            values[f"rows of {name}"] = [_line(row) for row in batch.rows[side]]
    values["watermarks"] = _line([time_to_json(each) for each in batch.watermarks])
    if batch.last_event is not None:
        values["end_of_input"] = _line({"last_event": time_to_json(batch.last_event)})
    return values


def _read_batch(values: dict[str, Any], names: Sequence[str]) -> CapturedBatch:
    left, right = (time_from_json(each) for each in values.pop("watermarks"))
    end = values.pop("end_of_input", None)
    clock = values.pop("processing_time", None)
    rows = _objects(values.pop(f"rows of {names[0]}", [])), _objects(values.pop(f"rows of {names[1]}", []))
    if values:
        msg = f"a batch has the entry {next(iter(values))!r}; expected the rows of {names[0]!r} and of {names[1]!r}"
        raise ConfigurationError(msg)
    last_event = None if end is None else time_from_json(end["last_event"])
    return CapturedBatch(rows, (left, right), 0 if clock is None else time_from_json(clock), last_event)


def _objects(rows: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of a file, after checking that they are a list of objects."""
    for row in [rows] if not isinstance(rows, list) else rows:
        if not isinstance(row, dict):
            msg = f"expected rows as JSON objects, got {row!r}"
            raise ConfigurationError(msg)
    return rows


def _outcomes_to_json(outcomes: Outcomes) -> dict[str, Any]:
    values: dict[str, Any] = {"output": _timed_to_json(outcomes.output)}
    if outcomes.side_outputs:
        values["side_outputs"] = {name: _timed_to_json(rows) for name, rows in outcomes.side_outputs.items()}
    if outcomes.rejected:
        values["rejected"] = [
            _line(
                {
                    "input": rejected.input,
                    "reason": rejected.reason,
                    "time": time_to_json(rejected.timestamp),
                    "watermark": time_to_json(rejected.watermark),
                    "row": rejected.row,
                }
            )
            for rejected in outcomes.rejected
        ]
    return values


def _timed_to_json(rows: Iterable[OutcomeRow]) -> list[_Line]:
    return [_line([time_to_json(each.timestamp), each.row]) for each in rows]


_ENTRIES = frozenset({"covers", "state", "batches", "output", "side_outputs", "rejected"})
"""The entries of a key."""


def _read_key(values: Mapping[str, Any], inputs: tuple[str, str]) -> CapturedKey:
    if unknown := sorted(values.keys() - _ENTRIES):
        msg = f"a key has the entry {unknown[0]!r}; expected {', '.join(sorted(_ENTRIES))}"
        raise ConfigurationError(msg)
    batches = tuple(_read_batch(dict(entry), inputs) for entry in values["batches"])
    side_outputs = {
        name: [_read_timed(entry) for entry in rows] for name, rows in values.get("side_outputs", {}).items()
    }
    entries = values.get("rejected", ())
    rows = _objects([entry["row"] for entry in entries])
    rejected = [
        Rejected(entry["input"], entry["reason"], row, _time(entry["time"]), _time(entry["watermark"]))
        for entry, row in zip(entries, rows, strict=True)
    ]
    outcomes = Outcomes([_read_timed(entry) for entry in values["output"]], side_outputs, rejected)
    state = b64decode(values["state"], validate=True) if "state" in values else None
    return CapturedKey(tuple(values["covers"]), batches, outcomes, state)


def _read_timed(pair: Any) -> OutcomeRow:
    timestamp, row = pair
    return OutcomeRow(_time(timestamp), *_objects([row]))


def _time(text: str | None) -> int | None:
    return None if text is None else time_from_json(text)


def _line(value: Any) -> _Line:
    return _Line(dump_json(value))


def _layout(value: Any, depth: int = 0) -> str:
    """Return JSON with objects and lists over several lines; a ``_Line`` stays on one line."""
    if isinstance(value, _Line):
        return value
    if not value or not isinstance(value, (dict, list)):
        return dump_json(value)
    inner = "  " * (depth + 1)
    if isinstance(value, dict):
        lines = [f"{dump_json(name)}: {_layout(item, depth + 1)}" for name, item in value.items()]
    else:
        lines = [_layout(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = f",\n{inner}".join(lines)
    return f"{opening}\n{inner}{body}\n{'  ' * depth}{closing}"


def replay(
    run: LocalRun, batches: Iterable[CapturedBatch], state: bytes | None = None, *, processing_time: int = 0
) -> Outcomes:
    """Process a key's captured batches in a new run with ``notes_rows``, and return their output.

    The run's inputs have the columns of the rows, and generate no watermarks themselves. ``state`` is the state before
    the first batch, as a snapshot of a harness or stepper. The clock starts at the state's time or, without a state, at
    ``processing_time`` in epoch milliseconds. It then follows the batches that have a processing time.
    """
    now = processing_time
    if state is not None:
        states, now, _ = decode_states(state)
        run.restore(states)
    rows: list[EmittedRow] = []
    rejected: list[Rejected] = []
    for number, batch in enumerate(batches):
        now = batch.processing_time or now
        left, right = (
            _table(batch_rows, spec, f"batch {number}: input {spec.name!r}")
            for batch_rows, spec in zip(batch.rows, run.plan.inputs, strict=True)
        )
        controls = [*controls_of((left, right), run.plan.inputs, now), *batch.controls()]
        ends = batch.last_event is not None
        output = run.process((left, right), controls, processing_time=now, end_of_input=ends)
        rows += [row for group in output.groups for row in group.rows()]
        rejected += [row for group in output.groups for row in group.rejected()]
    schemas = {OUTPUT: run.plan.output, **{tag.tag_id: tag.schema for tag in run.plan.side_outputs}}
    by_output: dict[str, list[OutcomeRow]] = {name: [] for name in schemas}
    for row in rows:
        by_output[row.output].append(
            OutcomeRow(row.timestamp, row_to_json(row.value, schemas[row.output], sort_maps=True))
        )
    return Outcomes(by_output.pop(OUTPUT), by_output, rejected)


def _table(rows: Sequence[Mapping[str, Any]], spec: InputSpec, where: str) -> pa.Table:
    values = [row_from_json(row, spec.schema, where) for row in rows]
    return encode_input(values, spec.schema, f"input {spec.name!r}")


def replay_key(
    history: History, emitted: Mapping[str, Sequence[Any]] | None, subject: str
) -> tuple[tuple[CapturedBatch, ...], Outcomes]:
    """Return a key's micro-batches and their output; batches are merged as far as the output stays the same.

    ``emitted`` is the output of the key in the run over all keys, by output name; None is not compared. If a function
    emits other rows for the key alone, ConfigurationError is raised, whose message starts with ``subject``.
    """
    changes = ""
    for batches in _cuts(history):
        outcomes = replay(_new_run(history.plan), batches, history.state)
        if emitted is None:
            return _checked_join(history, batches, outcomes)
        changes = _difference(emitted, outcomes)
        if not changes:
            return batches, outcomes
    msg = (
        f"{subject}: the output of this key alone differs from its output among all keys, so a test of the key would "
        f"prove nothing. The function depends on more than the key's rows: an attribute that keys share, the real "
        f"clock, or chance. Keep the attribute in keyed state, or take the time from ctx. Lines with - are of the run "
        f"over all keys, lines with + of the key alone:\n"
        f"{changes}"
    )
    raise ConfigurationError(msg)


def _cuts(history: History) -> Iterator[tuple[CapturedBatch, ...]]:
    """Yield three divisions of the rows: cut before late or rejected rows, at each batch with rows, at each batch."""
    judged = zip(history.places, history.late(), history.rejected(), strict=True)
    distinguished = [batch[late | rejected] for batch, late, rejected in judged]
    starts = {*np.concatenate(distinguished).tolist(), len(history.batches) - 1}
    yield history.captured_batches(starts)
    yield history.captured_batches()
    yield history.captured_batches(range(len(history.batches)))


def _checked_join(
    history: History, batches: tuple[CapturedBatch, ...], outcomes: Outcomes
) -> tuple[tuple[CapturedBatch, ...], Outcomes]:
    """Return a join's merged micro-batches and their output, or the unmerged ones if the output differs."""
    whole = history.captured_batches()
    if len(whole) == len(batches):
        return batches, outcomes
    expected = replay(_new_run(history.plan), whole, history.state)
    same = _sorted(expected) == _sorted(outcomes) and list(expected.rejected) == list(outcomes.rejected)
    return (batches, outcomes) if same else (whole, expected)


def _sorted(outcomes: Outcomes) -> list[str]:
    return sorted(dump_json([each.timestamp, each.row]) for each in outcomes.output)


def _new_run(plan: Plan) -> LocalRun:
    """Return a run as a harness creates it: its inputs are neither static tables nor change feeds."""
    return LocalRun(plan.with_inputs(static=False, refreshes=False, changes=None, reading=None), notes_rows=True)


def _difference(emitted: Mapping[str, Sequence[Any]], outcomes: Outcomes) -> str:
    by_output = {"output": outcomes.output, **outcomes.side_outputs}
    for name, rows in by_output.items():
        wanted = [(dump_json(row),) for row in emitted.get(name, ())]
        changes = difference([name], wanted, [(dump_json(each.row),) for each in rows], context=1)
        if changes is not None:
            return changes
    return ""


def name_of(plan: Plan) -> str:
    """Return the name of a function's class, or of a join."""
    operation: Any = plan.operation
    return type(operation.function if isinstance(operation, KeyedCoProcess) else operation).__name__
