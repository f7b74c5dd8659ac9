"""A join whose state is taken apart as ``read_state`` shows it, and written into other key groups, goes on the same."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cojoin.checkpoints.inspect.key_state import BUFFERS, PAIRED
from cojoin.engine import rescaling
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.plan import Plan
from cojoin.spark.savepoints.new_savepoint import group_headers, new_watermark
from cojoin.spark.savepoints.state_packing import assemble_group, largest_times, pack_rows
from cojoin.spark.savepoints.state_parts import MATCHED, WAITS_FOR, PartShape, waits
from tests.spark.savepoints.test_state_packing import GROUPS, group_of
from tests.streams import Outcome, assert_conserved, deliveries, map_side, streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.operator import Operator
    from tests.streams import Rows, Streams

NAMES = ("", "_customer")
JOINS: dict[str, Any] = {
    "asof": AsofJoin(suffixes=NAMES),
    "nearest": AsofJoin(suffixes=NAMES, direction="nearest", tolerance="20 ms"),
    "forward": AsofJoin(suffixes=NAMES, direction="forward"),
    "temporal": TemporalJoin(suffixes=NAMES, retention="15 ms"),
    "interval": IntervalJoin("-9 ms", "4 ms", how="full", suffixes=NAMES),
}


def written(plan: Plan, operators: Sequence[Operator]) -> list[Operator]:
    """Return the operators of three key groups, with the state written from what ``read_state`` would show."""
    parts = [operator.parts() for operator in operators]
    former = rescaling.merged_header([header for header, _ in parts])
    whole = rescaling.assemble([tables for _, tables in parts])
    schemas = {name: table.schema for name, table in whole.items()}
    pieces: list[tuple[int, str, bytes]] = []
    watermark = operators[0].watermark.current()
    for name, table in whole.items():
        side = 1 if name == "versions" else BUFFERS[name][0]
        spec = plan.inputs[side]
        keys = tuple(spec.schema.names.index(each) for each in spec.key)
        rows = table.select(range(len(spec.schema)))
        if name == "versions":
            shape = PartShape(name, "versions", name, spec.schema, spec.schema, keys, spec.event_time, watermark)
        else:
            reason = pa.array([BUFFERS[name][1]] * table.num_rows, pa.string())
            flags = table.columns[-1] if name in PAIRED else pa.nulls(table.num_rows, pa.bool_())
            rows = rows.append_column(WAITS_FOR, reason).append_column(MATCHED, flags)
            allowed = waits(schemas, side)
            shape = PartShape(
                name, "buffered", str(side), rows.schema, rows.schema, keys, spec.event_time, allowed=allowed
            )
        groups = [group_of(key) for key in zip(*(rows.column(at).to_pylist() for at in keys), strict=True)]
        numbered = rows.append_column("group", pa.array(groups, pa.int32()))
        numbered = numbered.rename_columns([f"c{at}" for at in range(numbered.num_columns)])
        batch = pack_rows(numbered, shape, range(GROUPS))
        pieces += [(row["label"], row["name"], row["payload"]) for row in batch.to_pylist()]
    assembled = []
    for group in range(GROUPS):
        mine = [(name, pa.py_buffer(payload)) for label, name, payload in pieces if label == group]
        tables, faults = assemble_group(mine, schemas, plan.inputs)
        assert not faults
        assembled.append(tables)
    largest = [largest_times(tables, plan.inputs) for tables in assembled]
    newest = [max((each[side] for each in largest if each[side] is not None), default=None) for side in (0, 1)]
    header = former | {"watermark": new_watermark(plan, (None, None), newest, former["watermark"])}
    counts = {group: {name: each.num_rows for name, each in tables.items()} for group, tables in enumerate(assembled)}
    headers = [json.loads(text) for text in group_headers(header, counts).values()]
    assert rescaling.merged_header(headers) == former
    found = []
    for group, tables in enumerate(assembled):
        operator = plan.create_operator()
        operator.load_parts(rescaling.merged_header(headers), tables, keeps_counts=group == 0)
        found.append(operator)
    return found


def outcome(plan: Plan, drawn: Streams, batches: Sequence[tuple[Rows, Rows]], cut: int | None) -> Outcome:
    """Run a join in one key group, and from a cut on in three, with the state written anew in between."""
    operators, found = [plan.create_operator()], Outcome()
    for number, rows in enumerate(batches):
        ends = number == len(batches) - 1
        for operator, batch in zip(operators, map_side(drawn, rows, len(operators)), strict=True):
            for emission in operator.process(replace(batch, end_of_input=ends)):
                found.take(emission)
        assert_conserved([operator.report() for operator in operators])
        if number == cut:
            operators = written(plan, operators)
    found.reports = [operator.report() for operator in operators]
    return found


@given(st.data(), st.sampled_from([*JOINS]))
def test_a_join_goes_on_from_a_state_that_was_written(data: st.DataObject, kind: str) -> None:
    drawn = data.draw(streams(size=14))
    batches = [*data.draw(deliveries(drawn)).batches, ([], [])]
    plan = Plan(JOINS[kind], *drawn.inputs, GROUPS)
    cut = data.draw(st.integers(0, len(batches) - 2))
    once, again = (outcome(plan, drawn, batches, at) for at in (None, cut))
    assert Counter(map(repr, again.rows())) == Counter(map(repr, once.rows()))
    totals = [
        [
            sum(report["inputs"][side][name] for report in each.reports)
            for side in (0, 1)
            for name in ("rows_in", "done")
        ]
        for each in (once, again)
    ]
    assert totals[0] == totals[1]
