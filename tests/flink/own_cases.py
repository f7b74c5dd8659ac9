"""Cases of our own, in the file's form: rules of Flink's that it has no case for, run by the same steps."""

from __future__ import annotations

from typing import Any

from tests.flink.cases import MAX, Events, fired, read_cases, record


def watermark(ts: int) -> dict[str, Any]:
    return {"kind": "watermark", "value": None, "ts": ts}


def status(value: str) -> dict[str, Any]:
    return {"kind": "status", "value": value, "ts": None}


def side(value: Any, ts: int | None) -> dict[str, Any]:
    return {"kind": "side", "tag": "side", "value": value, "ts": ts}


def step(op: str, value: Any = None, ts: int | None = None, **more: Any) -> dict[str, Any]:
    return {"op": op, "value": value, "ts": ts, **more}


def row(number: int, value: Any, ts: int | None, key: str = "k", kind: str = "+I") -> dict[str, Any]:
    return step(f"element{number}", value, ts, key=key, row_kind=kind)


def both(ts: int) -> list[dict[str, Any]]:
    return [step("watermark1", ts=ts), step("watermark2", ts=ts)]


def case(
    name: str, description: str, steps: list[Any], expected: Events, order: str = "exact", source: str = "own"
) -> Any:
    return {
        "id": name,
        "description": description,
        "source_test": source,
        "steps": steps,
        "expected": expected,
        "order": order,
    }


