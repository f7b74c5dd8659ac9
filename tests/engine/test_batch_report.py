from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from cojoin.engine.batch_report import BatchReport, furthest_of_idle, merge_reports, parse_report
from cojoin.engine.display import text_table
from cojoin.engine.input_spec import Reason
from cojoin.engine.joins import AsofJoin
from cojoin.engine.time.operator_watermark import HeldBy
from cojoin.errors import CheckpointError
from tests.streams import Delivery, Rows, Streams, run, specs

RIGHT: Rows = [("b", 1, 3_000, 0, 0, "gold"), (None, 1, 3_000, 0, 0, "x")]
LEFT: Rows = [(key, 1, micros, 0, 0, 1.0, None) for key, micros in [("a", 1_000), ("b", 5_000), ("c", 9_000)]]


def group_reports(key_groups: int, *, drain: bool = False) -> list[dict[str, Any]]:
    streams = Streams(specs(), ([], []))
    join = AsofJoin(suffixes=("", "_customer"))
    outcome = run(join.create_operator, streams, Delivery([(LEFT, RIGHT)], key_groups), drain=drain)
    return [
        each | {"emitted": {"output": 1}, "state_bytes": 10, "key_group": number}
        for number, each in enumerate(outcome.reports)
    ]


def report(*, drain: bool = False, key_groups: int = 3) -> BatchReport:
    return merge_reports(7, ("trades", "customers"), group_reports(key_groups, drain=drain))


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


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("watermark",), 7, "the watermark of the operator is 2 in one and 7 in the other"),
        (("holding_input",), None, "the holding input of the operator is 2 in one and None in the other"),
        (("input_watermarks", 0, "watermark"), 7, "the watermark of input 'trades' is 8 in one and 7 in the other"),
        (("input_watermarks", 1, "status"), "idle", "the status of input 'customers' is 'active' in one and 'idle' in"),
        (("input_watermarks", 1, "partitions"), {}, "the partitions of input 'customers' is {'[0]': 2} in one and {}"),
    ],
)
def test_key_groups_that_do_not_agree_on_time_are_no_report(path: tuple[Any, ...], value: Any, said: str) -> None:
    groups = group_reports(3)
    place: Any = groups[2]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(CheckpointError) as caught:
        merge_reports(7, ("trades", "customers"), groups)
    assert str(caught.value).startswith(f"key groups 0 and 2 do not agree on time: {said}")
    assert "restore a snapshot into a new checkpoint" in str(caught.value)


def test_a_row_that_vanished_is_seen() -> None:
    merged = report()
    broken = replace(merged, inputs=(replace(merged.inputs[0], rows_in=4), merged.inputs[1]))
    assert not broken.is_conserved


def test_a_report_goes_over_json() -> None:
    merged = report()
    assert parse_report(json.loads(json.dumps(merged.as_dict()))) == merged


def test_a_report_has_the_outputs_that_spark_writes_and_why() -> None:
    plain = report()
    by_spark = replace(plain, written_by_spark={"output": "partition_by=['day']"})
    assert "written_by_spark" not in plain.as_dict(), "as before, where there are none"
    assert parse_report(json.loads(json.dumps(by_spark.as_dict()))) == by_spark
    assert by_spark.readings()[0] == "the rows of 'output' are written by Spark: partition_by=['day']"
    assert "written by Spark: partition_by" in repr(by_spark)


def test_a_report_names_the_largest_key_that_does_not_fit_and_what_helps() -> None:
    plain, groups = report(), group_reports(3)
    large = {"of": "input 'customers'", "key": "id=7", "rows": 1_200, "bytes": 10_000_000, "memory": 128 << 20}
    groups[0]["large_key"], groups[2]["large_key"] = {**large, "key": "id=8", "bytes": 9_000_000}, large
    merged = merge_reports(7, ("trades", "customers"), groups)
    assert merged.large_key == large
    assert "large_key" not in plain.as_dict(), "as before, where all fit"
    assert parse_report(json.loads(json.dumps(merged.as_dict()))) == merged
    assert plain.oversized() == []
    assert merged.readings()[0] == (
        "input 'customers': the key id=7 has 1,200 rows of 10.0 MB in files of the state, which are read at once, and "
        "with their copies may need more than the 134.2 MB of a task: set spark.cojoin.memory to 153m where tasks have "
        "that, keep less of a key (a shorter tolerance, interval or time-to-live), or give the key one more column"
    )
    assert "the key id=7 has 1,200 rows" in repr(merged)


