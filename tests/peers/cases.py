"""The cases of ``as_of.jsonl``: as-of joins of other libraries' own tests, as values, and how cojoin runs them.

Each line is a case: the rows of both sides, what is asked, what the peer answers, and how that compares. What the peer
answers was computed by the peer itself, in the version that the first line names, with a number added to each row.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import cojoin as cj

__all__ = ["Case", "Pairs", "connect", "header", "load", "pairs_of", "run", "table"]

Pairs = list[list[Any]]
"""The numbers of the left and the right row of each row of a result, in the order of the left ones. The right one is
null without a match, and the reason if the left row was rejected."""

FILE = Path(__file__).with_name("as_of.jsonl")
_UTC = pa.timestamp("us", "UTC")
_SIMPLE = {str(each): each for each in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16())}
_SIMPLE |= {str(each): each for each in (pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.string())}
_SIMPLE |= {"float": pa.float32(), "double": pa.float64(), "bool": pa.bool_(), "date32[day]": pa.date32()}
_SIMPLE |= {f"duration[{unit}]": pa.duration(unit) for unit in ("s", "ms", "us", "ns")}


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        id: Its name.
        origin: The test of the peer's that it comes from, and what is special in it.
        left: The left side's columns by their names, each with its type and its values.
        right: The right side's columns.
        on: The columns that the peer orders by, left and right.
        key: The columns that must be equal; without any, all rows have the same key.
        options: The options of ``asof_join``.
        peer: What the peer answers: pairs of rows, or its error as a text.
        verdict: ``holds``, ``differs``, ``refused``, or ``absent`` for what cojoin has no word for.
        reason: Why it differs, is refused or absent.
        axis: How the peer's order becomes event time: of numbers, one is a ``second`` or a ``nanosecond``; ``UTC`` is
            the zone of times without one. Empty leaves the columns as they are.
        ordered: Whether the right rows' order in the table is given as ``sequence``.
        ours: What cojoin answers instead; None where it is the peer's answer.
        says: What cojoin's error says.
    """

    id: str
    origin: str
    left: dict[str, list[Any]]
    right: dict[str, list[Any]]
    on: list[str]
    key: list[list[str]]
    options: dict[str, Any]
    peer: Pairs | str
    verdict: str
    reason: str = ""
    axis: str = ""
    ordered: bool = False
    ours: Pairs | None = None
    says: str = ""


@dataclass(frozen=True)
class Header:
    """The first line: the peers' versions, and how many of their cases are left out, by reason."""

    versions: dict[str, str]
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)


def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def header() -> Header:
    return Header(**_lines()[0])


def load() -> list[Case]:
    """Return all cases; a side that several have is in the file once."""
    sides: dict[str, Any] = {}
    cases = []
    for line in _lines()[1:]:
        if "side" in line:
            sides[line["side"]] = line["columns"]
            continue
        named = {name: sides[line[name]] for name in ("left", "right") if isinstance(line[name], str)}
        cases.append(Case(**line | named))
    repeated = [name for name, count in Counter(each.id for each in cases).items() if count > 1]
    assert not repeated, repeated
    return cases


def table(columns: dict[str, list[Any]]) -> pa.Table:
    """Return a side as an Arrow table."""
    return pa.table({name: _column(dtype, values) for name, (dtype, values) in columns.items()})


def _column(dtype: str, values: list[Any]) -> pa.Array:
    if dtype.startswith("timestamp"):
        unit, _, zone = dtype.removeprefix("timestamp[").removesuffix("]").partition(", tz=")
        numbers = [None if each is None else int(np.datetime64(each, unit).astype("int64")) for each in values]
        return pa.array(numbers, pa.timestamp(unit, zone or None))
    if dtype.startswith("date"):
        return pa.array([each and date.fromisoformat(each) for each in values], pa.date32())
    if dtype in ("float", "double"):
        return pa.array([None if each is None else float(each) for each in values], _SIMPLE[dtype])
    if dtype.startswith("category"):
        return pa.array(values).dictionary_encode()
    if dtype.startswith("decimal"):
        from decimal import Decimal

        precision, scale = map(int, dtype[dtype.index("(") + 1 : -1].split(","))
        return pa.array([None if each is None else Decimal(each) for each in values], pa.decimal128(precision, scale))
    return pa.array(values, _SIMPLE.get(dtype))


