from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.display import cells, format_table
from cojoin.engine.values.rows import Row
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.testing import assert_output, parse_table
from tests.testing.functions import enrich

ALL = (
    "id string, n tinyint, l bigint, f float, d double, b boolean, t timestamp, tn timestamp_ntz, day date, "
    "m decimal(10,2), wide decimal(38,2), raw binary, tags array<string>"
)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("id", "gold", "gold"),
        ("id", "two words", "two words"),
        ("id", "null", None),
        ("id", '"null"', "null"),
        ("id", '""', ""),
        ("id", '" a|\\"b\\" "', ' a|"b" '),
        ("n", "-128", -128),
        ("l", "9223372036854775807", (1 << 63) - 1),
        ("l", "1_000", 1_000),
        ("l", "+7", 7),
        ("f", "0.5", 0.5),
        ("d", "-inf", float("-inf")),
        ("d", "1e-3", 0.001),
        ("b", "true", True),
        ("b", "false", False),
        ("t", "10:00", utc(1970, 1, 1, 10)),
        ("t", "10:00:01.5", utc(1970, 1, 1, 10, 0, 1, 500_000)),
        ("t", "2024-05-01 23:59:59.000001", utc(2024, 5, 1, 23, 59, 59, 1)),
        ("t", "2024-05-01T23:59", utc(2024, 5, 1, 23, 59)),
        ("tn", "00:00:00", datetime(1970, 1, 1)),  # noqa: DTZ001
        ("day", "2024-02-29", date(2024, 2, 29)),
        ("m", "2.5", Decimal("2.50")),
        ("wide", f"{10**36 - 1}.25", Decimal(f"{10**36 - 1}.25")),
        ("raw", "00ff", b"\x00\xff"),
    ],
)
def test_a_cell_is_read_by_its_columns_type(column: str, cell: str, value: Any) -> None:
    (row,) = parse_table(f"{column}\n{cell}", ALL)
    assert isinstance(row, Row)
    assert row[column] == value
    assert type(row[column]) is type(value)
    (again,) = parse_table(f"{column}\n{cells(row)[0]}", ALL)
    assert again == row


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header"),
        ("idd\ngold", r"unknown column 'idd'; did you mean 'id'"),
        ("id | id\na | b", r"a column stands twice in the header: id, id"),
        ("id | n\na", r"expected 2 cells, got 1: a"),
        ("id | n\na | 1 | 2", r"expected 2 cells, got 3"),
        ("id | n\na | ", r"column 'n': '' is not a value of int8"),
        ("id\n| a", r"expected 1 cells, got 2"),
        ('id\n"a', r"a string does not end"),
        ('id\n"a" b', r"a string does not end, or something follows it"),
        ("n\n128", r"column 'n': '128' is not a value of int8"),
        ("n\n1.0", r"is not a value of int8"),
        ("b\nTrue", r"'True' is not a value of bool"),
        ("t\n10", r"'10' is not a value of timestamp\[us, tz=UTC\]"),
        ("t\n24:00", r"'24:00' is not a value of timestamp"),
        ("t\n10:60", r"is not a value of timestamp"),
        ("t\n2024-02-30 10:00", r"is not a value of timestamp"),
        ("t\n10:00:00.1234567", r"is not a value of timestamp"),
        ("day\n10:00", r"is not a value of date32"),
        ("m\n2.505", r"is not a value of decimal128\(10, 2\)"),
        ("m\nx", r"is not a value of decimal128"),
        ("m\n123456789.00", r"'123456789.00' is not a value of decimal128\(10, 2\)"),
        ("raw\nxyz", r"is not a value of binary"),
        ("tags\n[]", r"a list<.*> has no cells; leave its column out"),
    ],
)
def test_a_table_that_can_not_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_table(text, ALL)


def test_rules_blank_lines_and_the_order_of_columns_do_not_matter() -> None:
    text = """

        n | id
        --+---

        1 | a

        2 | -
    """
    assert parse_table(text, ALL) == [(1, "a"), (2, "-")]
    assert parse_table("id", ALL) == []


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            st.none() | st.floats(allow_nan=False),
            st.none() | st.booleans(),
            st.none() | st.datetimes(datetime(1000, 1, 1), timezones=st.just(timezone.utc)),  # noqa: DTZ001
            st.none() | st.dates(date(1000, 1, 1)),
            st.none() | st.decimals(-1_000, 1_000, places=2),
            st.none() | st.binary(min_size=1),
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read_again(rows: list[Any]) -> None:
    names = ["id", "l", "d", "b", "t", "day", "m", "raw"]
    text = format_table(names, [cells(row) for row in rows])
    assert parse_table(text, ALL) == rows


def test_an_output_that_is_as_expected_passes() -> None:
    rows = [("a", 1), ("b", 2)]
    table = "id | l\nb | 2\na | 1"
    assert_output(rows, table, schema="id string, l long", any_order=True)
    assert_output(rows, "l\n1\n2", schema="id string, l long")
    assert_output([{"id": "a", "l": None}], "id | l\na | null", schema="id string, l long")
    assert_output([float("nan"), None] and [(float("nan"),), (None,)], "d\nnan\nnull", schema="d double")
    assert_output([], "id", schema="id string")


def test_the_difference_is_aligned_and_marked() -> None:
    rows = [("a", 1, "x"), ("bb", 20, None), ("c", 3, "")]
    expected = """
        id | l | tier
        a  | 1 | x
        b  | 2 | null
        c  | 3 | ""
        d  | 4 | y
    """
    with pytest.raises(AssertionError) as raised:
        assert_output(rows, expected, schema="id string, l long, tier string")
    assert str(raised.value) == dedent("""\
        the output differs: - is missing, + is too much
          id | l  | tier
          ---+----+-----
          a  | 1  | x
        - b  | 2  | null
        + bb | 20 | null
          c  | 3  | ""
        - d  | 4  | y""")


def test_the_order_counts_unless_it_is_said() -> None:
    rows = [("b",), ("a",), ("a",)]
    with pytest.raises(AssertionError, match=r"(?s)\n- a\n  b\n  a\n\+ a\n  c$"):
        assert_output([*rows, ("c",)], "id\na\nb\na\nc", schema="id string")
    with pytest.raises(AssertionError, match=r"(?s)\+ a\n  a\n  b$"):
        assert_output(rows, "id\nb\na", schema="id string", any_order=True)


def test_a_harness_and_its_side_outputs_are_compared_by_their_own_columns() -> None:
    harness = enrich()
    harness.process_table2("customer_id | tier | event_time\na | gold | 00:00:01")
    harness.process_table1(
        """
        trade_id | customer_id | amount | event_time
        7        | a           | 2.5    | 00:00:02
        8        | b           | null   | 00:00:02
        """
    )
    harness.process_watermark(2_000)
    assert_output(harness, "trade_id | tier\n7 | gold")
    assert_output(harness, "trade_id\n8", tag="unknown")
    with pytest.raises(AssertionError, match="- 9"):
        assert_output(harness, "trade_id\n8\n9", tag="unknown")
    with pytest.raises(ConfigurationError, match="a harness has its own"):
        assert_output(harness, "trade_id\n7", schema="trade_id long")
    with pytest.raises(ConfigurationError, match="expected schema="):
        assert_output(harness.output, "trade_id\n7")
    with pytest.raises(ConfigurationError, match="was not declared"):
        assert_output(harness, "trade_id\n7", tag="other")
    with pytest.raises(SchemaError, match="unknown column 'trade'"):
        assert_output(harness, "trade\n7")
