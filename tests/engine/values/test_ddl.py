from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cojoin.engine.values.types import parse_schema, parse_type
from cojoin.errors import CojoinError, SchemaError
from tests.ddl_texts import LEXEMES, MALFORMED, REFUSED, TYPES, of_spark_4_2, same, spark_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def message(ddl: object, what: str = "type") -> str:
    with pytest.raises(SchemaError) as caught:
        parse_type(ddl, what=what)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(("ddl", "said"), [*MALFORMED.items(), *REFUSED.items()])
def test_a_fault_is_shown_where_it_is(ddl: str, said: str) -> None:
    assert message(ddl, "output_type").startswith(f'output_type="{ddl}": ')
    assert said in message(ddl)


def test_the_faulty_line_of_many_is_shown_alone() -> None:
    ddl = "\n  trade_id long,\n  amount dcimal(10,2)\n"
    assert message(ddl).startswith(
        """type="  amount dcimal(10,2)" (line 3): unknown type 'dcimal' at character 9; did"""
    )


def test_the_thing_configured_is_named() -> None:
    assert message("tier strng", "state 'customer'").startswith("""state 'customer'="tier strng": unknown type""")


def test_what_is_no_text_is_refused() -> None:
    assert message(None) == "type: expected Spark DDL such as 'id long, name string', got None"


def test_a_schema_error_is_a_value_error_and_cojoins() -> None:
    assert issubclass(SchemaError, ValueError)
    assert issubclass(SchemaError, CojoinError)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("", "expected a field's name, got the end at character 0"),
        (" -- none", "expected a field's name, got the end"),
        ("struct<>", "expected at least one field, got none"),
        ("int", "expected the field's type after 'int', got the end at character 3"),
        ("array<int>", "expected the field's type after 'array', got '<' at character 5"),
        ("struct<a: int>, b int", "expected the end after '>', got ',' at character 14"),
    ],
)
def test_a_schema_has_named_fields(ddl: str, said: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(said)):
        parse_schema(ddl)


@given(st.text() | st.lists(st.sampled_from(LEXEMES)).map("".join))
def test_any_text_is_read_or_refused(ddl: str) -> None:
    with suppress(SchemaError):
        assert isinstance(parse_type(ddl), pa.DataType)
    with suppress(SchemaError):
        assert len(parse_schema(ddl)) > 0


@pytest.mark.spark
def test_differential_what_is_malformed_here_is_so_in_spark(spark: SparkSession) -> None:
    assert [ddl for ddl in MALFORMED if spark_reads(ddl) is not None] == []


@pytest.mark.spark
def test_differential_ddls_own_words_are_names_in_spark_as_here(spark: SparkSession) -> None:
    words = "array collate comment day default interval local map not null string struct time timestamp to void with"
    assert [word for word in words.split() if not same(parse_type(f"{word} int"), spark_reads(f"{word} int"))] == []


OURS_ALONE = re.compile(r"unsupported type|repeats|got '0+'|got 'void'|expected a type, got the end")


@pytest.mark.spark
@of_spark_4_2
@settings(deadline=None, max_examples=150)
@given(st.sampled_from([*TYPES, *MALFORMED]), st.data())
def test_differential_a_text_with_a_slip_is_read_or_refused_as_by_spark(
    spark: SparkSession, ddl: str, data: st.DataObject
) -> None:
    words = re.findall(r"\w+|\W", ddl)
    at = data.draw(st.integers(0, len(words)))
    words[at : at + data.draw(st.integers(0, 1))] = data.draw(st.lists(st.sampled_from(LEXEMES), max_size=2))
    slipped = "".join(words)
    try:
        ours = parse_type(slipped)
    except SchemaError as error:
        assume(not OURS_ALONE.search(str(error)))
        ours = None
    assume(not re.search("char", slipped, re.IGNORECASE))
    theirs = spark_reads(slipped)
    assert ours is theirs is None or same(ours, theirs), slipped
