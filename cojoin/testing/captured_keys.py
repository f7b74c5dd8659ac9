"""The captured keys of a test: read from the file beside it, replayed, and compared with what was captured.

``cojoin.testing.capture`` writes both files. A check replays a key's micro-batches on a new harness. It compares the
rows of each output in their order, with their event times, and the rejected rows with their reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.capture.captured_file import CapturedKey, Outcomes, TimedRow, read_captured, time_to_json
from cojoin.capture.key_replay import replay
from cojoin.engine.display import cells, difference
from cojoin.engine.values.json_values import row_from_json, row_to_json
from cojoin.engine.values.rows import dump_json
from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.local.key_group import Rejected
    from cojoin.testing.harness import Harness

__all__ = ["CapturedKeys"]

_CONTEXT = 2
"""How many equal rows a failure shows around each difference."""


@dataclass(frozen=True)
class CapturedKeys:
    """The captured keys of a test file, which ``cojoin.testing.capture`` has written.

    Attributes:
        inputs: The names of the left and of the right input.
        by_key: Each key's rows and outcome, by the key as text.

    >>> captured = CapturedKeys(("trades", "customers"), {"7": CapturedKey(("match",), (), Outcomes())})
    >>> captured.keys
    ['7']
    """

    inputs: tuple[str, str]
    by_key: Mapping[str, CapturedKey] = field(repr=False)

    @property
    def keys(self) -> list[str]:
        """The keys as texts, for ``pytest.mark.parametrize``."""
        return list(self.by_key)

    @classmethod
    def read(cls, test: str | Path) -> CapturedKeys:
        """Return the captured keys of a test.

        Args:
            test: The path of the test file, ``__file__``; the captured rows are in the file beside it that has the same
                name and ends with ``.json``.

        Raises:
            ConfigurationError: There is no such file, or ``cojoin.testing.capture`` did not write it.
        """
        path = Path(test).with_suffix(".json")
        try:
            return cls(*read_captured(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            msg = f"{path.name}: the captured rows of this test can't be read: {reason}; capture them again"
            raise ConfigurationError(msg) from error
        except ConfigurationError as error:
            msg = f"{path.name}: {error}"
            raise ConfigurationError(msg) from error

    def check(self, key: str, harness: Harness) -> None:
        """Replay a key's rows, and assert that what comes out is what was captured.

        Args:
            key: One of ``keys``.
            harness: A new harness with the function or the join under test, whose inputs have the captured columns and
                make no watermarks of their own.

        Raises:
            AssertionError: Rows differ: ``-`` marks a captured row that is missing, ``+`` one that came instead.
            ConfigurationError: There is no such key.
            SchemaError: A row does not fit the harness's columns.
            FunctionError: The function raised an error.
        """
        __tracebackhide__ = True  # pytest then shows the test and the message, without these lines
        if key not in self.by_key:
            msg = f"key {key!r} was not captured{did_you_mean(key, self.by_key)}"
            raise ConfigurationError(msg)
        captured = self.by_key[key]
        with harness:
            harness._check_ready()  # noqa: SLF001 - this and what follows are of the same kit
            run, now = harness._run, harness._now  # noqa: SLF001
            found = replay(run, captured.batches, captured.state, processing_time=now)
        told = list(_differences(captured.expected, found, harness))
        if told:
            covers = f" ({', '.join(captured.covers)})" if captured.covers else ""
            msg = "\n\n".join([f"key {key}{covers}: - was captured and is missing, + came instead", *told])
            raise AssertionError(msg)


def _differences(wanted: Outcomes, found: Outcomes, harness: Harness) -> Iterator[str]:
    yield from _compared("the output", wanted.output, found.output, harness.schema_of())
    for name in dict.fromkeys([*wanted.side_outputs, *found.side_outputs]):
        schema = harness.schema_of(name) if name in found.side_outputs else None
        sides = (wanted.side_outputs.get(name, ()), found.side_outputs.get(name, ()))
        yield from _compared(f"the side output {name!r}", *sides, schema)
    columns = ["event time", "input", "reason", "watermark", "row"]
    rejected = [[_rejected_cells(each) for each in side.rejected] for side in (wanted, found)]
    table = difference(columns, rejected[0], rejected[1], context=_CONTEXT)
    if table is not None:
        yield f"the rejected rows differ:\n{table}"


def _compared(
    what: str, wanted: Sequence[TimedRow], found: Sequence[TimedRow], schema: pa.Schema | None
) -> Iterator[str]:
    if _texts(wanted) == _texts(found):
        return
    names = ["row"]
    if schema is not None and all(each.row.keys() == set(schema.names) for each in wanted):
        names = schema.names
        tables = [[_row_cells(each, schema, what) for each in rows] for rows in (wanted, found)]
    else:
        # The columns are no longer those that were captured.
        tables = [
            [_as_cells([time_to_json(each.timestamp), dict(each.row)]) for each in rows] for rows in (wanted, found)
        ]
    table = difference(["event time", *names], tables[0], tables[1], context=_CONTEXT)
    if table is not None:
        yield f"{what} differs:\n{table}"


def _texts(rows: Sequence[TimedRow]) -> list[str]:
    return [dump_json([each.timestamp, each.row]) for each in rows]


def _row_cells(each: TimedRow, schema: pa.Schema, what: str) -> tuple[str, ...]:
    # Reading each value by its type makes 1 and 1.0 in a column of doubles equal, if someone has edited the file.
    values = row_from_json(each.row, schema, what)
    again = row_to_json(tuple(values.values()), schema, sort_maps=True)
    return _as_cells([time_to_json(each.timestamp), *again.values()])


def _rejected_cells(each: Rejected) -> tuple[str, ...]:
    times = time_to_json(each.timestamp), time_to_json(each.watermark)
    return _as_cells([times[0], each.input, each.reason, times[1], dict(each.row)])


def _as_cells(values: Sequence[Any]) -> tuple[str, ...]:
    spelled = cells(values)
    nested = (isinstance(value, (dict, list)) for value in values)
    return tuple(
        dump_json(value) if is_nested else cell for value, is_nested, cell in zip(values, nested, spelled, strict=True)
    )
