"""Customers with a column that says whether a row deletes its key: the shop's streams have none.

``Deleting`` stands between the map side and an operator: where the tier is ``"silver"`` the customer is deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins import TemporalJoin
    from cojoin.engine.operator import Batch, Emission

CLOSED = pa.field("closed", pa.bool_())


def deletes(row: tuple[Any, ...]) -> bool:
    return row[-1] == "silver"


class Deleting:
    """The operator of a temporal join over customers who have the column ``closed``; a null means no, too."""

    def __init__(self, join: TemporalJoin, left: InputSpec, right: InputSpec) -> None:
        self._operator = join.create_operator(left, replace(right, schema=right.schema.append(CLOSED)))

    def process(self, batch: Batch) -> Iterator[Emission]:
        trades, customers = batch.rows
        closed = [{"silver": True, "gold": False}.get(tier) for tier in customers.column("tier").to_pylist()]
        customers = customers.append_column(CLOSED, pa.array(closed, pa.bool_()))
        return self._operator.process(replace(batch, rows=(trades, customers)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_operator":
            super().__setattr__(name, value)
        else:
            setattr(self._operator, name, value)


def deleting(join: TemporalJoin) -> Callable[[InputSpec, InputSpec], Any]:
    """Return what makes such an operator, for ``run``."""
    return lambda left, right: Deleting(join, left, right)
