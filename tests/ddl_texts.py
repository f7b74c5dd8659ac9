"""Texts of Spark's DDL, right and wrong, and what Spark makes of a text."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import pyarrow as pa
import pytest

from cojoin.engine.values.types import SUPPORTED

of_spark_4_2 = pytest.mark.skipif(
    find_spec("pyspark") is None or not version("pyspark").startswith("4.2."),
    reason="texts are read as Spark 4.2 reads them",
)

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
    "a int null": "got 'null' at character 6; leave it out, since a field may be null unless it is NOT NULL",
    "a int comment 'x' not null": "got 'not' at character 18; write NOT NULL once, before COMMENT",
    "a int not": "got 'not' at character 6",
    "a int comment x": "expected a quoted text after 'comment', got 'x' at character 14",
    "a int comment 'x": """got "'" at character 14; the quote is not closed""",
    "`a int": "expected a field's name, got '`' at character 0; the quote is not closed",
    "a-b int": "expected a type after 'a', got '-' at character 1; back-quote a name that has characters other",
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


def spark_reads(ddl: str) -> pa.DataType | None:
    """What PySpark makes of a DDL text in the running session: an Arrow type, or None where Spark refuses it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import _parse_datatype_string

    from cojoin.session.arrow_types import arrow_type

    try:
        dtype = _parse_datatype_string(ddl)
    except (PySparkException, Py4JJavaError):  # the latter for an inner error, such as a time's precision of 7
        return None
    return arrow_type(dtype)


def same(ours: pa.DataType, theirs: pa.DataType | None) -> bool:
    """Tell whether two types are equal, down to the names of their inner fields, which Arrow's own equality skips."""
    return ours == theirs and str(ours) == str(theirs)
