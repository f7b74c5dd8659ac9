"""Spark's DDL is read and written as Spark does it."""

from __future__ import annotations

import doctest
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cojoin.engine.values.types
from cojoin.engine.functions import OutputTag
from cojoin.engine.values.types import SUPPORTED, as_schema, parse_schema, parse_type, schema_to_ddl, type_to_ddl
from cojoin.errors import CojoinError, SchemaError
from tests.ddl_texts import CHARS, LEXEMES, MALFORMED, REFUSED, TIMESTAMP, TYPES, of_spark_4_2, same, spark_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def message(ddl: object, what: str = "type") -> str:
    with pytest.raises(SchemaError) as caught:
        parse_type(ddl, label=what)  # type: ignore[arg-type]
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


def arrow_types(names: st.SearchStrategy[str]) -> st.SearchStrategy[pa.DataType]:
    """All Arrow types that DDL can name."""
    void = pa.null()
    plain = st.sampled_from([dtype for dtype in TYPES.values() if not pa.types.is_nested(dtype)])
    decimals = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda ps: ps[0] >= ps[1])

    def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        field = st.builds(
            lambda name, dtype, null: pa.field(name, dtype, null or dtype == void), names, inner, st.booleans()
        )
        return (
            st.builds(lambda element: pa.list_(pa.field("element", element)), inner)
            | st.builds(pa.map_, inner.filter(lambda key: key != void), inner)
            | st.lists(field, max_size=4, unique_by=lambda field: field.name.lower()).map(pa.struct)
        )

    return st.recursive(plain | decimals.map(lambda ps: pa.decimal128(*ps)), nested, max_leaves=8)


@pytest.mark.parametrize(("ddl", "expected"), TYPES.items())
def test_a_type_is_read_as_its_arrow_type(ddl: str, expected: pa.DataType) -> None:
    assert parse_type(ddl) == expected
    assert parse_type(f"\n {ddl}\n") == expected


@pytest.mark.parametrize(
    "ddl", [ddl for ddl, expected in TYPES.items() if pa.types.is_struct(expected) and len(expected)]
)
def test_a_schema_is_read_as_the_fields_of_the_same_struct(ddl: str) -> None:
    assert parse_schema(ddl) == pa.schema(list(parse_type(ddl)))


@pytest.mark.parametrize("ddl", [ddl for ddl, expected in TYPES.items() if not pa.types.is_nested(expected)])
def test_the_name_of_a_type_has_no_case(ddl: str) -> None:
    assert parse_type(ddl.upper()) == parse_type(ddl.title()) == TYPES[ddl]


@pytest.mark.parametrize("ddl", CHARS)
def test_char_and_varchar_are_strings(ddl: str) -> None:
    assert parse_type(ddl) == pa.string()


def test_a_comment_is_dropped() -> None:
    assert parse_schema("a int COMMENT 'x'").field("a").metadata is None


def test_the_inner_fields_are_named_as_pyspark_names_them() -> None:
    assert str(parse_type("map<int,array<int>>").item_field) == "pyarrow.Field<value: list<element: int32>>"
    assert str(parse_type("map<int,array<int>>").key_field) == "pyarrow.Field<key: int32 not null>"


def test_a_schema_may_be_wrapped_as_a_struct() -> None:
    assert parse_schema("struct<a: int, b string>") == parse_schema("a int, b string")


@given(arrow_types(st.text(max_size=5)))
def test_what_is_written_is_read_back(dtype: pa.DataType) -> None:
    read = parse_type(type_to_ddl(dtype))
    assert read == dtype
    assert str(read) == str(dtype)


@given(st.lists(st.tuples(st.text(), st.booleans()), min_size=1, unique_by=lambda field: field[0].lower()))
def test_what_is_written_of_a_schema_is_read_back(fields: list[tuple[str, bool]]) -> None:
    schema = pa.schema([pa.field(name, pa.int32(), nullable=nullable) for name, nullable in fields])
    assert parse_schema(schema_to_ddl(schema)) == schema