OWN_CASES = read_cases(
    [
        case(
            "co-own-27",
            "a watermark of an idle input wakes it, and time stands still until it has caught up",
            [
                *(step("watermark1", ts=100), step("watermark2", ts=90), step("status2", "IDLE")),
                *(step("watermark2", ts=95), step("watermark1", ts=200), step("watermark2", ts=150)),
            ],
            [watermark(90), watermark(100), watermark(150)],
        ),
        case(
            "co-own-both-idle",
            "an input that wakes ends the idleness of both, once",
            [
                *both(5),
                step("status1", "IDLE"),
                step("status2", "IDLE"),
                step("watermark2", ts=7),
                step("status1", "ACTIVE"),
            ],
            [watermark(5), status("IDLE"), status("ACTIVE"), watermark(7)],
        ),
        case(
            "co-own-late",
            "an element below the watermark is not dropped",
            [*both(17), row(1, "late", 12), row(2, "on time", 18)],
            [watermark(17), record("late", 12), record("on time", 18)],
        ),
        case(
            "co-own-side",
            "side outputs and the main one come in the order of yields; a processing-time timer's rows have no time",
            [row(1, 0, 3), *both(10), step("processing_time", ts=20)],
            [
                *(side("before 10", 10), record(10, 10), side("after 10", 10), watermark(10)),
                *(side("before 20", None), record(20), side("after 20", None)),
            ],
        ),
        case(
            "ts-own-end",
            "at the end of both inputs timers fire by time, and see the end of time",
            [
                step("register_event", "n", 30, key="a"),
                step("register_event", "n", 10, key="b"),
                step("end_of_input"),
            ],
            [
                fired("event", "b", "n", 10) | {"current_watermark": MAX},
                fired("event", "a", "n", 30) | {"current_watermark": MAX},
            ],
        ),
        case(
            "ts-own-same-sweep",
            "a timer set in on_timer at or below the watermark fires in the same sweep, in the order of time",
            [step("register_event", "n", 10, key="k"), step("watermark", ts=30), step("watermark", ts=40)],
            [
                *(fired("event", "k", "n", ts) for ts in (10, 5, 20)),
                *(watermark(30), fired("event", "k", "n", 40), watermark(40)),
            ],
        ),
        case(
            "ts-own-delete",
            "deleting a timer that is not there, or of another key or namespace, does nothing",
            [
                step("delete_event", "n", 10, key="k"),
                step("register_event", "n", 10, key="k"),
                *(step("delete_event", "n", 11, key="k"), step("delete_proc", "n", 10, key="k")),
                *(step("delete_event", "m", 10, key="k"), step("delete_event", "n", 10, key="l")),
                step("watermark", ts=10),
            ],
            [fired("event", "k", "n", 10)],
        ),
        case(
            "ts-own-restore",
            "an overdue timer fires right after a restore; the watermark survives it",
            [
                *(step("watermark", ts=10), step("register_proc", "n", 5, key="k"), step("snapshot_restore")),
                *(step("watermark", ts=10), step("processing_time", ts=6)),
            ],
            [watermark(10), fired("proc", "k", "n", 5)],
        ),
        case(
            "ts-own-batch",
            "BATCH mode: rows and timers of two keys; a timer sees the end of time",
            [
                *(step("register_event", "n", 20, key=1), step("register_event", "n", 10, key=1)),
                *(step("next_key", 2), step("register_event", "n", 15, key=2), step("register_proc", "n", 1, key=2)),
                *(step("assert", "current_watermark", expect=-(1 << 63)), step("next_key", 3)),
            ],
            [
                *(fired("event", key, "n", ts) | {"current_watermark": MAX} for key, ts in ((1, 10), (2, 15), (1, 20))),
                fired("proc", 2, "n", 1) | {"current_watermark": MAX},
            ],
        ),
        case(
            "ij-own-mirror",
            "lower=-1 incl, upper=2 excl: the right first",
            [
                *(row(2, ts, ts) for ts in range(1, 5)),
                *(row(1, ts, ts) for ts in range(1, 5)),
                *both(5),
            ],
            [
                record([left, right], max(left, right))
                for left in range(1, 5)
                for right in (left - 1, left, left + 1)
                if 0 < right < 5
            ],
            order="any",
        ),
        case(
            "ij-own-keys",
            "lower=0, upper=0: keys do not mix, and every equal row pairs with every other",
            [row(1, 1, 1), row(1, 1, 1), row(2, 1, 1), row(2, 1, 1), row(2, 1, 1, "l"), *both(2), row(1, 1, 1)],
            [record([1, 1], 1)] * 4 + [{"kind": "side", "tag": "left_late", "value": 1, "ts": 1}],
            order="any",
        ),
        case(
            "tj-own-left",
            "left: before the first version, at a version's own time, after a delete, after a version that comes again",
            [
                *(row(2, [2, "k", "a"], 2), row(2, [4, "k", "a"], 4, kind="-D"), row(2, [6, "k", "b"], 6)),
                *(row(1, [ts, "k", f"p{ts}"], ts) for ts in (7, 1, 2, 3, 4, 5, 6)),
                *both(7),
            ],
            [
                *(
                    {**record([ts, "k", f"p{ts}", *found]), "row_kind": "+I"}
                    for ts, found in (
                        (1, [None] * 3),
                        (2, [2, "k", "a"]),
                        (3, [2, "k", "a"]),
                        (4, [None] * 3),
                        (5, [None] * 3),
                        (6, [6, "k", "b"]),
                        (7, [6, "k", "b"]),
                    )
                ),
                watermark(7),
            ],
        ),
        case(
            "tj-own-late-version",
            "inner: a late version is applied, and serves the rows to come only",
            [
                *(row(2, [1, "k", "a"], 1), row(1, [5, "k", "p5"], 5), *both(5)),
                *(row(2, [3, "k", "b"], 3), row(1, [6, "k", "p6"], 6), *both(6)),
            ],
            [
                *({**record([5, "k", "p5", 1, "k", "a"]), "row_kind": "+I"}, watermark(5)),
                *({**record([6, "k", "p6", 3, "k", "b"]), "row_kind": "+I"}, watermark(6)),
            ],
        ),
        case(
            "wm-own-punctuated",
            "rows that carry no flag move nothing",
            [step("element", [True, 4]), step("element", [False, 9]), step("element", [True, 6])],
            [
                *(record([True, 4], 4), watermark(4), record([False, 9], 9)),
                *(record([True, 6], 6), watermark(6)),
            ],
            source="punctuated",
        ),
        case(
            "va-own-ahead",
            "a channel that wakes ahead of the others counts at once",
            [
                step("construct", "2 channels, all ACTIVE at MIN"),
                step("channel_watermark", 10, 10, channel=0, emits=[]),
                step("channel_status", "IDLE", channel=0, emits=[]),
                step("channel_watermark", 8, 8, channel=1, emits=[watermark(8)]),
                step("channel_status", "ACTIVE", channel=0, emits=[]),
                step("channel_watermark", 12, 12, channel=1, emits=[watermark(10)]),
            ],
            [watermark(8), watermark(10)],
        ),
        case(
            "tt-own-renewed",
            "OnReadAndWrite: a read prolongs",
            [
                *(step("clock", ts=0), step("update", "v1"), step("clock", ts=90), step("get", expect="v1")),
                *(step("clock", ts=189), step("get", expect="v1"), step("clock", ts=289), step("get", expect="empty")),
            ],
            [],
        ),
    ]
)
