"""The file of captured keys: JSON without code, one line for each row, so that a change is seen row by row.

It has the format's number, the inputs' names, and for each key which cases it covers, its micro-batches, and the rows
that came out, each with its event time. It is read as it was written, and anything else is refused.

A captured batch runs as one micro-batch: its rows, the watermarks that both inputs have reached, and the processing
time. So a row that was late is late again, and a timer fires between the same rows. The batch in which the inputs end
says the largest event time of all keys' rows, because a drain fires timers up to it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cojoin.engine.local.key_group import Rejected
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import dump_json
from cojoin.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "CapturedBatch",
    "CapturedKey",
    "Outcomes",
    "TimedRow",
    "read_captured",
    "time_from_json",
    "time_to_json",
    "write_captured",
]

_VERSION = 1
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times are written as UTC
_MILLISECOND = timedelta(milliseconds=1)
_END = "end of time"


@dataclass(frozen=True)
class CapturedBatch:
    """A micro-batch of one key.

    Attributes:
        rows: The rows of both inputs, left first, as JSON objects by column name, in the order in which they came.
        watermarks: Both inputs' watermarks after these rows, in epoch milliseconds; ``-2**63`` before the first.
        processing_time: The micro-batch's processing time in epoch milliseconds; 0 if it is unknown.
        last_event: If the inputs end after this batch, the largest event time of all rows, in epoch milliseconds; None
            if they do not end.
    """

    rows: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = ((), ())
    watermarks: tuple[int, int] = (NONE, NONE)
    processing_time: int = 0
    last_event: int | None = None

    def controls(self) -> list[Control]:
        """Return what the operator gets to know of time after these rows, besides what the rows themselves say."""
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
class TimedRow:
    """An emitted row: its event time in epoch milliseconds, None if it has none, and its JSON object."""

    timestamp: int | None
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Outcomes:
    """What a history of one key made a join or a function emit, each output in its own order.

    Attributes:
        output: The rows of the main output.
        side_outputs: The rows of each side output, by its tag's id.
        rejected: The rejected rows.
    """

    output: Sequence[TimedRow] = ()
    side_outputs: Mapping[str, Sequence[TimedRow]] = field(default_factory=dict)
    rejected: Sequence[Rejected] = ()


@dataclass(frozen=True)
class CapturedKey:
    """One captured key.

    Attributes:
        covers: The cases that its rows are an example of, such as ``"late"``.
        batches: Its micro-batches.
        expected: What they made come out.
        state: What was kept of the key before them, as a snapshot of a harness or stepper; None if there was nothing.
    """

    covers: tuple[str, ...]
    batches: tuple[CapturedBatch, ...]
    expected: Outcomes
    state: bytes | None = None


class _Line(str):
    """JSON that stands on one line."""

    __slots__ = ()


def write_captured(inputs: tuple[str, str], keys: Mapping[str, CapturedKey]) -> str:
    """Return the content of a file of captured keys.

    Args:
        inputs: The names of the left and of the right input.
        keys: The keys, by their texts.
    """
    made = {
        key: {
            "covers": _line(list(each.covers)),
            **({} if each.state is None else {"state": b64encode(each.state).decode()}),
            "batches": [_batch_to_json(batch, inputs) for batch in each.batches],
            **_outcomes_to_json(each.expected),
        }
        for key, each in keys.items()
    }
    return f"{_layout({'captured': _VERSION, 'inputs': _line(list(inputs)), 'keys': made})}\n"


def read_captured(text: str) -> tuple[tuple[str, str], dict[str, CapturedKey]]:
    """Return the inputs' names and the keys of a file.

    Raises:
        ConfigurationError: The text is not what ``write_captured`` returns.
    """
    try:
        found = json.loads(text)
        version = found["captured"]
        if version == _VERSION:
            left, right = found["inputs"]
            return (left, right), {key: _read_key(each, (left, right)) for key, each in found["keys"].items()}
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
    """Return the epoch milliseconds of what ``time_to_json`` returned; ``-2**63`` for None.

    Raises:
        SchemaError: It is no such text.

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
    found: dict[str, Any] = {}
    if batch.processing_time:
        found["processing_time"] = time_to_json(batch.processing_time)
    for place, name in enumerate(names):
        if batch.rows[place]:
            found[f"rows of {name}"] = [_line(row) for row in batch.rows[place]]
    found["watermarks"] = _line([time_to_json(each) for each in batch.watermarks])
    if batch.last_event is not None:
        found["end_of_input"] = _line({"last_event": time_to_json(batch.last_event)})
    return found


def _read_batch(found: dict[str, Any], names: Sequence[str]) -> CapturedBatch:
    left, right = (time_from_json(each) for each in found.pop("watermarks"))
    end = found.pop("end_of_input", None)
    clock = found.pop("processing_time", None)
    rows = found.pop(f"rows of {names[0]}", ()), found.pop(f"rows of {names[1]}", ())
    if found:
        msg = f"a batch has {next(iter(found))!r}, which is neither of the inputs {names[0]!r} and {names[1]!r}"
        raise ConfigurationError(msg)
    last_event = None if end is None else time_from_json(end["last_event"])
    return CapturedBatch(rows, (left, right), 0 if clock is None else time_from_json(clock), last_event)


def _outcomes_to_json(outcomes: Outcomes) -> dict[str, Any]:
    found: dict[str, Any] = {"output": _timed_to_json(outcomes.output)}
    if outcomes.side_outputs:
        found["side_outputs"] = {name: _timed_to_json(rows) for name, rows in outcomes.side_outputs.items()}
    if outcomes.rejected:
        found["rejected"] = [
            _line(
                {
                    "input": each.input,
                    "reason": each.reason,
                    "time": time_to_json(each.timestamp),
                    "watermark": time_to_json(each.watermark),
                    "row": each.row,
                }
            )
            for each in outcomes.rejected
        ]
    return found


def _timed_to_json(rows: Iterable[TimedRow]) -> list[_Line]:
    return [_line([time_to_json(each.timestamp), each.row]) for each in rows]


def _read_key(found: Mapping[str, Any], inputs: tuple[str, str]) -> CapturedKey:
    batches = tuple(_read_batch(dict(each), inputs) for each in found["batches"])
    beside = {name: [_read_timed(each) for each in rows] for name, rows in found.get("side_outputs", {}).items()}
    rejected = [
        Rejected(each["input"], each["reason"], each["row"], _time(each["time"]), _time(each["watermark"]))
        for each in found.get("rejected", ())
    ]
    outcomes = Outcomes([_read_timed(each) for each in found["output"]], beside, rejected)
    state = b64decode(found["state"], validate=True) if "state" in found else None
    return CapturedKey(tuple(found["covers"]), batches, outcomes, state)


def _read_timed(found: Any) -> TimedRow:
    timestamp, row = found
    return TimedRow(_time(timestamp), row)


def _time(text: str | None) -> int | None:
    return None if text is None else time_from_json(text)


def _line(value: Any) -> _Line:
    return _Line(dump_json(value))


def _layout(value: Any, depth: int = 0) -> str:
    """Return JSON of objects and lists over several lines, down to what stands on one line."""
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
