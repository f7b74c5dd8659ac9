from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.codec import VERSION, decode, encode
from cojoin.errors import CodecError

TABLE = pa.table({"key": ["a", None], "nested": [[{"x": 1.5}], []]})
STATE = encode({"watermark": -(1 << 63)}, {"held": TABLE, "empty": TABLE.slice(0, 0)})


def test_what_is_encoded_is_decoded() -> None:
    header, tables = decode(STATE)
    assert header == {"watermark": -(1 << 63)}
    assert list(tables) == ["held", "empty"]
    assert tables["held"].equals(TABLE)
    assert tables["empty"].schema == TABLE.schema


def test_no_tables_are_state_too() -> None:
    assert decode(encode({}, {})) == ({}, {})


def test_a_table_of_many_pieces_is_written_as_one() -> None:
    pieces = pa.concat_tables([TABLE.slice(0, 1)] * 50)
    (read,) = decode(encode({}, {"t": pieces}))[1].values()
    assert read.equals(pieces)
    assert read.column("key").num_chunks == 1


@given(st.integers(0, len(STATE) - 1))
def test_truncated_bytes_are_refused(length: int) -> None:
    with pytest.raises(CodecError, match="truncated"):
        decode(STATE[:length])


@given(st.integers(0, len(STATE) - 1), st.integers(1, 255))
def test_a_damaged_byte_is_seen_wherever_it_is(position: int, change: int) -> None:
    damaged = bytearray(STATE)
    damaged[position] ^= change
    with pytest.raises(CodecError):
        decode(bytes(damaged))


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(CodecError, match="something was appended"):
        decode(STATE + b"\0")


def test_a_newer_version_is_named_with_what_to_do() -> None:
    newer = STATE[:6] + bytes([VERSION + 1]) + STATE[7:]
    with pytest.raises(CodecError, match=rf"expected format {VERSION}, .* got {VERSION + 1}; upgrade cojoin"):
        decode(newer)


def test_an_older_version_is_named_with_what_to_do() -> None:
    older = STATE[:6] + bytes([VERSION - 1]) + STATE[7:]
    with pytest.raises(CodecError, match=rf"got {VERSION - 1}; go on with the version of cojoin that wrote them"):
        decode(older)


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def test_foreign_bytes_are_refused_and_a_pickle_is_not_loaded() -> None:
    for foreign in (b"PAR1" * 10, pickle.dumps(Trap()), b""):
        with pytest.raises(CodecError):
            decode(foreign)
