"""The check of rows with a span of validity: that none ends before it begins, and that those of a key do not overlap.

Rows that are all there are checked before anything runs; the first of the rows that are wrong is shown as an example.
Rows with a null key, or a null begin, are rejected when they are read. A row that ends where it begins was never valid,
and overlaps with none. It costs one sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.ordering import OrderedPart, sort_part
from cojoin.engine.values.keys import encode_keys
from cojoin.engine.values.rows import decode_rows, describe_row
from cojoin.engine.values.tables import event_micros
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from cojoin.engine.inputs import InputSpec

__all__ = ["check_validity", "ends_too_early", "overlapping"]

_LAST = (1 << 63) - 1


def check_validity(rows: pa.Table, spec: InputSpec) -> None:
    """Check rows in memory.

    Args:
        rows: The rows of the source.
        spec: Their input, whose rows have a span of validity.

    Raises:
        ConfigurationError: Rows end before they begin, or rows of a key overlap.
    """
    assert spec.changes is not None
    valid_from, valid_to = spec.changes.valid_from, spec.changes.valid_to
    if valid_from is None or valid_to is None:
        return
    known = np.ones(rows.num_rows, dtype=bool)
    for name in (*spec.key, valid_from):
        known &= np.asarray(pc.is_valid(rows.column(name)).to_numpy())
    rows = rows.filter(pa.array(known)).combine_chunks()
    begins, ends = event_micros(rows, valid_from), event_micros(rows, valid_to)
    ends = np.where(np.asarray(pc.is_null(rows.column(valid_to)).to_numpy()), _LAST, ends)
    wrong = np.flatnonzero(ends < begins)
    if len(wrong):
        raise ends_too_early(spec, len(wrong), _shown(rows, int(wrong[0])))
    rows = rows.filter(pa.array(ends > begins))
    begins, ends = begins[ends > begins], ends[ends > begins]
    (codes,), _ = encode_keys([spec.keys(rows)])
    order, codes, _ = sort_part(OrderedPart(codes, begins, 0, rows, spec.source_order))
    # Where no earlier row overlaps, none ends later than the row before, so the first overlap of a key is found.
    overlaps = np.flatnonzero((codes[1:] == codes[:-1]) & (ends[order][:-1] > begins[order][1:]))
    if len(overlaps):
        pair = [_shown(rows, int(order[overlaps[0] + step])) for step in (0, 1)]
        raise overlapping(spec, len(overlaps), pair[0], pair[1])


def ends_too_early(spec: InputSpec, count: int, example: str) -> ConfigurationError:
    """Return the error about rows whose validity ends before it begins.

    Args:
        spec: Their input.
        count: How many there are.
        example: One of them.
    """
    assert spec.changes is not None
    rows = "1 row ends before it begins" if count == 1 else f"{count:,} rows end before they begin"
    return ConfigurationError(
        f"input {spec.name!r}: {rows}: {spec.changes.valid_to!r} is before {spec.changes.valid_from!r}, as in "
        f"{example}; correct or leave out such rows"
    )


def overlapping(spec: InputSpec, count: int, one: str, other: str) -> ConfigurationError:
    """Return the error about rows of a key that are valid at the same time.

    Args:
        spec: Their input.
        count: How many rows begin before the row before them has ended.
        one: A row of the first pair.
        other: The row after it.
    """
    assert spec.changes is not None
    rows = "1 row is" if count == 1 else f"{count:,} rows are"
    return ConfigurationError(
        f"input {spec.name!r}: {rows} valid while another row of the same {', '.join(spec.key)} is: "
        f"{spec.changes.valid_from!r} is before the other's {spec.changes.valid_to!r}, as in {one} and {other}; a key "
        f"has one version at a time: close the earlier row where the later one begins, or leave one out"
    )


def _shown(rows: pa.Table, place: int) -> str:
    (row,) = decode_rows(rows.slice(place, 1), str)
    return describe_row(row)