def test_the_last_line_of_a_pause_says_what_waits_and_for_whom() -> None:
    assert report().ending() == (
        "paused: 2 rows of 'trades' and 1 row of 'customers' wait for the watermark of 'customers', "
        "which is 1970-01-01 00:00:00.002; they come out when the next run moves it, or with drain=True, which ends "
        "the query: it finishes all inputs, and a later run with this checkpoint is refused. "
        "Since its first batch it rejected 1 row of 'customers' whose key is null"
    )


def test_the_last_line_of_a_pause_says_how_far_the_bound_holds_time_back() -> None:
    trades, customers = report().inputs
    bounded = replace(customers, max_timestamp=customers.watermark + 86_400_001)
    told = replace(report(), inputs=(trades, bounded)).ending()
    assert "which is 1970-01-01 00:00:00.002, 1 d 0 h behind its newest row; they come" in told
    several = replace(bounded, partitions={'["a"]': 2, '["b"]': 8})
    assert "behind" not in replace(report(), inputs=(trades, several)).ending(), "another partition has that row"
    passed = replace(report(), watermark=7).ending()
    assert "wait for the watermark, which is 1970-01-01 00:00:00.007, until 'customers' has passed it; they" in passed


def test_one_row_waits_and_comes_out() -> None:
    trades, customers = report().inputs
    one = replace(report(), inputs=(replace(trades, buffered=0), customers)).ending()
    assert one.startswith("paused: 1 row of 'customers' waits for the watermark of 'customers', which is ")
    assert "; it comes out when the next run moves it, or with drain=True, which ends the query: " in one


def test_the_last_line_says_how_many_rows_were_late_or_rejected_and_why() -> None:
    paused, drained = report(), report(drain=True)
    for each, end in ((paused, "with this checkpoint is refused"), (drained, "drained: all inputs are finished")):
        trades, customers = each.inputs
        trades = replace(trades, rejected={"late": 1_032, "too_far_ahead": 1, "null_key": 0})
        late = replace(each, inputs=(trades, replace(customers, rejected={}, late_applied=2)))
        assert late.ending().endswith(
            f"{end}. Since its first batch it rejected 1,032 rows of 'trades' that came late, 1 row of 'trades' "
            f"too far ahead of the clock and applied 2 rows of 'customers' that came late"
        )
    nothing = replace(paused.inputs[1], rejected={})
    assert replace(paused, inputs=(paused.inputs[0], nothing)).ending().endswith("with this checkpoint is refused")


def test_the_last_line_tells_the_rejected_rows_of_a_run_from_those_before_it() -> None:
    trades, customers = report().inputs
    trades = replace(trades, rejected={"late": 3, "null_key": 1})
    before = replace(report(), inputs=(trades, replace(customers, rejected={})))
    late = replace(before, inputs=(replace(trades, rejected={"late": 5, "null_key": 1}), before.inputs[1]))
    assert late.ending(before=before).endswith(
        "Since its first batch it rejected 5 rows of 'trades' that came late, 1 row of 'trades' whose key is null; in "
        "this run it rejected 2 rows of 'trades' that came late"
    )
    assert before.ending(before=before).endswith("whose key is null; none of these rows came in this run")
    nothing = replace(before, inputs=(replace(trades, rejected={}), before.inputs[1]))
    assert "this run" not in nothing.ending(before=nothing)


def test_every_reason_has_words_for_the_last_line() -> None:
    for reason in get_args(Reason):
        told = replace(report(), inputs=(replace(report().inputs[0], rejected={reason: 2}), report().inputs[1]))
        assert "it rejected 2 rows of 'trades' " in told.ending()


