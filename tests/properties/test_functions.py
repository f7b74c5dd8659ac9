"""A function in event-time order is a function of the rows alone, and what it sees is what the laws say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.keyed_process import KeyedCoProcess
from tests.oracles import Simulation, by_key
from tests.programs import OUTPUT, EnrichTrades, Heartbeat, Ledger, Sessions
from tests.streams import Delivery, Streams, deliveries, run, static, streams

if TYPE_CHECKING:
    from cojoin.engine.functions import KeyedCoProcessFunction

PROGRAMS = [EnrichTrades(), Ledger(), Sessions(), Heartbeat()]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda each: type(each).__name__)
@given(st.data(), streams())
def test_oracle_however_the_rows_arrive_each_key_sees_what_the_simulation_sees(
    function: KeyedCoProcessFunction, data: st.DataObject, streams: Streams
) -> None:
    outcome = run(KeyedCoProcess(function, OUTPUT).create_operator, streams, data.draw(deliveries(streams)))
    simulated = Simulation(function, streams).run()
    assert by_key(outcome.rows()) == by_key(simulated.rows)
    assert outcome.total("timers_not_fired") == simulated.not_fired
    assert outcome.total("timers") == 0


@pytest.mark.parametrize("function", PROGRAMS[:2], ids=lambda each: type(each).__name__)
@given(streams())
def test_oracle_a_static_run_is_a_stream_and_its_drain(function: KeyedCoProcessFunction, streams: Streams) -> None:
    outcome = run(KeyedCoProcess(function, OUTPUT).create_operator, streams, static(streams))
    assert by_key(outcome.rows()) == by_key(Simulation(function, streams).run().rows)


@given(st.data(), streams())
def test_in_arrival_order_a_batch_that_is_run_again_gives_equal_rows_in_equal_order(
    data: st.DataObject, streams: Streams
) -> None:
    """The rows of a batch may reach the operator in any order."""
    process = KeyedCoProcess(Ledger(), OUTPUT, order="arrival")
    delivery = data.draw(deliveries(streams))
    shuffled = [tuple(data.draw(st.permutations(side)) for side in batch) for batch in delivery.batches]
    again = Delivery(shuffled, delivery.key_groups, drains_apart=delivery.drains_apart)  # type: ignore[arg-type]
    first, second = (run(process.create_operator, streams, each).rows() for each in (delivery, again))
    assert by_key(first) == by_key(second)
