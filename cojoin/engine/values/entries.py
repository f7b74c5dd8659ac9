"""The encoding of what states hold as Arrow; values were converted when they were set, so nothing is checked again.

It goes column by column at every level of nesting: only leaves go through pyarrow's conversion of Python values.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.values.texts import encode_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["encode_entries"]


def encode_entries(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return converted values as an Arrow column.

    Args:
        values: Results of a ``coercer`` of the type: tuples for structs, lists or tuples for arrays, dicts for maps.
        dtype: The type.

    Raises:
        pa.ArrowException: Arrow can't hold a value.
        UnicodeEncodeError: A string has half of a surrogate pair that does not stand for a byte.

    >>> encode_entries([("gold", 5), None], pa.struct([("tier", pa.string()), ("visits", pa.int64())])).to_pylist()
    [{'tier': 'gold', 'visits': 5}, None]
    """
    types = pa.types
    if not values or not types.is_nested(dtype):
        return encode_texts(values) if types.is_string(dtype) else pa.array(values, dtype)
    if types.is_struct(dtype):
        return _encode_structs(values, dtype)
    parts = [() if value is None else value for value in values]
    offsets = pa.array(
        np.concatenate([[0], np.cumsum([len(part) for part in parts])]),
        pa.int32(),
        mask=np.array([*(value is None for value in values), False]),
    )
    if types.is_map(dtype):
        keys = encode_entries(list(chain.from_iterable(parts)), dtype.key_type)
        items = encode_entries([item for part in parts if part for item in part.values()], dtype.item_type)
        array = pa.MapArray.from_arrays(offsets, keys, items)
    else:
        array = pa.ListArray.from_arrays(offsets, encode_entries(list(chain.from_iterable(parts)), dtype.value_type))
    return array if array.type == dtype else array.cast(dtype)


def _encode_structs(values: Sequence[Any], dtype: pa.StructType) -> pa.Array:
    mask = None
    if not dtype.num_fields:
        return pa.array([None if value is None else {} for value in values], dtype)
    if None in values:
        mask = pa.array([value is None for value in values])
        nothing = (None,) * dtype.num_fields
        values = [nothing if value is None else value for value in values]
    columns = zip(*values, strict=True)
    fields = list(dtype)
    arrays = [encode_entries(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)
