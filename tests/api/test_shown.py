"""What a pair, a join and a result show; a join shows itself without being run."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest

import cojoin as cj

NOON = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)


@pytest.fixture
def pair() -> cj.ConnectedInputs:
    trades = pa.table({"id": [1, 1, 2], "event_time": [NOON] * 3, "note": ["<b>", None, "x" * 200]})
    customers = pa.table({"id": [1], "event_time": [NOON], "tier": ["gold"]})
    columns = {"key": "id", "event_time": "event_time"}
    return cj.connect(cj.Input(trades, **columns, name="trades"), cj.Input(customers, **columns, name="customers"))


def test_connected_inputs_show_both(pair: cj.ConnectedInputs) -> None:
    assert repr(pair) == "Connected inputs: 'trades' (3 in memory) with 'customers' (1 in memory)"
    page = pair._repr_html_()
    for text in ("trades", "customers", "1 in memory"):
        assert f'<td style="text-align:left">{text}</td>' in page
    assert "id bigint, event_time timestamp, tier string" in page


def test_a_join_shows_what_it_would_do(pair: cj.ConnectedInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = pair.asof_join("inner", tolerance="1 hour")
    monkeypatch.setattr(type(joined), "run", None)
    assert (
        repr(joined) == "Joined: asof_join(how='inner', tolerance='1 hour') of 'trades' with 'customers', not yet run"
    )
    page = joined._repr_html_()
    assert "Output: id bigint, event_time timestamp, note string, customers_event_time timestamp, tier string" in page
    assert "run(), to_pandas() or to_arrow() runs it." in page


def test_a_result_shows_counts_and_its_first_rows(pair: cj.ConnectedInputs) -> None:
    result = pair.asof_join().run()
    text, page = repr(result), result._repr_html_()
    assert text.startswith("Result: asof_join() of 'trades' with 'customers'\ninput ")
    assert "Rows by output: output 3, rejected 0\nOutput:\n" in text
    assert text.count("2026-01-15 12:00:00 ") == page.count(">2026-01-15 12:00:00<") == 5
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.split("Output:")[1]


def test_a_long_result_shows_its_beginning_alone() -> None:
    rows = pa.table({"id": list(range(2_000)), "event_time": [NOON] * 2_000})
    columns = {"key": "id", "event_time": "event_time"}
    joined = cj.connect(cj.Input(rows, **columns), cj.Input(rows, **columns)).asof_join()
    text = repr(joined.run())
    assert "Output, the first 5 of 2,000 rows:" in text
    assert len(text.splitlines()) == 14


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([-(1 << 62)], pa.timestamp("us", "UTC")), "-53375996 days and 35972 seconds since 1970"),
        (pa.array([b"\xffA"]).view(pa.string()), "\\xffA"),
    ],
)
def test_odd_values_are_shown(values: pa.Array, text: str) -> None:
    rows = pa.table({"id": [1], "event_time": [NOON], "odd": values})
    columns = {"key": "id", "event_time": "event_time"}
    joined = cj.connect(cj.Input(rows, **columns), cj.Input(rows.drop_columns("odd"), **columns)).asof_join()
    result = joined.run()
    assert text in repr(result)
    assert text in result._repr_html_()
