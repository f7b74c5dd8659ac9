"""What a harness shows: its operation, its calls, its counts and watermarks as times."""

from __future__ import annotations

from cojoin.testing import AsofJoin, Harness, HarnessInput

TRADES = HarnessInput("id long, trade long", key="id", name="trades")
CUSTOMERS = HarnessInput("id long, tier string", key="id", name="customers")


def test_a_harness_shows_itself_and_nothing_changes() -> None:
    harness = Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS)
    assert repr(harness).startswith("Harness: asof_join() of 'trades' with 'customers'\n")
    assert repr(harness).endswith("before the first call; watermark none; rows out 0")
    harness.process_element1((1, 1), 1_000)
    harness.process_watermark(1_500)
    before = harness.snapshot()
    assert repr(harness).endswith("calls: 2; watermark 1970-01-01 00:00:01.500; rows out 1")
    assert "1970-01-01 00:00:01.500" in harness._repr_html_()
    assert harness.snapshot() == before
