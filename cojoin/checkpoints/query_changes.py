"""The changes of a query that its checkpoint allows; the others are named in the words of the user's program.

The comparison covers all that the stored state depends on: the inputs' names, columns and keys, the operation, the
output's columns and the number of key groups. Watermark strategies, ``max_ahead``, triggers and sinks may change
between runs. With ``evolve=True`` nullable columns may have been added to the inputs and to the outputs; in rows of the
state they are null. A column that is gone, has another type, position or meaning, or has become a key is refused by its
name.

A new query that is restored from a checkpoint may differ more: in its number of key groups, by an added state or side
output, and by wider types (``schema_evolution``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.joins.output_columns import output_names
from cojoin.engine.values import schema_evolution
from cojoin.engine.values.arguments import duration_text
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.types import parse_schema, schema_to_ddl
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan

_ITS_OWN = {"operator", "output", "needs_clock", "inputs", "side_outputs"}
"""The entries of a description that are not compared as plain settings."""

_OF_INPUTS = {"name", "columns", "key", "changes"}

_DURATIONS = "_us"
"""The end of the names of settings in microseconds; the argument's name is without it."""


@dataclass(frozen=True)
class _Change:
    """A column that differs between the checkpoint and the query, and the cure.

    ``is_added``: it is a nullable column that the checkpoint does not have.
    """

    text: str
    cure: str
    is_added: bool = False


def check_same_query(
    stored: Mapping[str, Any], current: Mapping[str, Any], checkpoint: str, *, evolve: bool = False
) -> None:
    """Check that a checkpoint belongs to a query by the two descriptions; else name each difference.

    With ``evolve``, nullable columns may have been added; ``checkpoint`` names the checkpoint in the message.
    """
    differences = _differences(stored, current)
    if differences:
        msg = (
            f"{checkpoint} belongs to another query, or to another shape of this one: {'; '.join(differences)}. "
            f"Start this query with its own checkpoint, or make it the query that the checkpoint holds; where it "
            f"has evolved, restore_from= takes the state into a new checkpoint"
        )
        raise CheckpointError(msg)
    changes = list(_column_changes(stored, current))
    refused = [each for each in changes if not (each.is_added and evolve)]
    if not refused:
        return
    refusals = "; ".join(f"{each.text}; {each.cure}" for each in refused)
    msg = (
        f"{checkpoint}: the query's columns are not those of the checkpoint: {refusals}. "
        f"Start this query with its own checkpoint where that is not wanted"
    )
    raise CheckpointError(msg)


def check_output_meaning(stored: Mapping[str, Any], plan: Plan, checkpoint: str) -> None:
    """Check that the columns of a join's output are of the same input as before columns were added to the inputs.

    A name that both inputs have by now may be the other one's in the output, by the join's ``suffixes``. ``plan`` is
    the query's, whose columns were checked by ``check_same_query``.
    """
    if "function" in stored:
        return
    former = [
        replace(spec, schema=pa.schema([spec.schema.field(name) for name in parse_schema(ddl, label="columns").names]))
        for spec, ddl in zip(plan.inputs, (each["columns"] for each in stored["inputs"]), strict=True)
    ]
    then, now = (_sides(plan, *inputs) for inputs in (former, plan.inputs))
    for name, is_left in then.items():
        if now.get(name) == is_left:
            continue
        owner, other = (plan.inputs[place].name for place in ((0, 1) if is_left else (1, 0)))
        becomes = "would be gone" if name not in now else f"would be that of input {other!r}"
        msg = (
            f"{checkpoint}: the output's column {name!r} is of input {owner!r}, and with the columns that were "
            f"added it {becomes}; rename the added column, such as df.withColumnRenamed(...), or drop it from the input"
        )
        raise CheckpointError(msg)


def _sides(plan: Plan, left: InputSpec, right: InputSpec) -> dict[str, bool]:
    """Return the columns of a join's output, and whether each is of the left input."""
    of_left, of_right = output_names(replace(plan, left=left, right=right))
    return dict.fromkeys(of_left.values(), True) | dict.fromkeys(of_right.values(), False)


