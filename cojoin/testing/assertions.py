"""Assertions on an output: its expected rows are a text table, or those of captured keys.

A failure shows the difference. Of captured keys the rows of each output are compared in their order, with their event
times, and the rejected rows with their reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.capture.captured_keys import CapturedKey, OutcomeRow, Outcomes, read_captured, replay, time_to_json
from cojoin.engine.display import cells, difference
from cojoin.engine.values.json_values import row_from_json, row_to_json
from cojoin.engine.values.rows import dump_json
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.testing.harness import Harness
from cojoin.testing.harness_tables import header_of, parse_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.functions import OutputTag
    from cojoin.engine.local.key_group import Rejected


def assert_output(
    actual: Harness | Sequence[Any],
    expected: str,
    *,
    tag: OutputTag | str | None = None,
    schema: Any = None,
    any_order: bool = False,
) -> None:
    """Assert that an output has exactly the rows of a text table.

    ``cojoin.testing.harness_tables`` describes the format of the table.

    Args:
        actual: A harness, of which the whole main output is compared; or rows, such as ``harness.output[2:]``.
        expected: The table. Columns that its header leaves out are not compared.
        tag: The side output of the harness to compare in place of the main output, as an ``OutputTag`` or its id.
        schema: The columns of the rows as DDL, a ``StructType`` or an Arrow schema; required for rows, and not allowed
            for a harness.
        any_order: Whether to ignore the order of the rows.

    Raises:
        AssertionError: The rows differ: ``-`` marks a missing row, ``+`` an extra one.
        ConfigurationError: ``schema`` is missing for rows or given for a harness, ``tag`` is given for rows, or the
            tag is not declared.
        SchemaError: The table can't be read.

    >>> assert_output([("a", 1), ("b", 2)], '''
    ...     id | visits
    ...     a  | 1
    ...     b  | 3
    ... ''', schema="id string, visits long")
    Traceback (most recent call last):
        ...
    AssertionError: the output differs: - is missing, + is too much
      id | visits
      ---+-------
      a  | 1
    - b  | 3
    + b  | 2
    """
    columns, rows = _rows(actual, tag, schema)
    wanted_rows = parse_table(expected, columns)
    wanted_names = header_of(expected)
    positions = [columns.names.index(name) for name in wanted_names]
    got = [cells([row[position] for position in positions]) for row in rows]
    wanted = [cells(row) for row in wanted_rows]
    if any_order:
        got, wanted = sorted(got), sorted(wanted)
    differences = difference(wanted_names, wanted, got)
    if differences is not None:
        msg = f"the output differs: - is missing, + is too much\n{differences}"
        raise AssertionError(msg)


def _rows(actual: Harness | Sequence[Any], tag: OutputTag | str | None, schema: Any) -> tuple[pa.Schema, Sequence[Any]]:
    if isinstance(actual, Harness):
        if schema is not None:
            msg = "schema: a harness has its own; leave it out"
            raise ConfigurationError(msg)
        return actual.schema_of(tag), actual.output if tag is None else actual.side_output(tag)
    if schema is None or tag is not None:
        msg = "expected schema=, and no tag=, for rows that are not a harness's"
        raise ConfigurationError(msg)
    columns = as_schema(schema, "schema")
    return columns, [tuple(row[name] for name in columns.names) if isinstance(row, dict) else row for row in actual]


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
            test: The path of the test file, ``__file__``; the captured rows are in the file next to it that has the
                same name and ends with ``.json``.

        Raises:
            ConfigurationError: The file does not exist, or ``cojoin.testing.capture`` did not write it.
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
        """Replay a key's rows, and assert that the output is the captured one.

        Args:
            key: One of ``keys``.
            harness: A new harness with the function or the join under test, whose inputs have the captured columns and
                make no watermarks of their own. A key with a state starts at the state's time, whatever the harness's
                ``processing_time``.

        Raises:
            AssertionError: Rows differ: ``-`` marks a captured row that is missing, ``+`` one that came instead.
            ConfigurationError: The key was not captured.
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
            got = replay(run, captured.batches, captured.state, processing_time=now)
        differences = list(_differences(captured.expected, got, harness))
        if differences:
            covers = f" ({', '.join(captured.covers)})" if captured.covers else ""
            msg = "\n\n".join([f"key {key}{covers}: - was captured and is missing, + came instead", *differences])
            raise AssertionError(msg)


def _differences(wanted: Outcomes, got: Outcomes, harness: Harness) -> Iterator[str]:
    yield from _compared("the output", wanted.output, got.output, harness.schema_of())
    for name in dict.fromkeys([*wanted.side_outputs, *got.side_outputs]):
        schema = harness.schema_of(name) if name in got.side_outputs else None
        sides = (wanted.side_outputs.get(name, ()), got.side_outputs.get(name, ()))
        yield from _compared(f"the side output {name!r}", *sides, schema)
    columns = ["event time", "input", "reason", "watermark", "row"]
    rejected = [[_rejected_cells(each) for each in side.rejected] for side in (wanted, got)]
    table = difference(columns, rejected[0], rejected[1], context=_CONTEXT)
    if table is not None:
        yield f"the rejected rows differ:\n{table}"


def _compared(
    subject: str, wanted: Sequence[OutcomeRow], got: Sequence[OutcomeRow], schema: pa.Schema | None
) -> Iterator[str]:
    if _texts(wanted) == _texts(got):
        return
    names = ["row"]
    if schema is not None and all(each.row.keys() == set(schema.names) for each in wanted):
        names = schema.names
        tables = [[_row_cells(each, schema, subject) for each in rows] for rows in (wanted, got)]
    else:
        # The columns are no longer those that were captured.
        tables = [
            [_as_cells([time_to_json(each.timestamp), dict(each.row)]) for each in rows] for rows in (wanted, got)
        ]
    table = difference(["event time", *names], tables[0], tables[1], context=_CONTEXT)
    if table is not None:
        yield f"{subject} differs:\n{table}"


def _texts(rows: Sequence[OutcomeRow]) -> list[str]:
    return [dump_json([each.timestamp, each.row]) for each in rows]


def _row_cells(timed: OutcomeRow, schema: pa.Schema, subject: str) -> tuple[str, ...]:
    # Reading each value by its type makes 1 and 1.0 in a column of doubles equal, if someone has edited the file.
    values = row_from_json(timed.row, schema, subject)
    again = row_to_json(tuple(values.values()), schema, sort_maps=True)
    return _as_cells([time_to_json(timed.timestamp), *again.values()])


def _rejected_cells(row: Rejected) -> tuple[str, ...]:
    times = time_to_json(row.timestamp), time_to_json(row.watermark)
    return _as_cells([times[0], row.input, row.reason, times[1], dict(row.row)])


def _as_cells(values: Sequence[Any]) -> tuple[str, ...]:
    spelled = cells(values)
    nested = (isinstance(value, (dict, list)) for value in values)
    return tuple(
        dump_json(value) if is_nested else cell for value, is_nested, cell in zip(values, nested, spelled, strict=True)
    )