def test_the_last_line_says_that_all_are_idle() -> None:
    idle = replace(report(), holding_input=None)
    told = idle.ending()
    assert (
        "1 row of 'customers' wait while all source partitions are idle, with the watermark at 1970-01-01 00:" in told
    )
    assert (
        "With when_all_idle='max' in connect(...) the watermark advances to 1970-01-01 00:00:00.008 while all" in told
    )
    # Where the watermark is at the newest already, the setting is set, or would change nothing.
    assert "when_all_idle" not in replace(idle, watermark=8).ending()
    trades = replace(idle.inputs[0], status="finished")
    assert "when_all_idle" not in replace(idle, inputs=(trades, idle.inputs[1])).ending()


def test_a_run_that_goes_on_is_not_told_to_drain() -> None:
    told = report().ending(goes_on=True)
    assert told.startswith(
        "caught up: 2 rows of 'trades' and 1 row of 'customers' wait for the watermark of 'customers'"
    )
    assert "they come out as new rows move it. Since" in told
    assert "drain" not in told
    done = tuple(replace(each, buffered=0) for each in report().inputs)
    assert replace(report(), inputs=done).ending(goes_on=True).startswith("caught up: no row waits; the watermark is ")


@pytest.mark.parametrize("held_by", get_args(HeldBy))
def test_a_silent_partition_that_holds_time_is_told_with_what_to_do(held_by: HeldBy) -> None:
    merged, partitions = report(), {'["c", 0]': 5, '["c", 1]': 2}
    silent = replace(merged.inputs[1], held_by=held_by, partitions=partitions, holding_partition='["c", 1]')
    told = replace(merged, inputs=(merged.inputs[0], silent)).ending()
    assert "The partition 1 of 'customers' has no newer rows: with_idleness(...) in its watermark strategy lets" in told
    only = replace(silent, partitions={'["c", 1]': 2})
    assert "The only partition of 'customers' has no" in replace(merged, inputs=(merged.inputs[0], only)).ending()
    silent = replace(silent, has_idleness=True)
    assert "with_idleness" not in replace(merged, inputs=(merged.inputs[0], silent)).ending(), "it has one"


def test_the_last_line_of_a_drain_says_which_timers_did_not_fire() -> None:
    drained = report(drain=True)
    rejected = ". Since its first batch it rejected 1 row of 'customers' whose key is null"
    assert drained.ending() == f"drained: all inputs are finished{rejected}"
    left = replace(drained, details={"timers_not_fired": 1_234})
    unfired = "1,234 timers set during the drain did not fire"
    assert left.ending() == f"drained: all inputs are finished; {unfired}{rejected}"


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


def test_a_report_shows_its_table_and_how_it_ended_with_times_as_times() -> None:
    found = replace(report(), processing_time=1_768_478_400_000)
    head, *table, ending = repr(found).splitlines()
    assert head.startswith(f"After batch {found.batch_id}, at 2026-01-15 12:00:00.000 UTC: watermark 1970-01-01 ")
    assert "\n".join(table) == found.table()
    assert ending == found.ending()
    page = found._repr_html_()
    assert all(cell in page for row in found.table_rows() for cell in row)
    assert "1768478400000" not in repr(found) + page
    assert repr(found.inputs[0]).startswith(f"Input {found.inputs[0].name!r}: {found.inputs[0].rows_in} rows in, ")
    assert repr(BatchReport.before_the_first(("a", "b"))).startswith("Before the first batch\n")


def test_how_far_a_snapshot_is_read_is_told_and_stored() -> None:
    groups = [each | {"loads": {"2": [2_000_000, 5_000_000]}} for each in group_reports(2)]
    merged = merge_reports(7, ("trades", "customers"), groups)
    assert [each.snapshot_rows for each in merged.inputs] == [None, (2_000_000, 5_000_000)]
    assert "customers: 2,000,000 of 5,000,000 rows of the snapshot read" in str(merged)
    stored = json.loads(json.dumps(merged.as_dict()))
    assert parse_report(stored) == merged
    for each in stored["inputs"]:
        # A report of a release before has neither.
        del each["snapshot_rows"], each["reads_changes"]
    assert parse_report(stored).inputs[1].snapshot_rows is None