def added_columns(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the columns of each input that were added since a description was written, left first."""
    pairs = zip(stored["inputs"], current["inputs"], strict=True)
    return [tuple(_new_names(one["columns"], two["columns"])) for one, two in pairs]


def _new_names(stored: str, current: str) -> list[str]:
    known = set(parse_schema(stored, label="columns").names)
    return [name for name in parse_schema(current, label="columns").names if name not in known]


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return all differences but those of columns."""
    if stored.get("operator") != current.get("operator"):
        # Where the operations differ, nearly all else differs too.
        return [_changed_setting("the operation", stored.get("operator"), current.get("operator"))]
    names = [*stored, *(name for name in current if name not in stored)]
    differences = [
        _setting(name, stored.get(name), current.get(name))
        for name in names
        if name not in _ITS_OWN and stored.get(name) != current.get(name)
    ]
    tags, now = set(stored.get("side_outputs", {})), set(current.get("side_outputs", {}))
    differences += [f"side output {tag!r} is missing in the query" for tag in sorted(tags - now)]
    differences += [f"side output {tag!r} is missing in the checkpoint" for tag in sorted(now - tags)]
    for place, one, two in zip(("left", "right"), stored["inputs"], current["inputs"], strict=True):
        if one["name"] != two["name"]:
            differences.append(_changed_setting(f"the {place} input's name=", one["name"], two["name"]))
        differences += _input_differences(f"input {two['name']!r}", one, two)
    return differences


def _input_differences(label: str, stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    if stored["key"] != current["key"]:
        new = [name for name in current["key"] if name not in stored["key"]]
        gone = [name for name in stored["key"] if name not in current["key"]]
        became = [f"column {name!r} has become a key column" for name in new]
        became += [f"column {name!r} is not a key column any more" for name in gone]
        details = f": {', '.join(became)}" if became else ""
        yield f"{label}: {_changed_setting('key=', stored['key'], current['key'])}{details}"
    names = [*stored, *(name for name in current if name not in stored)]
    for name in names:
        if name not in _OF_INPUTS and stored.get(name) != current.get(name):
            yield f"{label}: {_setting(name, stored.get(name), current.get(name))}"
    one, two = stored.get("changes") or {}, current.get("changes") or {}
    for name in dict.fromkeys([*one, *two]):
        was, is_now = one.get(name), two.get(name)
        if isinstance(was, dict) and isinstance(is_now, dict):
            inner = dict.fromkeys([*was, *is_now])
            yield from (f"{label}: {_setting(key, was.get(key), is_now.get(key))}" for key in inner if was != is_now)
        elif was != is_now:
            yield f"{label}: {_setting(name, was, is_now)}"


def _setting(name: str, stored: Any, current: Any) -> str:
    """Return the difference of a setting, under the name of its argument."""
    if name == "function":
        return _changed_setting("the function", stored, current)
    if name.endswith(_DURATIONS):
        stored, current = (duration_text(each) if isinstance(each, int) else each for each in (stored, current))
    return _changed_setting(f"{name.removesuffix(_DURATIONS)}=", stored, current)


def _changed_setting(label: str, stored: Any, current: Any) -> str:
    return f"{label} is {stored!r} in the checkpoint and {current!r} in the query"


def _column_changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[_Change]:
    """Yield the change and the cure of each column that was added, lost or changed."""
    for one, two in zip(stored["inputs"], current["inputs"], strict=True):
        yield from _changes_of(f"input {two['name']!r}", one["columns"], two["columns"], _INPUT_CURES)
    is_same = all(
        one["columns"] == two["columns"] for one, two in zip(stored["inputs"], current["inputs"], strict=True)
    )
    if "function" in current:
        yield from _changes_of("the output", stored["output"], current["output"], _OUTPUT_CURES)
    elif is_same:
        # Else those of a join follow from its inputs' columns.
        yield from _changes_of("the output", stored["output"], current["output"], _JOIN_CURES)
    for tag, columns in stored.get("side_outputs", {}).items():
        yield from _changes_of(f"side output {tag!r}", columns, current["side_outputs"][tag], _OUTPUT_CURES)


@dataclass(frozen=True)
class _Cures:
    """The cure for a column that is gone, has another type, was added, or is in another position."""

    lost: str
    other: str
    added: str
    ordered: str


_ANEW = "take the state into a new checkpoint with restore_from="
_TAKEN_UP = "start(..., evolve=True) takes it up: rows that wait have null in it"
_INPUT_CURES = _Cures(
    "add it again: to a table with ALTER TABLE ... ADD COLUMN ({column} {before}), for files in schema=",
    f"cast it to that type, for files in schema=, or, where it has become wider, {_ANEW}",
    f"{_TAKEN_UP}; or drop it from the input",
    "select {columns}",
)
_OUTPUT_CURES = _Cures(
    "keep it, with null where it has no value any more, or begin with a new output and checkpoint",
    f"keep its type, or, where it has become wider, {_ANEW}",
    f'{_TAKEN_UP}, and a Delta output gets it with options={{"mergeSchema": "true"}}; or leave it out',
    "keep the order {columns}",
)
_SUFFIXES = "give the join its suffixes= as they were"
_JOIN_CURES = _Cures(_SUFFIXES, _SUFFIXES, _SUFFIXES, _SUFFIXES)


def _changes_of(label: str, stored: str, current: str, cures: _Cures) -> Iterator[_Change]:
    then, now = (parse_schema(each, label=label) for each in (stored, current))
    before = "FIRST"
    for field in then:
        column = schema_to_ddl(pa.schema([field.with_nullable(True)]))
        if field.name not in now.names:
            yield _Change(
                f"{label} has lost column {field.name!r}",
                cures.lost.format(column=column, before=before),
            )
        elif now.field(field.name) != field:
            is_now, was = (schema_to_ddl(pa.schema([each])) for each in (now.field(field.name), field))
            yield _Change(f"{label} has the column {is_now}, in the checkpoint it is {was}", cures.other)
        before = f"AFTER {back_quoted(field.name)}"
    for field in now:
        if field.name not in then.names and field.nullable:
            # Of a join with the same inputs it is another column by a new name.
            is_added = cures is not _JOIN_CURES
            yield _Change(f"{label} has the column {field.name!r} more", cures.added, is_added=is_added)
        elif field.name not in then.names:
            text = f"{label} has the column {field.name!r} more, which may not be null, and earlier rows have none"
            yield _Change(text, "declare it without NOT NULL")
    kept = [name for name in now.names if name in then.names]
    if sorted(kept) == sorted(then.names) and kept != then.names:
        yield _Change(
            f"{label} has its columns in another order, {', '.join(kept)}",
            cures.ordered.format(columns=", ".join(then.names)),
        )


def check_evolution(stored: Mapping[str, Any], current: Mapping[str, Any], checkpoint: str) -> None:
    """Check that a query can be restored from another's state, as the same query or one evolved from it."""
    differences = _differences(_without_evolvable(stored, current), current)
    if stored.get("operator") == current.get("operator"):
        differences += _evolution("output", stored["output"], current["output"])
        for one, two in zip(stored["inputs"], current["inputs"], strict=True):
            role = f"input {two['name']!r}"
            # A key of a wider type hashes differently, which moves it to another key group.
            differences += _evolution(role, one["columns"], two["columns"], fixed=two["key"])
        for tag, columns in stored.get("side_outputs", {}).items():
            if tag in current.get("side_outputs", {}):
                differences += _evolution(f"side output {tag!r}", columns, current["side_outputs"][tag])
    if differences:
        msg = (
            f"{checkpoint} can't continue as this query: {'; '.join(differences)}. A state may be added, a "
            f"nullable column added, or a type widened; make the query again what the checkpoint holds, or begin "
            f"without it"
        )
        raise CheckpointError(msg)


def _without_evolvable(stored: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the current query's values for all that a restored query may change."""
    evolved = {name: current[name] for name in ("key_groups", "function") if name in current}
    added = dict.fromkeys(current.get("side_outputs", {}), "") | dict(stored.get("side_outputs", {}))
    return {**stored, **evolved, **({"side_outputs": added} if added else {})}


def _evolution(label: str, stored: str, current: str, fixed: Sequence[str] = ()) -> list[str]:
    before, now = parse_schema(stored, label=label), parse_schema(current, label=label)
    differences = schema_evolution.differences(before, now, fixed=fixed)
    return [f"{label}: {difference}" for difference in differences]
