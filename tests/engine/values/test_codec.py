"""States and messages are read back as they were written; damage is detected."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.codec import VERSION, binary_column, decode, encode, read_message, write_messages
from cojoin.errors import CodecError

ROWS = pa.table({"key": ["a", None, "ccc"], "nested": [[{"x": 1.5}], [], None]})


@pytest.mark.parametrize("table", [ROWS, ROWS.slice(1, 1), pa.concat_tables([ROWS, ROWS.slice(1)])])
def test_a_tables_rows_are_one_message_wherever_it_is_sliced(table: pa.Table) -> None:
    (message,) = write_messages(table)
    assert pa.Table.from_batches([read_message(message, table.schema)]).equals(table.combine_chunks())


def test_a_slice_is_written_without_what_is_around_it() -> None:
    long = pa.table({"text": ["x" * 10_000] * 100})
    (message,) = write_messages(long.slice(50, 1))
    assert message.size < 20_000


@pytest.mark.parametrize(("rows", "width", "messages"), [(0, 1, 0), (1, 5 << 20, 1), (3, 3 << 20, 3), (500, 1000, 4)])
def test_large_tables_are_messages_of_128_kilobytes_or_of_a_row(rows: int, width: int, messages: int) -> None:
    table = pa.table({"text": pa.array(["x" * width] * rows, pa.string()), "number": pa.array(range(rows), pa.int64())})
    written = list(write_messages(table))
    assert len(written) == messages
    assert all(message.size < max(width, 128 << 10) + 1000 for message in written)
    pieces = [read_message(message, table.schema) for message in written]
    assert pa.Table.from_batches(pieces, table.schema).equals(table)


def test_uneven_rows_are_messages_of_128_kilobytes_on_average() -> None:
    table = pa.table({"text": ["x" * 100] * 10_000 + ["y" * 1_000_000] * 5})
    written = list(write_messages(table))
    assert sum(message.size for message in written) / len(written) < 160 << 10
    pieces = [read_message(message, table.schema) for message in written]
    assert pa.Table.from_batches(pieces, table.schema).equals(table)


@pytest.mark.parametrize("contents", [[], [b""], [b"a", b"", b"bc"], [pa.py_buffer(b"a"), b"b"]])
def test_buffers_and_bytes_are_laid_end_to_end(contents: list[object]) -> None:
    column = binary_column(contents)
    column.validate(full=True)
    assert column.to_pylist() == [bytes(memoryview(content)) for content in contents]  # type: ignore[arg-type]


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
    newer = STATE[:6] + bytes([VERSION + 2]) + STATE[7:]
    with pytest.raises(CodecError, match=rf"expected format {VERSION} or .* got {VERSION + 2}; upgrade cojoin"):
        decode(newer)


def test_an_older_version_is_named_with_what_to_do() -> None:
    older = STATE[:6] + bytes([VERSION - 1]) + STATE[7:]
    with pytest.raises(CodecError, match=rf"got {VERSION - 1}; continue with the version of cojoin that wrote them"):
        decode(older)


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def test_foreign_bytes_are_refused_and_a_pickle_is_not_loaded() -> None:
    for foreign in (b"PAR1" * 10, pickle.dumps(Trap()), b""):
        with pytest.raises(CodecError):
            decode(foreign)
