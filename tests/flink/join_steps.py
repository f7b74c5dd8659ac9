"""Runs a case of a join (ij, tj) through the harness.

Our interval join emits at the watermark, Flink's DataStream API at once: where the order is open, what is still to come
is drained at the end of the case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cojoin.engine.joins import IntervalJoin, TemporalJoin
from cojoin.errors import CojoinError
from cojoin.testing import Element, Harness, HarnessInput, Record, Rejected, StatusChange, Watermark

if TYPE_CHECKING:
    from tests.flink.cases import Case, Events


def run(case: Case) -> Events:
    """Run a case's steps, its asserts included; give what came out."""
    return (_Interval(case) if case.kind == "ij" else _Temporal(case)).run()


class _Steps:
    drains = False

    def __init__(self, case: Case) -> None:
        self.case = case
        self.events: Events = []
        self.number = 0
        self.harness = self.make()

    def make(self) -> Harness:
        raise NotImplementedError

    def run(self) -> Events:
        has_marker = any(event["kind"] == "marker" for event in self.case.expected or ())
        for step in self.case.steps:
            if step["op"] == "snapshot_restore" and has_marker:
                self.events.append({"kind": "marker"})
            try:
                self.step(step)
            except CojoinError as error:
                if isinstance(error, AssertionError):
                    raise
                self.events.append({"kind": "error"})
            self.collect()
        if self.drains:
            self.harness.end_input()
            self.collect()
        return self.events

    def step(self, step: dict[str, Any]) -> None:
        op, harness = step["op"], self.harness
        if op in ("element1", "element2"):
            self.number += 1
            number = int(op[-1])
            element = Element(self.row(number, step), self.time(step))
            harness.process_batch(*([[element], []] if number == 1 else [[], [element]]))
        elif op in ("watermark1", "watermark2"):
            getattr(harness, f"process_{op}")(step["ts"])
        elif op == "snapshot_restore":
            data = harness.snapshot()
            self.collect()
            self.harness = self.make()
            self.harness.restore(data)
        elif op == "processing_time":
            harness.set_processing_time(step["ts"])
        elif op == "assert":
            self.check(step["value"], step["expect"])
        else:
            raise NotImplementedError(op)

    def row(self, number: int, step: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def time(self, step: dict[str, Any]) -> int | None:
        return step["ts"]

    def check(self, what: str, expected: Any) -> None:
        raise NotImplementedError

    def collect(self) -> None:
        for event in self.harness.take():
            if isinstance(event, Watermark):
                self.events.append({"kind": "watermark", "value": None, "ts": event.timestamp})
            elif isinstance(event, Record):
                self.events.append({"kind": "record", "ts": event.timestamp, **self.shown(event.value)})
            elif isinstance(event, Rejected) and event.reason == "late":
                tag = f"{event.input}_late"
                self.events.append({"kind": "side", "tag": tag, "value": event.row["value"], "ts": event.timestamp})
            else:
                assert isinstance(event, (Rejected, StatusChange))

    def shown(self, row: Any) -> dict[str, Any]:
        raise NotImplementedError


class _Interval(_Steps):
    """Values of SQL's joins are rows (value, key); of the DataStream API's the elements alone."""

    def __init__(self, case: Case) -> None:
        self.is_sql = "SQL" in case.description or case.id in ("ij-27", "ij-28")
        self.drains = case.any_order and not self.is_sql
        super().__init__(case)
        if self.drains:
            lates = [event for event in case.expected or () if event["kind"] == "side"]
            self.tells_late = bool(lates)

    tells_late = False

    def make(self) -> Harness:
        # Columns of a processing-time case have values that are texts.
        kind = "string" if any(isinstance(step["value"], str) for step in self.elements()) else "long"
        late = "apply" if self.is_sql else None
        inputs = [
            HarnessInput(f"k string, value {kind}", key="k", event_time="at", name=name, late=late)  # type: ignore[arg-type]
            for name in ("left", "right")
        ]
        return Harness.of(self.join(), input1=inputs[0], input2=inputs[1], regressing_watermarks="ignore")

    def elements(self) -> list[dict[str, Any]]:
        return [step for step in self.case.steps if step["op"].startswith("element")]

    def join(self) -> IntervalJoin:
        text = self.case.description
        suffixes = ("_left", "_right")
        if sql := re.search(r"in \[b.ts([+-]\d+), b.ts([+-]\d+)\]", text):
            # Of the left less the right; ours is of the right less the left.
            lower, upper = -int(sql[2]), -int(sql[1])
        elif self.is_sql:
            lower, upper = -9, 5
        elif stated := re.search(r"lower=(-?\d+)( incl| excl)?, upper=(-?\d+)( incl| excl)?", text):
            options = {"lower_inclusive": stated[2] != " excl", "upper_inclusive": stated[4] != " excl"}
            return IntervalJoin(f"{stated[1]} ms", f"{stated[3]} ms", suffixes=suffixes, **options)
        else:
            lower, upper = -1, 1
        how = next((word for word in ("left", "right", "full") if f"SQL {word}" in text), "inner")
        return IntervalJoin(f"{lower} ms", f"{upper} ms", how, suffixes=suffixes)  # type: ignore[arg-type]

    def row(self, number: int, step: dict[str, Any]) -> dict[str, Any]:
        return {"k": str(step["key"]), "value": step["value"]}

    def check(self, what: str, expected: Any) -> None:
        if what in ("left_buffer", "right_buffer"):
            assert [row.value for row in self.harness.buffered(1 if what == "left_buffer" else 2)] == expected
        elif what == "state_entries":
            assert sum(self.harness.state_entries().values()) == expected
        else:
            assert len(self.harness.timers()) == expected

    def collect(self) -> None:
        super().collect()
        if not self.tells_late:
            self.events = [event for event in self.events if event["kind"] != "side"]

    def shown(self, row: Any) -> dict[str, Any]:
        times = [None if each is None else round(each.timestamp() * 1000) for each in (row.at, row.right_event_time)]
        shown: dict[str, Any] = {"left_ts": times[0], "right_ts": times[1], "value": [row.value_left, row.value_right]}
        if self.is_sql and not self.case.has("processing_time"):
            sides = [None if value is None else row.k for value in shown["value"]]
            shown |= {"value": [row.value_left, sides[0], row.value_right, sides[1]], "sql": True}
        return shown


class _Temporal(_Steps):
    """A left row is (time, key, value), of LATERAL SNAPSHOT's (time, key); so is a right one, there (key, value)."""

    @property
    def is_snapshot(self) -> bool:
        return "LateralSnapshot" in self.case.source

    def make(self) -> Harness:
        text = self.case.description
        join = TemporalJoin("left" if "left" in text or "LOAD" in text else "inner", deletes="gone")
        # The tests are older than FLINK-39719: a late left row is joined with what is still there.
        probes = HarnessInput("k string, t long, v string, kind string", key="k", event_time="at", late="apply")
        builds = HarnessInput(
            "k string, rt long, rk string, rv string, gone boolean, number long",
            key="k",
            event_time="since",
            sequence="number",
        )
        load = {"tj-19": 1}.get(self.case.id, 100) if self.is_snapshot else None
        return Harness.of(join, input1=probes, input2=builds, hold_left_until=load)

    def time(self, step: dict[str, Any]) -> int | None:
        # LATERAL SNAPSHOT's probes have times that the file does not say; they are numbered in order.
        return step["value"][0] if step["ts"] is None else step["ts"]

    def row(self, number: int, step: dict[str, Any]) -> dict[str, Any]:
        value, kind = step["value"], step.get("row_kind", "+I")
        if number == 1:
            return {"k": value[1], "t": value[0], "v": None if self.is_snapshot else value[2], "kind": kind}
        time, key, content = (step["ts"], *value) if self.is_snapshot else value
        row = {"k": key, "rt": time, "rk": key, "rv": content, "gone": kind in ("-U", "-D")}
        return row | {"number": self.number}

    def check(self, what: str, expected: Any) -> None:
        if what == "event_timers":
            assert len(self.harness.timers()) == expected
        elif what == "output":
            assert (self.events, expected) == ([], "empty")
        else:
            table, key = what.split()
            assert table == "build_table"
            versions = [row.rv for row in self.harness.state(key).get("versions", ())]
            assert versions == ([] if expected == "empty" else expected)

    def shown(self, row: Any) -> dict[str, Any]:
        if self.is_snapshot:
            return {"value": [row.t, row.k, row.rv], "sql": True}
        return {"value": [row.t, row.k, row.v, row.rt, row.rk, row.rv], "row_kind": row.kind, "sql": True}
