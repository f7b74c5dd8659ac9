"""The total order of a key's rows, which does not depend on the order in which they arrived.

Rows are sorted by event time in microseconds; at equal time, input 2 (right) comes before input 1 (left); then by the
source's own sequence; then by the row's content, column by column as declared, with nulls first, NaN last, and -0.0
before 0.0. Rows that are equal in all of these are interchangeable. Of an input whose rows are versions and deletes,
the ends of validity come before the sequence is looked at, and deletes before versions after it. Of the right of a
temporal join with ``deletes``, which nothing else orders, versions come before deletes.

Integers are sorted by packing values and positions into words, which sort many times faster than positions by their
values. A word costs some 20 ns a row and holds 64 bits less those of a position: 47 of 100,000 rows. The total order
costs one word for each row, or two where key and time are long. Rows that a caller has kept in order
(``OrderedPart.settled``) cost a merge, 2 ns a row, and rows that are sorted already 1 ns. Sequence and content are
compared only for rows that tie in key, time and input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cojoin.engine.values.rows import decode_column, text_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WORD_BITS = 64


def stable_argsort(*columns: NDArray[np.int64], settled: int = 0) -> NDArray[np.int64]:
    """Return the positions sorted by several columns, compared one after the other; equal rows keep their order.

    The first ``settled`` rows are probably sorted already, so that the others are merged with them.

    >>> stable_argsort(np.array([1, 0, 1]), np.array([5, 9, -2])).tolist()
    [1, 2, 0]
    """
    count = len(columns[0])
    positions = np.arange(count, dtype=np.uint64)
    place_bits = max(count - 1, 0).bit_length()
    order: NDArray[np.int64] | None = None
    for word in _words(columns, _WORD_BITS - place_bits):
        packed = word if order is None else word[order]
        if is_sorted(packed):
            continue
        # In place: a new array costs as much as the operation.
        packed <<= np.uint64(place_bits)
        packed |= positions
        if settled:
            for run in (packed[:settled], packed[settled:]):
                if not is_sorted(run):
                    run.sort()
            # The stable sort finds the two runs and merges them.
            packed.sort(kind="stable")
        else:
            packed.sort()
        packed &= np.uint64((1 << place_bits) - 1)
        step = packed.view(np.int64)
        order = step if order is None else order[step]
    return positions.view(np.int64) if order is None else order


def _words(columns: Sequence[NDArray[np.int64]], room: int) -> Iterator[NDArray[np.uint64]]:
    """Yield words of some bits that sort like the columns if rows are sorted by one word after the other, stably."""
    word, used = None, 0
    for column in reversed(columns):
        if not len(column):
            return
        low, high = column.min(), int(column.max())
        # The difference of any two 64-bit integers is right without a sign.
        rest, width = column.view(np.uint64) - low.view(np.uint64), (high - int(low)).bit_length()
        if word is not None and used + width > room:
            yield word
            word, used = None, 0
        while width > room:
            yield rest & np.uint64((1 << room) - 1)
            rest, width = rest >> np.uint64(room), width - room
        word = rest if word is None else word | (rest << np.uint64(used))
        used += width
    if word is not None:
        yield word


def is_sorted(values: NDArray[Any]) -> bool:
    """Return whether no value is smaller than the one before it."""
    return bool((values[1:] >= values[:-1]).all())


def combine(*parts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return each part's two columns as one that sorts and ties like both, also against the other parts' rows.

    The first column has small numbers from 0 on, the second any integers.

    >>> [each.tolist() for each in combine((np.array([1, 0]), np.array([5, 9])), (np.array([1]), np.array([-2])))]
    [[19, 11], [12]]
    """
    full = [(codes, values) for codes, values in parts if len(codes)]
    if not full:
        return [codes for codes, _ in parts]
    low, high = min(int(values.min()) for _, values in full), max(int(values.max()) for _, values in full)
    most = max(int(codes.max()) for codes, _ in full) + 1
    if (high - low + 1) * most < 1 << (_WORD_BITS - 1):
        return [_combined(codes, high - low + 1, values, low) for codes, values in parts]
    # The values need too many bits; their ranks sort in the same order and are dense.
    ranks = np.unique(np.concatenate([values for _, values in parts]), return_inverse=True)[1].reshape(-1)
    bounds = np.cumsum([len(codes) for codes, _ in parts])[:-1]
    return [
        codes * (int(ranks.max()) + 1) + part_ranks
        for (codes, _), part_ranks in zip(parts, np.split(ranks, bounds), strict=True)
    ]


