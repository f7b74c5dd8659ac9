from __future__ import annotations

import pyarrow as pa
import pytest

from cojoin.engine.values.ipc import binary_column, read_message, write_messages

TABLE = pa.table({"key": ["a", None, "ccc"], "nested": [[{"x": 1.5}], [], None]})


@pytest.mark.parametrize("table", [TABLE, TABLE.slice(1, 1), pa.concat_tables([TABLE, TABLE.slice(1)])])
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
