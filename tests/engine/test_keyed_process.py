"""The configuration of a function: what is refused before anything runs, and how it describes itself."""

from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.errors import ConfigurationError
from tests.programs import OUTPUT, EnrichTrades
from tests.streams import specs


@pytest.mark.parametrize(
    ("function", "order", "said"),
    [
        (EnrichTrades, "event_time", "expected an instance of a KeyedCoProcessFunction.*; make an instance of it"),
        (print, "event_time", "expected an instance"),
        (EnrichTrades(), "arival", "order: expected 'event_time' or 'arrival', got 'arival'; did you mean 'arrival'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(function: Any, order: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KeyedCoProcess(function, OUTPUT, order)


def test_a_run_describes_itself() -> None:
    process = KeyedCoProcess(EnrichTrades(), OUTPUT)
    assert process.describe() == {
        "operator": "process",
        "function": "EnrichTrades",
        "order": "event_time",
        "side_outputs": {},
    }
    assert process.output_schema(*specs()) == OUTPUT
