from __future__ import annotations

import doctest
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cojoin.types
from cojoin.errors import CojoinError, SchemaError
from cojoin.types import SUPPORTED, parse_schema, parse_type, schema_to_ddl, type_to_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMESTAMP = pa.timestamp("us", tz="UTC")

TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "time(3) without time zone": pa.time64("ns"),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp with local time zone": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "string": pa.string(),
    "string collate utf8_binary": pa.string(),
    "binary": pa.binary(),
    "decimal": pa.decimal128(10, 0),
    "dec(5)": pa.decimal128(5, 0),
    "numeric ( 38 , 38 )": pa.decimal128(38, 38),
    "decimal(010,02)": pa.decimal128(10, 2),
    "interval day to second": pa.duration("us"),
    "interval hour to minute": pa.duration("us"),
    "interval second": pa.duration("us"),
    "void": pa.null(),
    "array<int>": pa.list_(pa.field("element", pa.int32())),
    "Array < BIGINT >": pa.list_(pa.field("element", pa.int64())),
    "map<string,array<int>>": pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32()))),
    "struct<>": pa.struct([]),
    "struct<a:int,B string NOT NULL>": pa.struct([("a", pa.int32()), pa.field("B", pa.string(), nullable=False)]),
    "struct<a: struct<b: map<int,int>>>": pa.struct([("a", pa.struct([("b", pa.map_(pa.int32(), pa.int32()))]))]),
    "tier string, since timestamp": pa.struct([("tier", pa.string()), ("since", TIMESTAMP)]),
    "a: int": pa.struct([("a", pa.int32())]),
    "interval: int": pa.struct([("interval", pa.int32())]),
    "date date": pa.struct([("date", pa.date32())]),
    "struct struct<struct:int>": pa.struct([("struct", pa.struct([("struct", pa.int32())]))]),
    "a int NOT NULL COMMENT 'it''s' \"x\", b int": pa.struct(
        [pa.field("a", pa.int32(), nullable=False), ("b", pa.int32())]
    ),
    "comment string comment r'\\', not int, null int": pa.struct(
        [("comment", pa.string()), ("not", pa.int32()), ("null", pa.int32())]
    ),
    "`odd name` int, `a``b` int, `größe` int, 1a int": pa.struct(
        [("odd name", pa.int32()), ("a`b", pa.int32()), ("größe", pa.int32()), ("1a", pa.int32())]
    ),
    "a\tint -- the first\n, /* the second, */ b\u00a0int": pa.struct([("a", pa.int32()), ("b", pa.int32())]),
}
"""What Spark reads too, as the same type."""

CHARS = ["char(3)", "CHARACTER (3)", "varchar(7)", "char(3) collate utf8_binary"]
"""What PySpark leaves to Spark's frames, in which they are strings."""

