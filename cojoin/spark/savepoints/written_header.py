"""The header of a state that is written: its watermarks and counters.

The law of conservation holds in it as in any state: of each input, the rows that came in are those that are done, those
that are buffered, and those that were rejected. One key group has the counters of rows done and rejected, and each
counts its own buffered rows, as in a state that was cut anew (``rescaling``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin.checkpoints.inspect.key_state import BUFFERS
from cojoin.engine.batch_report import BatchReport
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.operator_watermark import OperatorWatermark
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.plan import Plan

__all__ = ["WatermarkLike", "group_headers", "moments", "new_watermark", "written_report"]

WatermarkLike: TypeAlias = datetime | int | Mapping[str, datetime | int | None] | None
"""A time up to which an input is complete: a datetime with a time zone or epoch milliseconds, for both or by input."""


def moments(declared: WatermarkLike, inputs: Sequence[InputSpec]) -> list[int | None]:
    """Return the watermark that a user gives each input, in epoch milliseconds; None where none is given.

    Raises:
        ConfigurationError: A time is invalid, or an input is not one of the query's.
    """
    names = [spec.name for spec in inputs]
    if isinstance(declared, (datetime, int)) or declared is None:
        return [_millis(declared)] * 2
    if not hasattr(declared, "keys"):
        return [_millis(declared)] * 2
    for name in declared:
        if name not in names:
            msg = f"write_state: watermark: the query has no input {name!r}{did_you_mean(str(name), names)}"
            raise ConfigurationError(msg)
    return [_millis(declared.get(name)) for name in names]


def _millis(declared: Any) -> int | None:
    if declared is None:
        return None
    if isinstance(declared, datetime) and declared.tzinfo is not None:
        # By whole numbers: a float has too few digits for some microseconds.
        whole = declared.replace(microsecond=0)
        return int(whole.timestamp()) * 1000 + declared.microsecond // 1000
    if isinstance(declared, int) and not isinstance(declared, bool) and -(1 << 63) <= declared < (1 << 63) - 1:
        return declared
    msg = (
        f"write_state: watermark: expected a datetime with a time zone, epoch milliseconds, or a dict of these by "
        f"input, got {declared!r}"
    )
    raise ConfigurationError(msg)


def new_watermark(
    plan: Plan,
    given: Sequence[int | None],
    largest: Sequence[int | None] = (None, None),
    former: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the watermarks of a state, as the header has them.

    Args:
        plan: What the query runs.
        given: Each input's watermark in epoch milliseconds; None keeps the former one.
        largest: The largest timestamp of each input's rows in the state; None where there is none.
        former: The watermarks of the state that this one follows; None where there is none.

    Raises:
        ConfigurationError: A watermark would go back.
    """
    watermark = OperatorWatermark([spec.watermark for spec in plan.inputs], plan.time)
    if former is not None:
        watermark.restore(former)
    for spec, each, until, newest in zip(plan.inputs, watermark.inputs, given, largest, strict=True):
        now = each.snapshot()
        if until is not None:
            if until < now["merge"]["current"]:
                msg = (
                    f"write_state: watermark: that of input {spec.name!r} is at {now['merge']['current']} in the state "
                    f"that this one follows, and can't go back to {until} (epoch milliseconds)"
                )
                raise ConfigurationError(msg)
            now["merge"]["current"] = until
        seen = max(NONE if newest is None else newest, NONE if until is None else until)
        if seen > each.max_timestamp():
            # Under the name of an input's only partition: it has no watermark of its own, and holds nothing back.
            now["largest"][ONE_PARTITION] = seen
        each.restore(now)
    snapshot = watermark.snapshot()
    if former is not None:
        # A strategy that has no idleness now forgets since when partitions are silent; the state keeps it.
        for mine, old in zip(snapshot["inputs"], former["inputs"], strict=True):
            mine["silent_since"], mine["never_spoke"] = old["silent_since"], old["never_spoke"]
    return snapshot


def group_headers(header: Mapping[str, Any], rows: Mapping[int, Mapping[str, int]]) -> dict[int, str]:
    """Return each key group's header as JSON.

    Args:
        header: The header of all key groups together; its first key group gets the counters.
        rows: The rows of each table, by key group.
    """
    nothing: dict[str, Any] = {"rows_in": 0, "done": 0, "late_applied": 0, "rejected": {}}
    found = {}
    for group, tables in rows.items():
        counts = []
        for side in (0, 1):
            own = dict(header["counts"][side]) if group == 0 else dict(nothing)
            buffered = _buffered(tables, side)
            counts.append(own | {"rows_in": own["done"] + buffered + sum(own["rejected"].values())})
        rows_out = header["rows_out"] if group == 0 else 0
        found[group] = json.dumps({**header, "counts": counts, "rows_out": rows_out, "saved": None})
    return found


def _buffered(tables: Mapping[str, int], side: int) -> int:
    return sum(tables.get(name, 0) for name, (owner, _) in BUFFERS.items() if owner == side)


def written_report(
    batch_id: int,
    names: tuple[str, str],
    operator: Operator | None,
    header: Mapping[str, Any],
    rows: Mapping[int, Mapping[str, int]],
    sizes: Mapping[int, int],
    former: BatchReport | None = None,
) -> BatchReport:
    """Return the report of a state that is written.

    Args:
        batch_id: The batch after which it is.
        names: The names of the inputs.
        operator: The operator with the header loaded; None where ``former`` has what it says of time.
        header: The header of all key groups together.
        rows: The rows of each table, by key group.
        sizes: The size of each key group's content in bytes.
        former: The report of the state that this one follows.
    """
    whole: Counter[str] = Counter()
    for each in rows.values():
        whole.update(each)
    inputs = []
    for side in (0, 1):
        own, buffered = header["counts"][side], _buffered(whole, side)
        rows_in = own["done"] + buffered + sum(own["rejected"].values())
        inputs.append({**own, "rows_in": rows_in, "buffered": buffered})
    details = {}
    if "versions" in whole:
        details["versions_in_force"] = whole["versions"]
    if "timers" in whole:
        details |= {"timers": whole["timers"] + whole.get("processing_timers", 0), "timers_not_fired": 0}
    by_group = {str(group): size for group, size in sorted(sizes.items())}
    if operator is None:
        assert former is not None
        report = former.as_dict()
        report["inputs"] = [told | own for told, own in zip(report["inputs"], inputs, strict=True)]
        report |= {"details": details, "state_bytes": sum(sizes.values()), "state_bytes_by_key_group": by_group}
        return BatchReport.from_dict(report | {"segment_bytes_written": 0})
    told = operator.report() | {"inputs": inputs, "details": details, "key_group": 0, "emitted": {}}
    merged = BatchReport.merge(batch_id, names, [{**told, "state_bytes": sum(sizes.values())}]).as_dict()
    return BatchReport.from_dict(merged | {"state_bytes_by_key_group": by_group})
