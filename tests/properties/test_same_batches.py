"""The same micro-batches give the same, in both orders, whoever carries them.

What must not matter: how many key groups there are, where they are restored, which map task had which rows, and in
which order a key group hears of the tasks. What a micro-batch holds, and its clock, do matter to a function that goes
by arrival or by the clock, and to partitions that fall idle; so they stay the same here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from cojoin.engine.batch_report import merge_reports
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import Idleness
from tests.oracles import by_key
from tests.programs import OUTPUT, told
from tests.properties.test_random_functions import BESIDE, INSTRUCTIONS, Program
from tests.streams import Outcome, Streams, assert_conserved, map_side, streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.engine.operator import Batch
    from tests.streams import Rows


@dataclass
class Clocked(Program):
    """Runs instructions of both clocks, and tells the inputs' own watermarks."""

    def _run(self, instructions: list[tuple[str, int]], ctx: Any, callback: str) -> Iterator[Any]:
        timers = ctx.timer_service()
        for name, number in instructions:
            if name == "clock":
                timers.register_processing_time_timer(timers.current_processing_time() + number)
            elif name == "watermarks":
                yield told(ctx, callback, timers.current_watermark1(), timers.current_watermark2())
            else:
                yield from super()._run([(name, number)], ctx, callback)


MORE = st.lists(st.tuples(st.sampled_from(["clock", "watermarks"]), st.integers(-3, 30)), max_size=2)
BOTH = st.builds(lambda one, two: [*one, *two], INSTRUCTIONS, MORE)
IDLENESS = st.one_of(
    st.none(), st.builds(Idleness, st.sampled_from([5, 15]), st.sampled_from(["hold", "skip"]), st.booleans())
)
POLICIES = st.sampled_from([TimePolicy(), TimePolicy("max"), TimePolicy(hold_left_until=10)])


@dataclass(frozen=True)
class Carriage:
    """Who carries the micro-batches: how many key groups, where they are restored, and how the tasks are dealt."""

    key_groups: int
    restarts: frozenset[int]
    turns: tuple[int, ...]

    def dealt(self, number: int, rows: Rows) -> Rows:
        """Return a batch's rows in an order of this carriage's own, which also deals them to other tasks."""
        turn = self.turns[number % len(self.turns)]
        return sorted(rows, key=lambda row: crc32(repr((turn, row)).encode())) if turn else rows

    def heard(self, number: int, batch: Batch) -> Batch:
        """Return a batch with its controls in an order of this carriage's own."""
        turn = self.turns[(number + 1) % len(self.turns)]
        return replace(batch, controls=[*batch.controls[turn:], *batch.controls[:turn]][:: -1 if turn % 2 else 1])


CARRIAGES = st.builds(
    Carriage,
    st.sampled_from([1, 2, 3]),
    st.frozensets(st.integers(0, 6), max_size=3),
    st.tuples(*[st.integers(0, 3)] * 3),
)


def carry(
    process: KeyedCoProcess, time: TimePolicy, inputs: Streams, batches: list[tuple[Rows, Rows, int]], by: Carriage
) -> tuple[Any, ...]:
    """Run the batches, and give all that can be seen of them; an error stands for what comes after it."""
    operators = [process.create_operator(*inputs.inputs, time) for _ in range(by.key_groups)]
    outcome, reports, now = Outcome(), [], 0
    for number, (left, right, later) in enumerate([*batches, ([], [], 0)]):
        now += later
        rows = (by.dealt(number, left), by.dealt(number, right))
        ends = number == len(batches)
        for operator, batch in zip(operators, map_side(inputs, rows, by.key_groups, now), strict=True):
            given_batch = replace(by.heard(number, batch), end_of_input=ends, processing_time=now)
            for emission in operator.process(given_batch):
                outcome.take(emission)
        outcome.reports = [operator.report() for operator in operators]
        assert_conserved(outcome.reports)
        groups = [
            {"key_group": group, "state_bytes": 0, "emitted": {}, **report}
            for group, report in enumerate(outcome.reports)
        ]
        merged = merge_reports(number, ("trades", "customers"), groups)
        reports.append(replace(merged, state_bytes_by_key_group={}))
        if number in by.restarts:
            saved = [operator.snapshot() for operator in operators]
            operators = [process.create_operator(*inputs.inputs, time) for _ in saved]
            for operator, state in zip(operators, saved, strict=True):
                operator.restore(state)
    rejected = sorted(map(repr, outcome.rejections()))
    return by_key(outcome.rows()), by_key(outcome.rows("beside")), rejected, reports


@st.composite
def cut(draw: st.DrawFn, inputs: Streams) -> list[tuple[Rows, Rows, int]]:
    """Draw micro-batches of all rows in any order, some of them late, each with how much later its clock is."""
    rows = draw(st.permutations([(side, row) for side in (0, 1) for row in inputs.rows[side]]))
    places = sorted(draw(st.lists(st.integers(0, len(rows)), min_size=1, max_size=5)))
    pieces = [rows[start:stop] for start, stop in zip([0, *places], [*places, len(rows)], strict=True)]
    return [
        ([row for side, row in piece if side == 0], [row for side, row in piece if side == 1], draw(st.integers(1, 12)))
        for piece in pieces
    ]


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.data(),
    streams(),
    st.builds(Clocked, BOTH, BOTH, BOTH),
    st.sampled_from(["arrival", "event_time"]),
    st.tuples(IDLENESS, IDLENESS),
    POLICIES,
)
def test_whoever_carries_them_the_same_batches_give_the_same(
    data: st.DataObject, inputs: Streams, program: Clocked, order: Any, idleness: Any, time: TimePolicy
) -> None:
    specs = tuple(
        replace(spec, watermark=replace(spec.watermark, idleness=each))
        for spec, each in zip(inputs.inputs, idleness, strict=True)
    )
    inputs = Streams(specs, inputs.rows)  # type: ignore[arg-type]
    process = KeyedCoProcess(program, OUTPUT, order, (BESIDE,), processing_time_timers=True)
    batches = data.draw(cut(inputs))
    first, second = (carry(process, time, inputs, batches, data.draw(CARRIAGES)) for _ in range(2))
    assert first == second