MALFORMED = {
    "a": "unknown type 'a' at character 0; valid are 'boolean', 'tinyint', ",
    "trade_id lnog": "unknown type 'lnog' at character 9; did you mean 'long'?",
    "array<strng>": "unknown type 'strng' at character 6; did you mean 'string'",
    "a text": "unknown type 'text' at character 2; did you mean 'string'?",
    "a int64": "unknown type 'int64' at character 2; did you mean 'bigint'?",
    "a null": "unknown type 'null' at character 2; did you mean 'void'?",
    "double precision": "unknown type 'precision' at character 7",
    "a `int`": "expected a type after 'a', got '`int`' at character 2",
    "a int,": "expected a field's name after ',', got the end at character 6",
    ", a int": "expected a field's name, got ',' at character 0",
    "a int, b": "expected the field's type after 'b', got the end at character 8; a field is a name and a type",
    "a int b int": "expected ',' or the end after 'int', got 'b' at character 6",
    "a int; b int": "expected ',' or the end after 'int', got ';' at character 5",
    "a int DEFAULT 3": "got 'DEFAULT' at character 6; DEFAULT is not supported",
    "a int generated always as (1)": "got 'generated' at character 6; generated columns are not supported",
    "a int null": "got 'null' at character 6; leave it out, for a field may be null unless it is NOT NULL",
    "a int comment 'x' not null": "got 'not' at character 18; write NOT NULL once, before COMMENT",
    "a int not": "got 'not' at character 6",
    "a int comment x": "expected a quoted text after 'comment', got 'x' at character 14",
    "a int comment 'x": """got "'" at character 14; the quote is not closed""",
    "`a int": "expected a field's name, got '`' at character 0; the quote is not closed",
    "a-b int": "expected a type after 'a', got '-' at character 1; back-quote a name that has other signs than letters",
    "größe int": "got 'ö' at character 2; back-quote a name",
    "12 int": "expected a field's name, got '12' at character 0; back-quote a name",
    "1e5 int": "got '1e5' at character 0; back-quote a name",
    '"a b" int': "expected a field's name, got '\"a b\"' at character 0; back-quote a name",
    "struct<a::int>": "expected the field's type after ':', got ':' at character 9",
    "struct<a int": "expected ',' or '>' after 'int', got the end at character 12",
    "array<int": "expected '>' after 'int', got the end at character 9",
    "array<int>>": "expected the end after '>', got '>' at character 10",
    "array<>": "expected '<' after 'array', got '<>' at character 5",
    "array<int not null>": "expected '>' after 'int', got 'not' at character 10",
    "map<int>": "expected ',' after 'int', got '>' at character 7",
    "struct": "expected '<' after 'struct', got the end at character 6",
    "int(3)": "expected the end after 'int', got '(' at character 3",
    "timestamp(3)": "expected the end after 'timestamp', got '(' at character 9",
    "timestamp with time zone": "expected the end after 'timestamp', got 'with' at character 10",
    "time(7)": "expected a precision of 0 to 6 after '(', got '7' at character 5",
    "varchar": "expected '(' after 'varchar', got the end at character 7; it needs a length, as in 'varchar(10)'",
    "varchar(99999999999)": "expected a length of 0 to 2147483647 after '(', got '99999999999' at character 8",
    "decimal(39)": "expected a precision of 1 to 38 after '(', got '39' at character 8",
    "decimal(5,6)": "expected a scale of 0 to 5 after ',', got '6' at character 10",
    "decimal(5,-1)": "expected a scale of 0 to 5 after ',', got '-' at character 10",
    "decimal()": "expected a precision of 1 to 38 after '(', got ')' at character 8",
    "interval day to day": "expected 'hour' or 'minute' or 'second' after 'to', got 'day' at character 16",
    "interval day second": "expected the end after 'day', got 'second' at character 13",
    "string collate": "expected a collation's name after 'collate', got the end at character 14",
}
"""What Spark refuses too, and what we say about it."""

REFUSED = {
    "": "expected a type, got the end at character 0",
    "a int, A string": "field 'A' repeats 'a' at character 7; names must differ by more than case",
    "x array<struct<a: int, a: int>>": "field 'a' repeats 'a' at character 23; names must differ by more than case",
    "decimal(0,0)": "expected a precision of 1 to 38 after '(', got '0' at character 8",
    "a void NOT NULL": "expected a type that can be NOT NULL, got 'void' at character 2",
    "map<void,int>": "expected the type of a map's keys, got 'void' at character 4",
    "a variant": f"unsupported type 'variant' at character 2; supported are {SUPPORTED}",
    "geometry(4326)": "unsupported type 'geometry' at character 0; supported are boolean, ",
    "a interval": "unsupported type 'interval' at character 2; supported are boolean, ",
    "interval year to month": "unsupported type 'interval year' at character 0; supported are boolean, ",
    "string collate utf8_lcase": "unsupported type 'string collate utf8_lcase' at character 15; supported are ",
}
"""What Spark reads and we refuse."""


SLIPS = "<>|<|>|,|:|(|)|.|`|'| |1|10|a|B|'x'|comment|not null|to|second|collate|time zone|without|time|day"
LEXEMES = [*SLIPS.split("|"), "int", "STRING", "array", "map", "struct", "decimal", "interval", "timestamp", "void"]
"""What a slip of the pen puts into a text."""


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


def message(ddl: object, what: str = "type") -> str:
    with pytest.raises(SchemaError) as caught:
        parse_type(ddl, what=what)  # type: ignore[arg-type]
    return str(caught.value)


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


def test_a_schema_may_be_wrapped_as_a_struct() -> None:
    assert parse_schema("struct<a: int, b string>") == parse_schema("a int, b string")


