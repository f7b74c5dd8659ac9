"""Time-to-live by event time, which Flink has not: the rules of tt-03 and tt-13, and no batch changes a result."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cojoin.engine.state import StateTtlConfig
from cojoin.testing import Element, Harness, HarnessInput, Record
from tests.flink.ttl_steps import KINDS, Keeps

ROW = HarnessInput("k string, op string, value string", key="k")
STEPS: list[tuple[int, str, str | None]] = [
    (0, "update", "v1"),
    (99, "get", None),
    (100, "get", None),
    (100, "update", "v2"),
    (150, "update", "v3"),
    (220, "get", None),
    (250, "get", None),
]
SEEN = {"on_create_and_write": ["v1", None, "v3", None], "on_read_and_write": ["v1", "v1", "v3", "v3"]}


@pytest.mark.parametrize("cuts", [[0, 7], [0, 3, 7], list(range(8))], ids=str)
@pytest.mark.parametrize("update_type", SEEN)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_lives_from_its_last_access_by_event_time(kind: str, update_type: Any, cuts: list[int]) -> None:
    ttl = StateTtlConfig("100 ms", update_type=update_type, time_domain="event_time")
    # The rows of a millisecond come in the order of their content: "get" before "update".
    with Harness(Keeps(kind, ttl), "value string", input1=ROW, input2=ROW) as harness:
        for start, stop in pairwise(cuts):
            harness.process_batch([Element(("a", op, value), time) for time, op, value in STEPS[start:stop]])
            harness.process_watermark(STEPS[stop - 1][0] - 1)
            harness.restore(harness.snapshot())
        harness.end_input()
    assert [event.value.value for event in harness.log if isinstance(event, Record)] == SEEN[update_type]


def test_a_key_that_is_never_seen_again_is_forgotten_when_its_state_is_next_stored() -> None:
    ttl = StateTtlConfig("100 ms", time_domain="event_time")
    harness = Harness(Keeps("value", ttl), "value string", input1=ROW, input2=ROW)
    for time, key in ((0, "a"), (50, "b"), (200, "c")):
        harness.process_element1((key, "update", "v"), time)
        harness.process_watermark(time)
    assert [harness.state(key) for key in "abc"] == [{}, {}, {"it": "v"}]