WRITTEN = pytest.mark.parametrize(
    ("dtype", "ddl"),
    [
        (TIMESTAMP, "timestamp"),
        (pa.timestamp("ns", tz="Europe/Paris"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.large_string(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.large_list(pa.int8()), "array<tinyint>"),
        (pa.list_(pa.float32(), 3), "array<float>"),
        (pa.list_(pa.field("x", pa.float64(), nullable=False)), "array<double>"),
        (pa.map_(pa.string(), pa.decimal128(10, 2)), "map<string,decimal(10,2)>"),
        (pa.time64("us"), "time(6)"),
        (pa.duration("ns"), "interval day to second"),
        (pa.null(), "void"),
        (pa.struct([("a", pa.bool_()), ("b", pa.date32())]), "struct<a:boolean,b:date>"),
    ],
)


@WRITTEN
def test_a_type_is_written(dtype: pa.DataType, ddl: str) -> None:
    assert type_to_ddl(dtype) == ddl


@pytest.mark.push
@WRITTEN
def test_pyspark_writes_the_same(dtype: pa.DataType, ddl: str) -> None:
    from cojoin.session.arrow_types import spark_data_type

    assert spark_data_type(dtype).simpleString() == ddl


def test_a_schema_is_written_with_its_quotes_and_constraints() -> None:
    inner = pa.struct([pa.field("x y", pa.int16(), nullable=False), ("1", pa.binary())])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a`b", inner), ("select", pa.float32())])
    assert (
        schema_to_ddl(schema) == "id bigint NOT NULL, `a``b` struct<`x y`:smallint NOT NULL,`1`:binary>, select float"
    )


VARIANT = pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})])


@pytest.mark.parametrize(
    "dtype", [pa.uint64(), pa.date64(), pa.decimal256(50, 2), pa.decimal128(5, -1), pa.float16(), VARIANT]
)
def test_a_type_that_spark_lacks_is_refused_with_its_place(dtype: pa.DataType) -> None:
    schema = pa.schema([("a", pa.struct([("b", pa.list_(dtype))]))])
    said = f"output.a.b.element: expected an Arrow type that Spark has too, got {dtype}; cast it to one of {SUPPORTED}"
    with pytest.raises(SchemaError, match=re.escape(said)):
        schema_to_ddl(schema, label="output")


def test_a_schema_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(SchemaError, match="schema: expected at least one field, got none"):
        schema_to_ddl(pa.schema([]))
    with pytest.raises(SchemaError, match="schema: field 'A' repeats 'a'; names must differ by more than case"):
        schema_to_ddl(pa.schema([("a", pa.int8()), ("A", pa.int8())]))


def test_the_docstrings_examples_hold() -> None:
    assert doctest.testmod(cojoin.engine.values.types).failed == 0


@pytest.mark.spark
@of_spark_4_2
def test_differential_spark_reads_the_same_types(spark: SparkSession) -> None:
    assert [ddl for ddl in TYPES if not same(parse_type(ddl), spark_reads(ddl))] == []


@pytest.mark.spark
@of_spark_4_2
def test_differential_spark_reads_the_same_schemas(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import _parse_datatype_string

    for ddl in [ddl for ddl, dtype in TYPES.items() if pa.types.is_struct(dtype) and len(dtype)]:
        assert parse_schema(ddl) == to_arrow_schema(_parse_datatype_string(ddl), timezone="UTC")


@pytest.mark.spark
@of_spark_4_2
@pytest.mark.parametrize("ddl", CHARS)
def test_differential_sparks_frames_hold_chars_as_strings(spark: SparkSession, ddl: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    held = spark.sql(f"SELECT CAST('x' AS {ddl}) AS a").schema["a"].dataType
    assert to_arrow_type(held) == parse_type(ddl)


@pytest.mark.spark
@of_spark_4_2
@settings(deadline=None, max_examples=25)
@given(arrow_types(st.text("aB1_ `-é.'>", max_size=4)))
def test_differential_spark_reads_what_is_written(spark: SparkSession, dtype: pa.DataType) -> None:
    assert same(dtype, spark_reads(type_to_ddl(dtype)))


@pytest.mark.parametrize("declared", ["", "  ", pa.schema([])])
def test_no_columns_are_none(declared: Any) -> None:
    with pytest.raises(SchemaError, match=r"^output_type: expected one or more columns, such as .*, got none$"):
        as_schema(declared, "output_type")
    with pytest.raises(SchemaError, match=r"^side output 'x': expected one or more columns"):
        OutputTag("x", declared)


@pytest.mark.push
def test_a_struct_of_spark_without_columns_is_none() -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(SchemaError, match=r"^output_type: expected one or more columns, such as .*, got none$"):
        as_schema(StructType([]), "output_type")