@given(st.text() | st.lists(st.sampled_from(LEXEMES)).map("".join))
def test_any_text_is_read_or_refused(ddl: str) -> None:
    with suppress(SchemaError):
        assert isinstance(parse_type(ddl), pa.DataType)
    with suppress(SchemaError):
        assert len(parse_schema(ddl)) > 0


@given(arrow_types(st.text(max_size=5)))
def test_what_is_written_is_read_back(dtype: pa.DataType) -> None:
    read = parse_type(type_to_ddl(dtype))
    assert read == dtype
    assert str(read) == str(dtype)


@given(st.lists(st.tuples(st.text(), st.booleans()), min_size=1, unique_by=lambda field: field[0].lower()))
def test_what_is_written_of_a_schema_is_read_back(fields: list[tuple[str, bool]]) -> None:
    schema = pa.schema([pa.field(name, pa.int32(), nullable=nullable) for name, nullable in fields])
    assert parse_schema(schema_to_ddl(schema)) == schema


@pytest.mark.parametrize(
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
def test_a_type_is_written_as_pyspark_reads_it(dtype: pa.DataType, ddl: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_type

    assert type_to_ddl(dtype) == ddl == from_arrow_type(dtype).simpleString()


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
        schema_to_ddl(schema, what="output")


def test_a_schema_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(SchemaError, match="schema: expected at least one field, got none"):
        schema_to_ddl(pa.schema([]))
    with pytest.raises(SchemaError, match="schema: field 'A' repeats 'a'; names must differ by more than case"):
        schema_to_ddl(pa.schema([("a", pa.int8()), ("A", pa.int8())]))


def test_the_docstrings_examples_hold() -> None:
    assert doctest.testmod(cojoin.types).failed == 0


def spark_reads(ddl: str) -> pa.DataType | None:
    """What PySpark makes of a DDL text in the running session: an Arrow type, or None where Spark refuses it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import _parse_datatype_string

    try:
        dtype = _parse_datatype_string(ddl)
    except (PySparkException, Py4JJavaError):  # the latter for an inner error, such as a time's precision of 7
        return None
    return to_arrow_type(dtype, timezone="UTC")


def same(ours: pa.DataType, theirs: pa.DataType | None) -> bool:
    """Tell whether two types are equal, down to the names of their inner fields, which Arrow's own equality skips."""
    return ours == theirs and str(ours) == str(theirs)


@pytest.mark.spark
def test_differential_spark_reads_the_same_types(spark: SparkSession) -> None:
    assert [ddl for ddl in TYPES if not same(parse_type(ddl), spark_reads(ddl))] == []


@pytest.mark.spark
def test_differential_spark_reads_the_same_schemas(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import _parse_datatype_string

    for ddl in [ddl for ddl, dtype in TYPES.items() if pa.types.is_struct(dtype) and len(dtype)]:
        assert parse_schema(ddl) == to_arrow_schema(_parse_datatype_string(ddl), timezone="UTC")


@pytest.mark.spark
@pytest.mark.parametrize("ddl", CHARS)
def test_differential_sparks_frames_hold_chars_as_strings(spark: SparkSession, ddl: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    held = spark.sql(f"SELECT CAST('x' AS {ddl}) AS a").schema["a"].dataType
    assert to_arrow_type(held) == parse_type(ddl)


@pytest.mark.spark
def test_differential_what_is_malformed_here_is_so_in_spark(spark: SparkSession) -> None:
    assert [ddl for ddl in MALFORMED if spark_reads(ddl) is not None] == []


@pytest.mark.spark
def test_differential_ddls_own_words_are_names_in_spark_as_here(spark: SparkSession) -> None:
    words = "array collate comment day default interval local map not null string struct time timestamp to void with"
    assert [word for word in words.split() if not same(parse_type(f"{word} int"), spark_reads(f"{word} int"))] == []


@pytest.mark.spark
@settings(deadline=None, max_examples=25)
@given(arrow_types(st.text("aB1_ `-é.'>", max_size=4)))
def test_differential_spark_reads_what_is_written(spark: SparkSession, dtype: pa.DataType) -> None:
    assert same(dtype, spark_reads(type_to_ddl(dtype)))


OURS_ALONE = re.compile(r"unsupported type|repeats|got '0+'|got 'void'|expected a type, got the end")


@pytest.mark.spark
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
