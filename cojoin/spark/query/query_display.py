"""How a query shows itself: whether it runs, how far it is, its inputs' counts and watermarks, its checkpoint.

It is what is known in this process at the moment: it asks neither Spark nor the checkpoint.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cojoin.engine.display import Display
from cojoin.engine.plan import describe_operation
from cojoin.spark.progress.figures import Figures
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from cojoin.engine.plan import Plan
    from cojoin.spark.query.query import Query

__all__ = ["query_display"]


def query_display(query: Query, plan: Plan, checkpoint: str) -> Display:
    """Return what a query shows.

    Args:
        query: The query.
        plan: What it runs.
        checkpoint: Its checkpoint directory.
    """
    left, right = plan.inputs
    report, error = query.progress, query.exception()
    state = "running" if query.is_active else "ended" if error is None else "failed"
    head = f"Query: {describe_operation(plan.operation)} of {left.name!r} with {right.name!r}, {state}"
    batches = f"{query.batches:,} batch{'es' * (query.batches != 1)} in this run"
    notes = [f"{batches}; checkpoint {without_login(checkpoint)}"]
    if report is None:
        return Display(f"{head}, before the first batch", notes=[*_failure(error), *notes])
    notes = [report.headline() + ".", *report.loading(), *report.readings(), *notes]
    if error is None and not query.is_active:
        notes.insert(0, report.ending())
    return Display(head, report.table_rows(), [*_failure(error), *notes], _share(query))


def _share(query: Query) -> float | None:
    """Return how far a running query is within the range of event time that it goes through; None if it is live."""
    if not query.is_active or query.span is None:
        return None
    figures = Figures(time.monotonic(), None)
    figures.look(time.monotonic(), query.progress, query.batches, query.span)
    return None if figures.goal is None else figures.goal.done / figures.goal.total


def _failure(error: BaseException | None) -> list[str]:
    return [] if error is None else [f"{type(error).__name__}: {without_login(str(error))}"]
