"""Rows with a null key that come out unmatched: as in SQL's outer joins, at their own times, none lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.embedded.steps import Stepper
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.plan import Plan
from tests.oracles import duckdb_asof_join, duckdb_interval_join, micros, rows_in_order
from tests.streams import AT, SCHEMAS, Streams, deliveries, run, static, streams, table

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIXES = ("", "_customer")
BOUNDS = st.sampled_from([(-20_000, -1), (-4_000, 3_000), (0, 0), (1, 20_000)]).map(
    lambda bounds: [timedelta(microseconds=each) for each in bounds]
)


@dataclass(frozen=True)
class Case:
    """A join over rows of which some have a null key; each side that the join keeps lets them out unmatched."""

    join: Any
    streams: Streams

    @property
    def how(self) -> str:
        return str(self.join.how)

    @property
    def keeps(self) -> tuple[bool, bool]:
        return self.how in {"left", "full"}, self.how in {"right", "full"}

    def keyless(self, side: int) -> list[tuple[Any, ...]]:
        return [row for row in self.streams.rows[side] if None in self.streams.key(side, row)]

    def pairs(self) -> list[tuple[int | None, int | None]]:
        """Return the positions of the result's rows by DuckDB, in whose joins no null key matches."""
        join = self.join
        if isinstance(join, IntervalJoin):
            return duckdb_interval_join(self.streams, join.bounds, (True, True), self.how)
        # Both join backward, and without tombstones a version is in force until the next one.
        matches = duckdb_asof_join(self.streams, None, exact=True)
        return list(enumerate(matches))

    def expected(self) -> Counter[str]:
        rows = rows_in_order(self.streams, self.pairs(), lambda *_: 0)
        return Counter(repr(row) for mine in rows.values() for row in mine)


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    """Draw joins that keep a side, over streams of which some keys are null, in whole or in part."""
    drawn = draw(streams())
    join = draw(
        st.one_of(
            st.just(AsofJoin(suffixes=SUFFIXES)),
            st.just(TemporalJoin(suffixes=SUFFIXES)),
            st.builds(
                lambda bounds, how: IntervalJoin(*bounds, how, suffixes=SUFFIXES),
                BOUNDS,
                st.sampled_from(["left", "right", "full"]),
            ),
        )
    )
    rows = []
    for side in (0, 1):
        width, sided = len(drawn.inputs[side].key), []
        for row in drawn.rows[side]:
            nulls = draw(st.sampled_from([(), (), (0,), (width - 1,), tuple(range(width))]))
            sided.append(tuple(None if at in nulls else value for at, value in enumerate(row)))
        rows.append(sided)
    found = Case(join, replace(drawn, rows=(rows[0], rows[1])))
    left, right = (
        replace(spec, null_key="unmatched" if keeps else "reject")
        for spec, keeps in zip(drawn.inputs, found.keeps, strict=True)
    )
    return replace(found, streams=replace(found.streams, inputs=(left, right)))


def spelled(rows: list[Any]) -> Counter[str]:
    return Counter(repr(tuple(map(micros, row))) for row in rows)


@given(st.data(), cases())
def test_oracle_however_they_arrive_rows_with_a_null_key_come_out_as_duckdb_has_them(
    data: st.DataObject, case: Case
) -> None:
    outcome = run(case.join.create_operator, case.streams, data.draw(deliveries(case.streams)))
    assert spelled(outcome.rows()) == case.expected()
    # On a side that the join does not keep they are rejected, and counted.
    rejected = [len(case.keyless(side)) for side in (0, 1) if not case.keeps[side]]
    assert [row[1] for row in outcome.rejections()] == ["null_key"] * sum(rejected)


@pytest.mark.slow
@given(cases())
def test_oracle_a_static_join_is_that_of_duckdb(case: Case) -> None:
    assert spelled(run(case.join.create_operator, case.streams, static(case.streams)).rows()) == case.expected()


@pytest.mark.slow
@given(st.data(), cases(), st.sampled_from(["backward", "forward", "nearest"]), st.sampled_from([None, "4 ms"]))
def test_they_come_out_at_their_own_time_whatever_others_wait_for(
    data: st.DataObject, case: Case, direction: Any, tolerance: Any
) -> None:
    if isinstance(case.join, AsofJoin):
        case = replace(case, join=replace(case.join, direction=direction, tolerance=tolerance))
    outcome = run(case.join.create_operator, case.streams, data.draw(deliveries(case.streams)), drain=False)
    watermark = case.streams.watermark()
    for side, keeps in enumerate(case.keeps):
        if keeps:
            due = [row for row in case.keyless(side) if row[AT] // 1_000 <= watermark]
            width = len(case.streams.inputs[side].key)
            # A row of the result is the left's, else it begins with the right's key.
            emitted = [row for row in outcome.rows() if None in row[:width] and (row[AT] is None) == (side == 1)]
            assert len(emitted) == len(due)


@given(st.data(), cases(), st.integers(1, 4), st.integers(1, 4))
def test_a_restore_into_other_key_groups_loses_none_whatever_the_input_says_of_them_by_then(
    data: st.DataObject, case: Case, before: int, after: int
) -> None:
    batches = data.draw(deliveries(case.streams)).batches
    cut = data.draw(st.integers(0, len(batches)))
    plan = Plan(case.join, *case.streams.inputs, 1)
    stepper, found = Stepper(plan, before), []
    for number, rows in enumerate(batches):
        if number == cut:
            data_of_first, stepper = stepper.snapshot(), Stepper(plan, after)
            stepper.restore(data_of_first)
        left, right = (table(side, schema) for side, schema in zip(rows, SCHEMAS, strict=True))
        found.append(stepper.step((left, right)))
    if cut == len(batches):
        # Those that are admitted come out, though from now on others are rejected.
        left, right = (replace(spec, null_key="reject") for spec in plan.inputs)
        data_of_first, stepper = stepper.snapshot(), Stepper(replace(plan, left=left, right=right), after)
        stepper.restore(data_of_first)
    empty = (SCHEMAS[0].empty_table(), SCHEMAS[1].empty_table())
    found.append(stepper.step(empty, end_of_input=True))
    rows_out = [tuple(row.values()) for step in found for row in step.output.to_pylist()]
    assert spelled(rows_out) == case.expected()