def customers_of(**values: Any) -> BatchReport:
    merged = report()
    return replace(merged, inputs=(merged.inputs[0], replace(merged.inputs[1], **values)))


def test_a_table_that_does_not_change_and_holds_time_is_told_with_what_to_do() -> None:
    told = customers_of(reads_changes=True).ending()
    assert "'customers' is the changes of a table, whose watermark stands still while it does not change" in told
    assert "with_idleness(...)" in told
    assert "drain=True" not in told, "one setting"
    assert "changes of a table" not in report().ending()


@pytest.mark.parametrize("values", [{"has_idleness": True}, {"idle_after_ms": 86_400_000}])
def test_a_setting_that_is_set_is_not_advised(values: dict[str, Any]) -> None:
    assert "with_idleness" not in customers_of(reads_changes=True, **values).ending()


def test_the_last_line_says_when_an_input_goes_idle_and_when_it_has() -> None:
    told = customers_of(idle_after_ms=86_400_000).ending()
    assert "when the next run moves it, or finds that 'customers' had no row for 1 d 0 h, and so is idle. Since" in told
    idle = customers_of(idle_after_ms=1, quiet_since=1_000, status="idle")
    assert (
        ". The watermark advances without 'customers', which is idle: no row since 1970-01-01 00:00:01.000 UTC"
        in idle.ending()
    )


def test_where_all_inputs_are_idle_the_last_line_says_that_rows_wait_for_them() -> None:
    idle = replace(customers_of(quiet_since=1_000, status="idle"), holding_input=None)
    told = idle.ending()
    assert "wait while all source partitions are idle" in told
    assert "With when_all_idle='max' in connect(...) the watermark advances to" in told
    assert ". 'customers' is idle: no row since 1970-01-01 00:00:01.000 UTC" in told
    assert "advances without" not in told
    assert furthest_of_idle(idle) == 8
    assert furthest_of_idle(report()) is None


def test_a_query_that_runs_on_is_told_from_when_it_must_know_idleness() -> None:
    advice = "advance without it; a query that runs on needs the idleness from its checkpoint's first run"
    assert advice in customers_of(reads_changes=True).ending(goes_on=True)


def test_the_last_line_names_a_tables_promise_and_the_commits_that_broke_it() -> None:
    promise = {"version": 7, "asked_at": 60_002, "up_to": 2, "watermark": 2}
    told = customers_of(reads_changes=True, promise=promise, watermark=2).ending()
    again = "; they come out when the next run moves it, which asks for the newest version of 'customers' again; "
    assert f"{again}the last one did so at 1970-01-01 00:01:00.002 UTC. Since" in told
    broken = customers_of(promise=promise, late_commits=2, late_commit=(9, 1))
    assert broken.ending().endswith(
        "Since the query's first batch, 2 rows of 'customers' came late, in commits with times up to which its table "
        "had been read already, the newest one version 9 of 1970-01-01 00:00:00.001 UTC: set clock_skew= of its source "
        "to at least the time by which its writers' clocks are slow"
    )
    stored = json.loads(json.dumps(broken.as_dict()))
    assert parse_report(stored) == broken
    assert not {"promise", "late_commits", "quiet_since"} & {*report().as_dict()["inputs"][1]}, "as earlier versions"


def test_the_newest_late_commit_of_all_key_groups_is_told() -> None:
    groups = group_reports(3)
    groups[0]["inputs"][1] |= {"late_commits": 1, "late_commit": [3, 10]}
    groups[2]["inputs"][1] |= {"late_commits": 2, "late_commit": [4, 8]}
    merged = merge_reports(7, ("trades", "customers"), groups).inputs[1]
    assert (merged.late_commits, merged.late_commit) == (3, (4, 8))
