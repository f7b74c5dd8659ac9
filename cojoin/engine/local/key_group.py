"""One key group's operator from its creation to its close; whatever runs an operator runs it as a ``KeyGroup``.

A call of a stream on Spark makes one for each key group and micro-batch, and a call on static inputs one for all rows.
In this process ``local_run`` has one for each key group. It adds a step of a generator to each emitted table, and
nothing to a row.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cojoin.errors import CojoinError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from cojoin.engine.local.emitted_rows import RowNotes
    from cojoin.engine.operator import Batch, Emission, Operator
    from cojoin.engine.plan import Plan

__all__ = ["ConservationError", "KeyGroup", "check_conservation", "without_garbage_collection"]


class ConservationError(CojoinError):
    """An operator that lost a row, or counted one twice; this is a defect of cojoin."""


class KeyGroup:
    """One key group's operator; the end of a ``with`` block closes it.

    If a batch has failed, an error of ``close`` does not take the place of the batch's own.

    Args:
        plan: The operation and its inputs.
        number: The key group's number.

    Attributes:
        operator: The operator, new and not yet restored.
        number: The key group's number.
        emitted: How many rows the last batch emitted, by output.
        notes: The notes about a function's rows of the last batch; None where none are taken.
    """

    def __init__(self, plan: Plan, number: int = 0) -> None:
        self.operator: Operator = plan.create_operator()
        self.number = number
        self.emitted: Counter[str] = Counter()
        self.notes: RowNotes | None = None

    def process(self, batch: Batch) -> Iterator[Emission]:
        """Run a batch and yield what it emits; exhaust the iterator before taking a report or a state."""
        self.emitted = Counter()
        for emission in self.operator.process(batch):
            self.emitted[emission.kind] += emission.table.num_rows
            yield emission

    def report(self, state_bytes: int = 0) -> dict[str, Any]:
        """Return the key group's part of a batch report, as ``BatchReport.merge`` takes it.

        Args:
            state_bytes: The size of its state.
        """
        return {
            "key_group": self.number,
            "state_bytes": state_bytes,
            "emitted": dict(self.emitted),
            **self.operator.report(),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with suppress(*([] if kind is None else [CojoinError])):
            self.operator.close()


def check_conservation(operator: Operator) -> None:
    """Check that every row of an operator is accounted for: rows in = done + buffered + rejected.

    Raises:
        ConservationError: A row was lost or counted twice.
    """
    for spec, counts in zip(operator.inputs, operator.report()["inputs"], strict=True):
        rejected = sum(counts["rejected"].values())
        if counts["rows_in"] != counts["done"] + counts["buffered"] + rejected:
            msg = (
                f"input {spec.name!r}: rows were lost, or counted twice: {counts['rows_in']} in, but {counts['done']} "
                f"done + {counts['buffered']} buffered + {rejected} rejected"
            )
            raise ConservationError(msg)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable the process's garbage collection within a ``with`` block, also while a generator in it is suspended.

    The rows of a batch stay alive until its end, and scanning them would take a fifth of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
