"""The demo's result: some rows that show what the join does, and the comparison with pandas' ``merge_asof``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cojoin.cli import run_report
from cojoin.cli.run_report import say
from cojoin.cli.verification import Verdict, admitted, compare, expected_rows

if TYPE_CHECKING:
    from cojoin.cli.day import Day
    from cojoin.engine.plan import Plan

__all__ = ["telling_rows", "verify"]

_SHOWN = 6


def verify(plan: Plan, day: Day, output: pa.Table, watermark: int) -> Verdict:
    """Compare the output with that of ``merge_asof``, and print the verdict.

    Args:
        plan: The join.
        day: The rows.
        output: The joined rows.
        watermark: The operator's watermark after the run, in epoch milliseconds.
    """
    tables = admitted(day.trades, plan.left), admitted(day.customers, plan.right)
    verdict = compare(expected_rows(plan.operation, plan.inputs, tables, watermark), output)  # type: ignore[arg-type]
    say(run_report.verdict(verdict))
    return verdict


def telling_rows(output: pa.Table) -> pa.Table:
    """Return successive trades of one customer between which the record in force changes most, ideally from none."""
    ordered = output.sort_by([("customer_id", "ascending"), ("event_time", "ascending")])
    keys = ordered["customer_id"].to_numpy()
    versions = ordered["customers_event_time"].cast(pa.int64()).fill_null(-1).to_numpy()
    changes = np.zeros(len(keys), dtype=np.int64)
    changes[1:] = (keys[1:] == keys[:-1]) & (versions[1:] != versions[:-1])
    total = np.cumsum(changes)
    starts = np.arange(max(0, len(keys) - _SHOWN + 1))
    ends = starts + _SHOWN - 1
    score = (total[ends] - total[starts]) + (versions[starts] == -1)
    score[keys[starts] != keys[ends]] = -1
    return ordered.slice(int(np.argmax(score)), _SHOWN) if len(score) else ordered.slice(0, _SHOWN)
