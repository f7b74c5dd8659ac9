from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cojoin.joins import AsofJoin
from cojoin.report import BatchReport, text_table
from tests.streams import Delivery, Rows, Streams, run, specs

RIGHT: Rows = [("b", 1, 3_000, 0, 0, "gold"), (None, 1, 3_000, 0, 0, "x")]
LEFT: Rows = [(key, 1, micros, 0, 0, 1.0, None) for key, micros in [("a", 1_000), ("b", 5_000), ("c", 9_000)]]


def report(*, drain: bool = False, key_groups: int = 3) -> BatchReport:
    streams = Streams(specs(), ([], []))
    join = AsofJoin(suffixes=("", "_customer"))
    outcome = run(join.create_operator, streams, Delivery([(LEFT, RIGHT)], key_groups), drain=drain)
    groups: list[dict[str, Any]] = [
        each | {"emitted": {"output": 1}, "state_bytes": 10, "key_group": number}
        for number, each in enumerate(outcome.reports)
    ]
    return BatchReport.merge(7, ("trades", "customers"), groups)


def test_the_key_groups_reports_are_one() -> None:
    merged = report()
    trades, customers = merged.inputs
    assert (trades.rows_in, trades.done, trades.buffered, dict(trades.rejected)) == (3, 1, 2, {})
    assert (customers.rows_in, customers.buffered, dict(customers.rejected)) == (2, 1, {"null_key": 1})
    assert (merged.watermark, merged.holding_input, merged.batch_id) == (2, "customers", 7)
    assert (merged.rows_out, merged.state_bytes, merged.emitted) == (1, 30, {"output": 3, "rejected": 0})
    assert (trades.watermark, trades.lag, trades.holding_partition, trades.status) == (8, 1, "[0]", "active")
    assert merged.is_conserved
    assert (merged.state_bytes_by_key_group, merged.output_delay_ms) == ({"0": 10, "1": 10, "2": 10}, 0)


def test_however_many_key_groups_the_counts_are_the_same() -> None:
    one, three = report(key_groups=1), report(key_groups=3)
    assert one.inputs == three.inputs


def test_a_row_that_vanished_is_seen() -> None:
    merged = report()
    broken = replace(merged, inputs=(replace(merged.inputs[0], rows_in=4), merged.inputs[1]))
    assert not broken.is_conserved


def test_a_report_goes_over_json() -> None:
    merged = report()
    assert BatchReport.from_dict(json.loads(json.dumps(merged.as_dict()))) == merged


def test_the_last_line_of_a_pause_says_what_waits_and_for_whom() -> None:
    assert report().ending() == (
        "paused: 2 rows of 'trades' and 1 row of 'customers' wait for the watermark of 'customers', "
        "which is 1970-01-01 00:00:00.002; they come out when the next run moves it, or with drain=True"
    )


def test_the_last_line_says_that_all_are_idle() -> None:
    idle = replace(report(), holding_input=None)
    assert (
        "rows of 'trades' and 1 row of 'customers' wait while all are idle at 1970-01-01 00:00:00.002;" in idle.ending()
    )


def test_the_last_line_of_a_drain_says_which_timers_did_not_fire() -> None:
    drained = report(drain=True)
    assert drained.ending() == "drained: all inputs are finished"
    left = replace(drained, details={"timers_not_fired": 1_234})
    assert left.ending() == "drained: all inputs are finished; 1,234 timers set during the drain did not fire"


def test_the_table_shows_counts_reasons_and_watermarks() -> None:
    assert report().table() == "\n".join(  # noqa: FLY002 - a table is its lines
        [
            "input      rows in  done  buffered  rejected        late applied  watermark (UTC)          held by",
            "---------  -------  ----  --------  --------------  ------------  -----------------------  -------",
            "trades           3     1         2  0                          0  1970-01-01 00:00:00.008  [0]",
            "customers        2     0         1  1 (1 null_key)             0  1970-01-01 00:00:00.002  [0]",
        ]
    )


def test_before_an_input_has_spoken_it_has_no_lag() -> None:
    assert replace(report().inputs[0], watermark=-(1 << 63)).lag is None


def test_numbers_are_aligned_to_the_right_and_texts_to_the_left() -> None:
    assert text_table([["a", "n"], ["xyz", "1"], ["", "1,000"]]).splitlines()[2:] == ["xyz      1", "     1,000"]
