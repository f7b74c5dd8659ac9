"""The as-of join, backward: each left row with the right row (version) in force at its event time.

Keeps: left rows until the watermark passes them; of each key's versions the newest at or below the watermark and all
later ones. Emits: a left row when the watermark reaches its timestamp, once. Forgets: a left row when emitted; a
version when a newer one is in force, or when it is older than the ``tolerance`` allows any row to come. Ties: a version
of the same microsecond is in force (unless ``allow_exact_matches=False``), and of two of one microsecond the later in
the total order. Late: a left row is rejected; a late version is applied, being the truth for every row to come. Costs:
a sort of the batch's rows and of the key group's versions as integers, then one binary search a left row; no Python per
row. (pandas ``merge_asof``, DuckDB ``ASOF JOIN``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from cojoin.durations import Duration, microseconds
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.inputs import event_micros, event_millis
from cojoin.joins.columns import Suffixes, joined_schema
from cojoin.keys import encode_keys
from cojoin.operator import Operator, Sides, concat, take_rows
from cojoin.ordering import OrderedPart, combine, total_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cojoin.inputs import InputSpec

__all__ = ["AsofHow", "AsofJoin", "AsofJoinOperator"]

AsofHow: TypeAlias = Literal["left", "inner"]
"""What becomes of a left row without a match.

- *left*: it is emitted with nulls for the right's columns.
- *inner*: it is not emitted, and counted as done.
"""


@dataclass(frozen=True)
class AsofJoin:
    """The configuration of an as-of join.

    Attributes:
        how: What becomes of a left row without a match.
        tolerance: How old a version may be to match, itself included; None means any age.
        allow_exact_matches: Whether a version of the row's own microsecond matches.
        suffixes: What is appended to equal names of the left and the right; None refuses equal names.

    Raises:
        ConfigurationError: A value that is not one of these.
    """

    how: AsofHow = "left"
    tolerance: Duration | None = None
    allow_exact_matches: bool = True
    suffixes: Suffixes | None = None

    def __post_init__(self) -> None:
        if self.how not in get_args(AsofHow):
            msg = f"how: expected 'left' or 'inner', got {self.how!r}{did_you_mean(str(self.how), get_args(AsofHow))}"
            raise ConfigurationError(msg)
        if not isinstance(self.allow_exact_matches, bool):
            msg = f"allow_exact_matches: expected True or False, got {self.allow_exact_matches!r}"
            raise ConfigurationError(msg)
        if self.tolerance is not None:
            microseconds(self.tolerance, "tolerance")

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Give the columns of the result: the left's, then the right's without its key.

        Raises:
            SchemaError: Names that collide.
        """
        return joined_schema(left, right, self.suffixes)

    def create_operator(self, left: InputSpec, right: InputSpec) -> AsofJoinOperator:
        """Make the operator of one key group."""
        return AsofJoinOperator(self, left, right)

    def describe(self) -> dict[str, Any]:
        """Give what makes two as-of joins the same query, as JSON values."""
        tolerance = None if self.tolerance is None else microseconds(self.tolerance, "tolerance")
        return {
            "operator": "asof_join",
            "how": self.how,
            "tolerance_us": tolerance,
            "allow_exact_matches": self.allow_exact_matches,
        }


class AsofJoinOperator(Operator):
    """Runs an as-of join for one key group."""

    def __init__(self, join: AsofJoin, left: InputSpec, right: InputSpec) -> None:
        super().__init__((left, right), ("reject", "apply"))
        self._join = join
        # Beyond any two timestamps' distance it allows all the same, and its sums stay below 64 bits.
        self._tolerance = None if join.tolerance is None else min(microseconds(join.tolerance, "tolerance"), 1 << 62)
        self._schema = join.output_schema(left, right)
        self._right_payload = [name for name in right.schema.names if name not in right.key]
        self._versions = right.schema.empty_table()

    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[pa.Table]:
        """Join the due left rows, then forget the versions that no later row can match."""
        del before, last_event
        if not due[0].num_rows and not due[1].num_rows:
            return
        left, right = self.inputs
        versions = concat([self._versions, due[1]])
        (left_codes, right_codes), _ = encode_keys([left.keys(due[0]), right.keys(versions)])
        versions, right_codes, right_micros = _in_order(versions, right_codes, right)
        if due[0].num_rows:
            rows, left_codes, left_micros = _in_order(due[0], left_codes, left, rank=1)
            matches = self._match(left_codes, left_micros, right_codes, right_micros)
            yield self._output(rows, versions, matches)
        self._versions = versions.filter(pa.array(self._retained(right_codes, right_micros, after)))

    def _match(
        self,
        left_codes: NDArray[np.int64],
        left_micros: NDArray[np.int64],
        right_codes: NDArray[np.int64],
        right_micros: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Give for each left row the position of its version, or -1."""
        count = len(left_codes)
        both = combine(np.concatenate([left_codes, right_codes]), np.concatenate([left_micros, right_micros]))
        side: Literal["left", "right"] = "right" if self._join.allow_exact_matches else "left"
        found = np.searchsorted(both[count:], both[:count], side=side) - 1
        near = np.maximum(found, 0)
        if not len(right_codes):
            return np.full(count, -1, dtype=np.int64)
        valid = (found >= 0) & (right_codes[near] == left_codes)
        if self._tolerance is not None:
            valid &= left_micros - right_micros[near] <= self._tolerance
        return np.where(valid, found, -1)

    def _output(self, rows: pa.Table, versions: pa.Table, matches: NDArray[np.int64]) -> pa.Table:
        matched = matches >= 0
        if self._join.how == "inner" and not matched.all():
            rows, matches = rows.filter(pa.array(matched)), matches[matched]
            matched = matches >= 0
        positions = pa.array(matches, mask=None if matched.all() else ~matched)
        found = versions.select(self._right_payload).take(positions)
        return pa.Table.from_arrays([*rows.columns, *found.columns], schema=self._schema)

    def _retained(self, codes: NDArray[np.int64], micros: NDArray[np.int64], watermark: int) -> NDArray[np.bool_]:
        """Tell which sorted versions to keep: each key's newest, for all of them are at or below the watermark."""
        newest = np.ones(len(codes), dtype=bool)
        newest[:-1] = codes[1:] != codes[:-1]
        if self._tolerance is not None:
            # The earliest row to come is one millisecond after the watermark.
            newest &= event_millis(micros + self._tolerance) > watermark
        return newest

    def state_tables(self) -> dict[str, pa.Table]:
        """Give the versions in force."""
        return {"versions": self._versions}

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Take the versions in force."""
        self._versions = tables["versions"]

    def details(self) -> dict[str, int]:
        """Report the versions in force."""
        return {"versions_in_force": self._versions.num_rows}


def _in_order(
    table: pa.Table, codes: NDArray[np.int64], spec: InputSpec, rank: int = 0
) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.int64]]:
    """Sort rows by key and total order; give them with their key codes and event times."""
    micros = event_micros(table, spec.event_time)
    order = total_order([OrderedPart(codes, micros, rank, table, spec.source_order)])
    return take_rows(table, order), codes[order], micros[order]
