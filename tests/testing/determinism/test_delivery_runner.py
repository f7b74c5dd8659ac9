"""A delivery of all rows at once gives what the embedded run gives, and a worker gives what this process gives."""

from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.display import cells
from cojoin.engine.values.rows import decode_rows
from cojoin.testing.determinism.deliveries import ASPECTS, Delivery, DeliveryRunner, draw_delivery, seeded
from cojoin.testing.determinism.processes import Clock, Laboratory, Run
from tests.testing.determinism.functions import JOINS, LatestTier, ReadsDay, apply, pair


@pytest.mark.parametrize("joined", [apply(LatestTier()), pair().interval_join("-2 s", "2 s", "full")])
def test_all_rows_at_once_give_what_the_embedded_run_gives(joined: Any) -> None:
    runner = DeliveryRunner(joined.plan, joined._execution.rows)
    output = runner.run(Delivery.at_once(runner.all_rows, runner.times))
    found = [row for rows in output.rows["output"].values() for row in rows]
    assert sorted(found) == sorted(map(cells, decode_rows(joined.to_arrow())))


@pytest.mark.push
@pytest.mark.parametrize("name", JOINS)
def test_every_delivery_of_a_join_gives_the_same(name: str) -> None:
    joined = JOINS[name]
    runner = DeliveryRunner(joined.plan, joined._execution.rows)  # type: ignore[attr-defined]
    expected = runner.run(Delivery.at_once(runner.all_rows, runner.times))
    assert expected.rows
    for seed in range(25):
        delivery = draw_delivery(seeded(seed), runner.all_rows, runner.times, ASPECTS)
        assert not runner.run(delivery).differs(expected, ordered=name != "stateless")


@pytest.mark.push
def test_another_process_gives_the_same_and_its_clock_can_be_set() -> None:
    joined = apply(ReadsDay())
    with Laboratory(joined.plan, joined._execution.rows) as laboratory:  # type: ignore[attr-defined]
        runner = laboratory.runner
        delivery = draw_delivery(seeded(3), runner.all_rows, runner.times, ASPECTS)
        here, there = laboratory.run(Run(delivery)), laboratory.run(Run(delivery, 1))
        assert here == there
        days = []
        for at in (1_767_225_600, 1_767_225_600 + 86_400, 1_767_225_600 + 40 * 86_400):
            output = laboratory.run(Run(delivery, 1, Clock(at + 43_200, stands_still=True)))
            days.append({row[1] for rows in output.rows["output"].values() for row in rows})
        assert days == [{"1"}, {"2"}, {"10"}]
