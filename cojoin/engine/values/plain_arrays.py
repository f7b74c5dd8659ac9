"""Arrays without codes: dictionary-encoded and run-end-encoded values, at any depth, become plain ones.

Arrow casts only some of them by itself; texts as views and nested values are none of these. It costs one gather.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["has_codes", "without_codes"]


def has_codes(dtype: pa.DataType) -> bool:
    """Return whether values of a type are dictionary-encoded or run-end-encoded, at any depth.

    >>> has_codes(pa.list_(pa.dictionary(pa.int8(), pa.string()))), has_codes(pa.list_(pa.string()))
    (True, False)
    """
    if pa.types.is_dictionary(dtype) or pa.types.is_run_end_encoded(dtype):
        return True
    return any(has_codes(dtype.field(place).type) for place in range(dtype.num_fields))


def without_codes(array: pa.Array) -> pa.Array:  # noqa: PLR0911 - one for each kind
    """Return an array with the same values, none of which is encoded.

    >>> without_codes(pa.array(["a", None, "a"]).dictionary_encode()).type
    DataType(string)
    """
    dtype, types = array.type, pa.types
    if not has_codes(dtype):
        return array
    if types.is_dictionary(dtype):
        return _takeable(without_codes(array.dictionary)).take(array.indices)
    if types.is_run_end_encoded(dtype):
        places = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), places, side="right")
        return _takeable(without_codes(array.values)).take(pa.array(runs))
    mask = array.is_null() if array.null_count else None
    if types.is_struct(dtype):
        children = [without_codes(each) for each in array.flatten()]
        fields = [field.with_type(child.type) for field, child in zip(dtype, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if types.is_fixed_size_list(dtype):
        # The children of a slice are not sliced.
        offsets = pa.array(np.arange(array.offset, array.offset + len(array) + 1) * dtype.list_size, pa.int64())
        return pa.LargeListArray.from_arrays(offsets, without_codes(array.values), mask=mask)
    # Copied, because Arrow refuses a mask with offsets that are a slice.
    offsets = pa.array(array.offsets.to_numpy())
    if types.is_map(dtype):
        keys, items = without_codes(array.keys), without_codes(array.items)
        plain = pa.map_(dtype.key_field.with_type(keys.type), dtype.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(offsets, keys, items, type=plain, mask=mask)
    of_lists = pa.LargeListArray if types.is_large_list(dtype) else pa.ListArray
    return of_lists.from_arrays(offsets, without_codes(array.values), mask=mask)


def _takeable(array: pa.Array) -> pa.Array:
    """Return an array of a type from which Arrow takes values, as it does not from views."""
    plain = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(array.type))
    return array if plain is None else array.cast(plain)
