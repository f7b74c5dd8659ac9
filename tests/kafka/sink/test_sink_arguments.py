"""What `cojoin.sinks.kafka` refuses before anything is asked of a broker."""

from __future__ import annotations

from typing import Any

import pytest

import cojoin as cj
from cojoin.kafka.formats.registry import FoundSchema
from cojoin.kafka.sink.serializers import _fields as fields_of


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": "no topic"}, "topic: expected a topic's name of letters, digits, '.', '_' and '-', got 'no topic'"),
        ({"delivery": "exactly_one"}, "delivery: expected .*, got 'exactly_one'; did you mean 'exactly_once'?"),
        ({"tasks": 3}, "tasks: expected none with delivery='exactly_once'"),
        ({"delivery": "exactly_once_parallel", "tasks": 1}, "tasks: expected a whole number of 2 or more, got 1"),
        ({"missing_marker": "lost"}, "missing_marker: expected 'refuse' or 'expired', got 'lost'"),
        ({"options": {"acks": "1"}}, "option 'acks': expected 'all', got '1': fewer acknowledgements lose rows"),
        ({"options": {"transactional.id": "x"}}, "option 'transactional.id' can't be given"),
        ({"key": []}, "key: expected a column's name, or a list of names"),
        ({"key": ["id", "ID"]}, "key: expected each column once"),
        ({"headers": ["id"]}, "headers: expected a dict of names with their columns"),
        ({"timestamp": 5}, "timestamp: expected a column's name, got 5"),
    ],
)
def test_an_argument_that_does_not_fit_is_told(given: dict[str, Any], told: str) -> None:
    arguments = {"bootstrap_servers": "localhost:9092", "topic": "enriched"} | given
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.sinks.kafka(**arguments)


def test_a_json_schema_that_refers_to_others_is_refused_before_rows_are_written() -> None:
    """Rows are held to it by a serializer that is given one file."""
    found = FoundSchema("JSON", '{"oneOf": [{"$ref": "trade.json"}]}', (("trade.json", "{}"),))
    with pytest.raises(cj.SchemaError, match=r"^output refers to other schemas, trade\.json, .*; name another schema"):
        fields_of(found, None, "output")