def _combined(codes: NDArray[np.int64], width: int, values: NDArray[np.int64], low: int) -> NDArray[np.int64]:
    combined: NDArray[np.int64] = values - low
    combined += codes * width
    return combined


Ranks: TypeAlias = Callable[[pa.Table], tuple[NDArray[Any], NDArray[Any]]]
"""A function that returns the ranks of rows that tie: those before the source's own sequence, and those after it."""


@dataclass(frozen=True)
class OrderedPart:
    """The rows of one input that take part in an order.

    Attributes:
        codes: Each row's key code.
        micros: Each row's event time in epoch microseconds.
        rank: The input's place at equal times: 0 for input 2, 1 for input 1.
        table: The rows, whose sequence and content break ties.
        source_order: The columns of the source's own sequence.
        settled: How many of the first rows are known to be in the total order within each key.
        ranks: The ranks that also break ties, for an input whose rows are versions and deletes (``row_changes``).
    """

    codes: NDArray[np.int64]
    micros: NDArray[np.int64]
    rank: int
    table: pa.Table
    source_order: tuple[str, ...] = ()
    settled: int = 0
    ranks: Ranks | None = None


class SortedPart(NamedTuple):
    """The rows of one part, sorted by key code, then by the total order: positions in it, codes, microseconds."""

    order: NDArray[np.int64]
    codes: NDArray[np.int64]
    micros: NDArray[np.int64]


def total_order(parts: Sequence[OrderedPart]) -> NDArray[np.int64]:
    """Return the positions of all parts' rows (part after part), sorted by key code, then by the total order."""
    codes = np.concatenate([part.codes for part in parts])
    micros = np.concatenate([part.micros for part in parts])
    ranks = np.repeat([part.rank for part in parts], [len(part.codes) for part in parts])
    return _sort((codes, micros, ranks), parts)


def arrival_order(parts: Sequence[OrderedPart]) -> NDArray[np.int64]:
    """Return the positions of a micro-batch's rows, sorted by key code, input, sequence and content, not by time."""
    codes = np.concatenate([part.codes for part in parts])
    inputs = np.repeat([1 - part.rank for part in parts], [len(part.codes) for part in parts])
    return _sort((codes, inputs), parts)


def sort_part(part: OrderedPart) -> SortedPart:
    """Return the rows of one part sorted by key code, then by the total order."""
    rows = _merge(part) if part.settled else None
    if rows is None:
        order = stable_argsort(part.codes, part.micros)
        rows = _arranged(part, order)
    same = (rows.codes[1:] == rows.codes[:-1]) & (rows.micros[1:] == rows.micros[:-1])
    return rows._replace(order=_untied(rows.order, same, [part], part.settled))


def _merge(part: OrderedPart) -> SortedPart | None:
    """Return a part sorted by key code and time, taking each key's settled rows first; None if they don't come first.

    They do except where a row is late, for what a batch leaves behind is at or below the watermark.
    """
    fresh = stable_argsort(part.micros[part.settled :]) + part.settled
    order = np.concatenate([np.arange(part.settled), fresh])
    by_code = stable_argsort(part.codes[order], settled=part.settled)
    rows = _arranged(part, order[by_code])
    in_order = (rows.micros[1:] >= rows.micros[:-1]) | (rows.codes[1:] != rows.codes[:-1])
    return rows if in_order.all() else None


def _arranged(part: OrderedPart, order: NDArray[np.int64]) -> SortedPart:
    """Return a part in an order that is by key code; counting the codes costs less than fetching each."""
    counts = np.bincount(part.codes)
    return SortedPart(order, np.repeat(np.arange(len(counts)), counts), part.micros[order])


def _sort(columns: Sequence[NDArray[np.int64]], parts: Sequence[OrderedPart]) -> NDArray[np.int64]:
    order = stable_argsort(*columns)
    in_order = (column[order] for column in columns)
    return _untied(order, reduce(np.logical_and, (each[1:] == each[:-1] for each in in_order)), parts)


