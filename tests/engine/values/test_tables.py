"""Encoded arrays of Arrow become plain ones, with the same values as pyarrow itself reads, whole and in slices."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cojoin.engine.values.tables import as_spark_column, has_codes, spark_type, without_codes


def coded(values: Any) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), values)


def runs(values: Any) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), values)


TEXTS, LISTS, STRUCTS = pa.array(["a", "b"]), pa.array([[1], None]), pa.array([{"x": 1}, {"x": 2}])
VIEWS = TEXTS.cast(pa.string_view())
ARRAYS = {
    "codes of texts": coded(TEXTS),
    "codes of views": coded(VIEWS),
    "codes of binary views": coded(pa.array([b"a", b"b"], pa.binary_view())),
    "codes of lists": coded(LISTS),
    "codes of structs": coded(STRUCTS),
    "codes of codes": coded(TEXTS.dictionary_encode()),
    "runs of texts": runs(TEXTS),
    "runs of views": runs(VIEWS),
    "runs of lists": runs(LISTS),
    "runs of codes": runs(pa.array(["a", None]).dictionary_encode()),
    "struct of runs": pa.StructArray.from_arrays([runs(TEXTS)], ["x"], mask=pa.array([True, False, False, False])),
    "lists of codes": pa.ListArray.from_arrays(pa.array([0, 1, None, 4], pa.int32()), coded(LISTS)),
    "large lists of codes": pa.LargeListArray.from_arrays(pa.array([0, 1, None, 4]), coded(VIEWS)),
    "pairs of runs": pa.FixedSizeListArray.from_arrays(runs(TEXTS), 2, mask=pa.array([False, True])),
    "map to runs": pa.MapArray.from_arrays(pa.array([0, 1, None, 4], pa.int32()), pa.array(list("wxyz")), runs(TEXTS)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_no_value_changes(array: pa.Array) -> None:
    assert has_codes(array.type)
    for part in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
        plain = without_codes(part)
        assert not has_codes(plain.type)
        plain.validate(full=True)
        assert plain.to_pylist() == part.to_pylist()
    pieces = pa.chunked_array([array, array.slice(1)])
    typed = as_spark_column(pieces, "column")
    assert typed.type == spark_type(array.type)
    assert typed.to_pylist() == pieces.to_pylist()


def test_plain_arrays_are_not_copied() -> None:
    assert without_codes(LISTS) is LISTS