def _as_time(column: Any, axis: str) -> Any:
    if axis == "UTC":
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    if pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us")).cast(_UTC)
    if pa.types.is_duration(column.type):
        return column.cast(pa.duration("us")).cast(pa.int64()).cast(_UTC)
    if axis == "nanosecond":
        return column.cast(pa.int64()).cast(pa.timestamp("ns", "UTC"))
    return pc.round(pc.multiply(column.cast(pa.float64()), 1e6)).cast(pa.int64()).cast(_UTC)


def _meaning(dtype: pa.DataType, axis: str) -> dict[str, Any]:
    """Return the arguments of an input that say what times of a type mean; none where they are made timestamps."""
    if axis in ("UTC", "midnight") and (pa.types.is_date(dtype) or (pa.types.is_timestamp(dtype) and dtype.tz is None)):
        return {"time_zone": "UTC"}
    return {"time_unit": "s"} if axis == "second" and pa.types.is_integer(dtype) else {}


def connect(case: Case, made: Any = None) -> cj.ConnectedInputs:
    """Connect the two sides; ``made`` turns an Arrow table into what is joined, such as a DataFrame of Spark's."""
    inputs = []
    for name, columns, on, key in zip(("left", "right"), (case.left, case.right), case.on, case.key, strict=True):
        rows = table(columns)
        position = rows.column_names.index(on)
        # ``createDataFrame`` makes timestamps of the session's zone of times without one.
        meaning = _meaning(rows.schema.field(on).type, case.axis) if made is None else {}
        if case.axis and not meaning:
            rows = rows.set_column(position, on, _as_time(rows.column(on), case.axis))
        rows = rows.append_column(f"{name}_row", pa.array(range(rows.num_rows), pa.int64()))
        sequence = "right_row" if case.ordered and name == "right" else ()
        source = rows if made is None else made(rows)
        inputs.append(cj.Input(source, key=key, event_time=on, name=name, sequence=sequence, **meaning))
    return cj.connect(*inputs)


def joined(case: Case, made: Any = None) -> cj.Joined:
    """Return the join that a case asks for."""
    options = dict(case.options)
    if "tolerance_us" in options:
        options["tolerance"] = timedelta(microseconds=options.pop("tolerance_us"))
    return connect(case, made).asof_join(**options, suffixes=("", "_of_right"))


def in_one_line(case: Case) -> Pairs:
    """Run a case by ``cojoin.asof_join``, which keeps the left rows that can't match."""
    inputs = connect(case)._execution
    left, right = inputs.rows
    (one, two), options = inputs.inputs, dict(case.options)
    if "tolerance_us" in options:
        options["tolerance"] = timedelta(microseconds=options.pop("tolerance_us"))
    meaning: dict[str, Any] = {}
    for spec in (one, two):
        described = {} if spec.axis is None else spec.axis.describe()
        meaning |= {name: value for name, value in described.items() if name != "clock_change"}
    keys = {"left_by": list(one.key), "right_by": list(two.key)} if one.key else {}
    on = (str(one.event_time), str(two.event_time))
    return pairs_of(cj.asof_join(left, right, on=on, **keys, **meaning, **options, suffixes=("", "_of_right")))


def run(case: Case) -> Pairs:
    """Run a case in memory."""
    done = joined(case).run()
    rejected = done.tables["rejected"].to_pylist()
    lost = [[json.loads(each["row"])["left_row"], each["reason"]] for each in rejected if each["input"] == "left"]
    return pairs_of(done.tables["output"], lost)


def pairs_of(rows: pa.Table, lost: Pairs = ()) -> Pairs:  # type: ignore[assignment]
    found = [[row["left_row"], row["right_row"]] for row in rows.select(["left_row", "right_row"]).to_pylist()]
    return sorted([*found, *lost], key=lambda pair: pair[0])
