"""The keys that a micro-batch touches, and which rows of a table at rest belong to them.

A touched key's code is its number, from 0 on. To look up a table costs some 20 to 60 ns a row, however few keys are
touched; nothing is copied, and a table that is not looked up costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values.keys import encode_keys
from cojoin.engine.values.tables import take_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["TouchedKeys"]


class TouchedKeys:
    """The distinct keys of some tables.

    Args:
        tables: Tables of key columns only, all of one schema; at least one.

    Attributes:
        codes: For each table the codes of its rows.
        keys: The keys, by code.

    >>> touched = TouchedKeys([pa.table({"id": ["a", "b", "a"]})])
    >>> touched.keys.to_pydict(), touched.find(pa.table({"id": ["c", "b"]})).tolist()
    ({'id': ['a', 'b']}, [-1, 1])
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self.codes, count = encode_keys(tables)
        row_of: NDArray[np.int64] = np.empty(count, dtype=np.int64)
        every = np.concatenate(self.codes)
        row_of[every] = np.arange(len(every))  # any row of a key gives the key
        self.keys = take_rows(pa.concat_tables(tables), row_of)
        self._distinct = [pc.unique(column.combine_chunks()) for column in self.keys.columns]
        # For each column but the first: the distinct combinations of values up to and including it, as sorted numbers.
        self._pairs: list[NDArray[np.int64]] = []
        codes = _places(self.keys.column(0), self._distinct[0])
        for position in range(1, self.keys.num_columns):
            codes = self._paired(codes, self.keys, position)
            known = np.unique(codes)
            self._pairs.append(known)
            codes = np.searchsorted(known, codes)
        # From a position in the only column's values, or in the last pairs, to the key's code.
        self._code_of = np.argsort(codes)

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def find(self, table: pa.Table) -> NDArray[np.int64]:
        """Return each row's code; -1 where its key is not touched.

        Args:
            table: A table that begins with the key columns.
        """
        codes = _places(table.column(0), self._distinct[0])
        for position, known in enumerate(self._pairs, start=1):
            codes = _look_up(self._paired(codes, table, position), known)
        return np.where(codes < 0, -1, self._code_of[codes]) if len(self) else codes

    def _paired(self, codes: NDArray[np.int64], table: pa.Table, position: int) -> NDArray[np.int64]:
        distinct = self._distinct[position]
        places = _places(table.column(position), distinct)
        return np.where((codes < 0) | (places < 0), -1, codes * len(distinct) + places)


def _places(column: pa.ChunkedArray, distinct: pa.Array) -> NDArray[np.int64]:
    """Return each value's position among the distinct values; -1 where it is not one of them."""
    return pc.fill_null(pc.index_in(column, value_set=distinct), -1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _look_up(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(known):
        return np.full(len(values), -1)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places, -1)