def _untied(
    order: NDArray[np.int64], same: NDArray[np.bool_], parts: Sequence[OrderedPart], settled: int = 0
) -> NDArray[np.int64]:
    """Return an order of all parts' rows with its ties broken.

    ``same`` is whether each row but the first ties with the one before it; ``settled`` first rows need no comparing.
    """
    if not same.any():
        return order
    tied = np.concatenate([[False], same])
    groups = np.cumsum(~tied)
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    if settled:
        unsettled = np.zeros(int(groups[-1]) + 1, dtype=bool)
        unsettled[groups[places[order[places] >= settled]]] = True
        places = places[unsettled[groups[places]]]
    order[places] = _untie(order[places], groups[places], parts)
    return order


def _untie(members: NDArray[np.int64], groups: NDArray[np.int64], parts: Sequence[OrderedPart]) -> NDArray[np.int64]:
    """Return tied rows sorted within their groups; a group has rows of one part only, since it includes the rank."""
    start = 0
    resolved: NDArray[np.int64] = members.copy()
    for part in parts:
        stop = start + len(part.codes)
        places = np.flatnonzero((members >= start) & (members < stop))
        if len(places):
            rows = part.table.take(pa.array(members[places] - start))
            content = [name for name in rows.column_names if name not in part.source_order]
            before, after = ((each,) for each in part.ranks(rows)) if part.ranks else ((), ())
            keys = [*before, *_sort_keys(rows, part.source_order), *after, *_sort_keys(rows, content)]
            local = np.lexsort([*reversed(keys), groups[places]])
            resolved[places] = members[places][local]
        start = stop
    return resolved


def _sort_keys(rows: pa.Table, names: Sequence[str]) -> list[NDArray[Any]]:
    return [key for name in names for key in sort_keys(rows.column(name))]


def sort_keys(column: pa.ChunkedArray | pa.Array) -> list[NDArray[Any]]:  # noqa: PLR0911 - one for each type
    """Return arrays whose lexicographic order is the column's canonical order."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    types, dtype = pa.types, array.type
    present: NDArray[Any] = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int8)
    if types.is_struct(dtype):
        return [present, *(key for child in array.flatten() for key in sort_keys(child))]
    if types.is_list(dtype) or types.is_map(dtype) or types.is_null(dtype):
        spelled = [_spell(value) for value in decode_column(array.cast(_comparable(dtype)))]
        ranks = {value: rank for rank, value in enumerate(sorted(set(spelled)))}
        return [np.array([ranks[value] for value in spelled], dtype=np.int64)]
    if types.is_floating(dtype):
        return [present, _float_keys(array)]
    if types.is_integer(dtype):
        return [present, array.fill_null(0).to_numpy(zero_copy_only=False)]
    if types.is_boolean(dtype):
        return [present, array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int8)]
    if types.is_date32(dtype):
        return [present, array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)]
    if types.is_timestamp(dtype) or types.is_duration(dtype):
        return [present, array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)]
    return [present, _dense_ranks(array)]


def _comparable(dtype: pa.DataType) -> pa.DataType:
    """Return a type with integers in place of dates and times, since Python's classes can't hold all of them."""
    types = pa.types
    if types.is_struct(dtype):
        return pa.struct([field.with_type(_comparable(field.type)) for field in dtype])
    if types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_comparable(dtype.value_type)))
    if types.is_map(dtype):
        key, item = dtype.key_field, dtype.item_field
        return pa.map_(key.with_type(_comparable(key.type)), item.with_type(_comparable(item.type)))
    if types.is_timestamp(dtype) or types.is_duration(dtype) or types.is_time64(dtype):
        return pa.int64()
    return pa.int32() if types.is_date32(dtype) else dtype


def _dense_ranks(array: pa.Array) -> NDArray[np.int64]:
    """Return ranks of values that only Arrow can compare: strings and binaries by their bytes, decimals by value."""
    encoded = array.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    positions: NDArray[np.int64] = encoded.indices.fill_null(len(ranks)).to_numpy(zero_copy_only=False)
    return np.append(ranks, 0)[positions]


def _float_keys(array: pa.Array) -> NDArray[np.int64]:
    values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    keys = np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
    return np.where(np.isnan(values), np.iinfo(np.int64).max, keys)


def _spell(value: Any) -> tuple[Any, ...]:
    """Return a nested value in a form that Python can compare: nulls first, NaN last, maps by their sorted keys."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, tuple(sorted((_spell(key), _spell(item)) for key, item in value.items())))
    if isinstance(value, (list, tuple)):
        return (1, tuple(_spell(item) for item in value))
    if isinstance(value, float):
        return (1, int(_float_keys(pa.array([value]))[0]))
    if isinstance(value, str):
        return (1, text_bytes(value))
    return (1, value)
