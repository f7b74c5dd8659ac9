"""The printed report fits the terminal and says what is so."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa

from cojoin.cli import run_report
from cojoin.cli.demo import compare
from cojoin.engine.batch_report import BatchReport, InputReport

AT = 1_768_435_200_000


def input_report(name: str, **values: object) -> InputReport:
    given = {
        "name": name, "rows_in": 10, "done": 7, "buffered": 2, "rejected": {"null_key": 1}, "late_applied": 0,
        "watermark": AT, "max_timestamp": AT + 5_001, "status": "active", "holding_partition": "[]", "partitions": {},
    }  # fmt: skip
    return InputReport(**{**given, **values})


def batch_report(*inputs: InputReport) -> BatchReport:
    return BatchReport(0, 0, AT, "customers", inputs, 7, {}, 100, {})


def test_rows_lose_columns_that_do_not_fit_and_say_so():
    table = pa.table(
        {
            "trade_id": [1, 200],
            "event_time": [datetime(2026, 1, 15, 9, tzinfo=timezone.utc), None],
            "note": ["x" * 50, None],
        }
    )
    lines = run_report.rows(table, 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[2:4] == ["       1  09:00:00.000000", "     200  null"]
    assert lines[4:] == ["(no room for note)", "(times are UTC on 2026-01-15)"]
    assert "x" * 31 + "…" in run_report.rows(table, 100)
    assert run_report.rows(table.slice(0, 0)) == "(no rows)"


def test_a_row_is_one_line_and_numbers_stand_at_the_right():
    table = pa.table({"note": ["two\nlines", None], "amount": [123456.75, 0.1]})
    assert run_report.rows(table, 40).splitlines() == [
        "note           amount",
        "----------  ---------",
        "two\\nlines  123456.75",
        "null              0.1",
    ]


def test_the_counts_are_a_column_an_input():
    shown = run_report.counts(batch_report(input_report("trades"), input_report("customers", rejected={"late": 1})))
    assert [line.split() for line in shown.splitlines()[2:]] == [
        ["in", "10", "10"],
        ["=", "done", "7", "7"],
        ["+", "buffered", "2", "2"],
        ["+", "rejected", "1", "1"],
        ["late", "0", "1"],
        ["null_key", "1", "0"],
    ]


def test_the_law_of_conservation_is_said_in_words():
    assert run_report.conservation(batch_report(input_report("trades"), input_report("customers"))).startswith(
        "Nothing is lost"
    )
    broken = run_report.conservation(batch_report(input_report("trades", done=6), input_report("customers")))
    assert broken.startswith("ROWS ARE LOST: trades has +1 rows unaccounted for.")


def test_watermarks_name_who_holds_time_back():
    shown = run_report.watermarks(batch_report(input_report("trades"), input_report("customers", status="finished")))
    assert shown.splitlines()[1:] == [
        "  trades     2026-01-15 00:00:00.000",
        "  customers  finished",
        "  the join   2026-01-15 00:00:00.000, held back by customers",
    ]


def test_the_verdict_shows_the_first_differences():
    equal = pa.table({"trade_id": [1, 2]})
    assert run_report.verdict(compare(equal, equal)).endswith("equal, row for row, all 2.")
    shown = run_report.verdict(compare(equal, pa.table({"trade_id": [2, 3, 4]})))
    assert "NOT EQUAL; it gives 2 rows, the output has 3." in shown
    assert "Only merge_asof has 1 rows" in shown
    assert "Only the output has 2 rows" in shown
