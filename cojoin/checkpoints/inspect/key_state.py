"""The state of one key as Python values: buffered rows, versions, states and timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cojoin.engine.display import format_time, show_row, show_value
from cojoin.engine.keyed_state_backend import entry_of
from cojoin.engine.values.rows import Row, decode_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.inspect.state_rows import Found, Values

__all__ = [
    "BUFFERS",
    "DOMAINS",
    "PAIRED",
    "REJECTED",
    "STATE",
    "KeyState",
    "KeyTimer",
    "key_state",
    "plain",
]

BUFFERS: Mapping[str, tuple[int, str]] = {
    "held1": (0, "the watermark"),
    "waiting": (0, "a later version"),
    "left": (0, "rows to pair with"),
    "held2": (1, "the watermark"),
    "right": (1, "rows to pair with"),
}
"""The tables of buffered rows, each with the side of its input and what its rows wait for."""

REJECTED: Mapping[str, int] = {"rejected1": 0, "rejected2": 1}
"""The tables of rejected rows that replace others of a half-read commit, each with the side of its input."""

DOMAINS: Mapping[str, Literal["event_time", "processing_time"]] = {
    "timers": "event_time",
    "processing_timers": "processing_time",
}
"""The tables of timers, each with its time domain."""

PAIRED = frozenset({"left", "right"})
"""The tables whose last column says whether the row has matched."""

STATE = "state:"
"""The prefix of the tables of a function's states; their last column is the value."""

_SHOWN = 20


class KeyTimer(NamedTuple):
    """A registered timer."""

    domain: str
    """``"event_time"`` or ``"processing_time"``."""

    timestamp: int
    """The time at which it fires, in epoch milliseconds."""


@dataclass(frozen=True)
class KeyState:
    """The whole state of a key after a batch.

    Attributes:
        key: The key's values, by the column names of the left input.
        batch_id: The batch.
        watermark: The operator's watermark, in epoch milliseconds.
        buffered: The buffered rows of each input, by the input's name.
        versions: The rows of the right input that later rows can match.
        states: A function's states by name: the value, list, dict or accumulator; only those that the key has.
        timers: A function's timers, the earliest first.
        left_out: The tables of which only some rows are included, each with its total number of rows.
    """

    key: Mapping[str, Any]
    batch_id: int
    watermark: int
    buffered: Mapping[str, Sequence[Row]]
    versions: Sequence[Row] = ()
    states: Mapping[str, Any] = field(default_factory=dict)
    timers: Sequence[KeyTimer] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether the key has any state."""
        return bool(any(self.buffered.values()) or self.versions or self.states or self.timers)

    def __str__(self) -> str:
        lines = [f"key {show_row(self.key)} after batch {self.batch_id}, watermark {format_time(self.watermark)}"]
        for name, rows in self.buffered.items():
            if rows:
                lines += [f"  {name} that wait", *_listed([show_row(row.as_dict()) for row in rows])]
        if self.versions:
            lines += ["  versions in force", *_listed([show_row(row.as_dict()) for row in self.versions])]
        if self.states:
            lines += ["  states", *(f"    {name}: {show_value(value)}" for name, value in self.states.items())]
        if self.timers:
            lines += [
                "  timers",
                *_listed([f"{each.domain.replace('_', ' ')} {format_time(each.timestamp)}" for each in self.timers]),
            ]
        if not self:
            lines.append("  it has nothing")
        lines += [f"  (not all of the {count:,} rows of {name} are here)" for name, count in self.left_out.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def as_dict(self) -> dict[str, Any]:
        """Return the key's state as plain Python values, for JSON."""
        return {
            "key": dict(self.key),
            "batch_id": self.batch_id,
            "watermark": self.watermark,
            "buffered": {name: [plain(row) for row in rows] for name, rows in self.buffered.items()},
            "versions": [plain(row) for row in self.versions],
            "states": {name: plain(value) for name, value in self.states.items()},
            "timers": [timer._asdict() for timer in self.timers],
            "left_out": dict(self.left_out),
        }


def key_state(state: QueryState, key: Values, found: Mapping[str, Found]) -> KeyState:
    """Return the state of a key from the rows that were found in the stored tables.

    Args:
        state: The query's state.
        key: The key's values, by the column names of the left input.
        found: The rows found, by stored table.
    """
    buffered: dict[str, list[Row]] = {spec.name: [] for spec in state.inputs}
    for name, (side, _) in BUFFERS.items():
        if name in found:
            rows = found[name].rows
            # The last column of an interval join's rows says whether they have matched.
            shown = rows.select(rows.column_names[:-1]) if name in PAIRED else rows
            buffered[state.inputs[side].name] += decode_rows(shown, beyond=str)
    timers = [
        KeyTimer(domain, timestamp)
        for name, domain in DOMAINS.items()
        if name in found
        for timestamp in found[name].rows.column(found[name].rows.num_columns - 1).to_pylist()
    ]
    states = {
        name.removeprefix(STATE): entry_of(each.rows)
        for name, each in found.items()
        if name.startswith(STATE) and each.rows.num_rows
    }
    versions = decode_rows(found["versions"].rows, beyond=str) if "versions" in found else []
    left_out = {name: each.total for name, each in found.items() if each.total > each.rows.num_rows}
    return KeyState(
        key,
        state.batch_id,
        state.watermark,
        buffered,
        versions,
        states,
        sorted(timers, key=lambda timer: (timer.timestamp, timer.domain)),
        left_out,
    )


def plain(value: Any) -> Any:
    """Return a value with all its rows, nested ones too, as dicts."""
    if isinstance(value, Row):
        return {name: plain(item) for name, item in value.as_dict().items()}
    if isinstance(value, dict):
        # JSON can't have keys of other types.
        named = {key if isinstance(key, (str, int, bool)) else show_value(key): item for key, item in value.items()}
        return {key: plain(item) for key, item in named.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _listed(texts: Sequence[str]) -> list[str]:
    more = [f"    ... and {len(texts) - _SHOWN:,} more"] if len(texts) > _SHOWN else []
    return [*(f"    {text}" for text in texts[:_SHOWN]), *more]
