"""Spark's DDL without Spark: converts the text of a type or schema into PySpark's Arrow type for it, and back.

Spark 4.2 reads every text that this module accepts, as the same type, and refuses every text that this module refuses
as malformed. This module also refuses an empty schema, fields of one struct whose names differ at most in case,
``decimal(0)``, a NOT NULL void, and types without a plain Arrow type: variant, geometry, geography, calendar and
year-month intervals, and collations other than ``utf8_binary``. The message about a text shows the faulty line, the
position in it, what was expected, and how to correct it.

DDL that this module writes is read back as the same type, with two exceptions. DDL can't express an array or map whose
values are never null, so the wider type is written. Arrow's large, fixed-size and dictionary-encoded forms,
256-bit decimals, time units and zones are written as the one Spark type that PySpark makes of them.

Comments are dropped. Timestamps are UTC and to the microsecond. Names keep their case; type names ignore case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa

from cojoin.engine.values.rows import back_quoted
from cojoin.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SUPPORTED = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, char(n), varchar(n), binary, date, "
    "time, timestamp, timestamp_ntz, interval day to second, void, array<>, map<,> and struct<>"
)
"""The types that cojoin supports, by their Spark names."""

_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_ALIASES |= {"dec": "decimal", "numeric": "decimal", "character": "char", "varchar": "char"}
_UNSUPPORTED = {"variant", "geometry", "geography"}
_FOREIGN = (
    {"bool": "boolean", "bytes": "binary", "dict": "map", "list": "array", "object": "struct", "str": "string"}
    | {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float32": "float"}
    | {"float64": "double", "datetime": "timestamp", "timedelta": "interval day to second"}
    | {"null": "void", "number": "decimal", "text": "string"}
)
"""The names of types in Python, Arrow and other databases for which similarity would not find Spark's name."""

_UNITS = ("day", "hour", "minute", "second")
_CONTINUED = {*_UNITS, "year", "month", "collate", "with", "without"}
"""Words that continue a type's name: ``interval day`` is a type, not a field ``interval`` of a type ``day``."""

_AFTER_FIELD = {
    "default": "; DEFAULT is not supported",
    "generated": "; generated columns are not supported",
    "not": "; write NOT NULL once, before COMMENT",
    "null": "; leave it out, since a field may be null unless it is NOT NULL",
}
"""The advice about words that other dialects of DDL allow after a field."""

_LEXEME = re.compile(
    r"""
      (?P<blank> [ \t\n\f\r\v\u00a0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000]+ | --[^\r\n]* | /\*(?!\+).*?\*/ )
    | (?P<quoted> `(?:[^`]|``)*` )
    | (?P<text> r'[^']*' | r"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
    | (?P<number> \d+ (?:[lsy] | (?:e\d+)? (?:f|d|bd)? ) (?!\w) )
    | (?P<word> \w+ )
    | (?P<sign> <> | [<>(),:] )
    | (?P<stray> . )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE | re.ASCII,
)


def _read_fields(ddl: str, label: str) -> list[pa.Field]:
    """Return the fields of a text, which are written as a list or as one ``struct<...>``."""
    reader = _Reader(ddl, label)
    is_struct = reader.peek().is_one_of("struct") and reader.peek(1).is_one_of("<", "<>")
    fields = list(reader.type()) if is_struct else reader.fields("")
    reader.expect("")
    if not fields:
        reader.refuse(reader.peek(), "expected at least one field, got none")
    return fields


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    def is_one_of(self, *words: str) -> bool:
        return self.kind in {"word", "sign"} and self.text.lower() in words

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def _tokens(ddl: str) -> Iterator[_Token]:
    for match in _LEXEME.finditer(ddl):
        if match.lastgroup not in {None, "blank"}:
            yield _Token(str(match.lastgroup), match.group(), match.start())
    yield _Token("end", "", len(ddl.rstrip()))


class _Reader:
    """One pass over the tokens of a DDL text; a method with the name of a type or construct reads it."""

    def __init__(self, ddl: str, label: str) -> None:
        if not isinstance(ddl, str):
            msg = f"{label}: expected Spark DDL such as 'id long, name string', got {ddl!r}"
            raise SchemaError(msg)
        self.ddl = ddl
        self.label = label
        self.tokens = list(_tokens(ddl))
        self.index = 0

    def peek(self, ahead: int = 0) -> _Token:
        return self.tokens[min(self.index + ahead, len(self.tokens) - 1)]

    def take(self) -> _Token:
        token = self.peek()
        self.index += 1
        return token

    def accept(self, *words: str) -> bool:
        """Return whether these words or signs come next, and skip them if all do."""
        follows = all(self.peek(ahead).is_one_of(word) for ahead, word in enumerate(words))
        self.index += len(words) if follows else 0
        return follows

    def expect(self, sign: str, cure: str = "", *, also: str = "") -> None:
        """Skip this sign; an empty sign stands for the end of the text. Raise an error for anything else."""
        if not (self.accept(sign) if sign else self.peek().kind == "end"):
            self.unexpected(also + (repr(sign) if sign else "the end"), cure)

    def refuse(self, token: _Token, problem: str, cure: str = "") -> NoReturn:
        """Raise the error that shows the faulty line and the position in it, counted from 0 as in Spark."""
        start = self.ddl.rfind("\n", 0, token.at) + 1
        line = self.ddl[start:].partition("\n")[0].rstrip()
        number = f" (line {self.ddl.count(chr(10), 0, start) + 1})" if "\n" in self.ddl.strip() else ""
        msg = f'{self.label}="{line}"{number}: {problem} at character {token.at - start}{cure}'
        raise SchemaError(msg)

    def unexpected(self, expected: str, cure: str = "") -> NoReturn:
        after = f" after {self.tokens[self.index - 1]}" if self.index else ""
        self.refuse(self.peek(), f"expected {expected}{after}, got {self.peek()}", cure)

    def unsupported(self, token: _Token, name: str) -> NoReturn:
        self.refuse(token, f"unsupported type '{name}'", f"; supported are {SUPPORTED}")

    def begins_with_a_field(self) -> bool:
        known, second = self.peek().text.lower() in _NAMES, self.peek(1)
        if second.kind == "stray":  # the first word is a part of a name that must be quoted
            return not known
        if second.kind in {"word", "quoted"}:
            return not (known and second.is_one_of(*_CONTINUED))
        return second.is_one_of(":")

    def fields(self, close: str) -> list[pa.Field]:
        """Return the fields up to a closing sign; an empty sign stands for the end of the text."""
        fields: dict[str, pa.Field] = {}
        while not fields or self.accept(","):
            token = self.peek()
            field = self.field()
            folded = field.name.lower()
            if folded in fields:
                problem = f"field {field.name!r} repeats {fields[folded].name!r}"
                self.refuse(token, problem, "; names must differ by more than case")
            fields[folded] = field
        self.expect(close, _AFTER_FIELD.get(self.peek().text.lower(), ""), also="',' or ")
        return list(fields.values())

    def field(self) -> pa.Field:
        name = self.name("a field's name")
        self.accept(":")
        if self.peek().kind in {"end", "sign"}:
            self.unexpected("the field's type", "; a field is a name and a type, as in 'id bigint'")
        dtype = self.type()
        if self.peek().is_one_of("not"):
            self.not_void(dtype, "a type that can be NOT NULL")
        nullable = not self.accept("not", "null")
        if self.accept("comment"):
            self.comment()
        return pa.field(name, dtype, nullable=nullable)

    def name(self, meaning: str) -> str:
        if self.peek().kind not in {"word", "quoted"}:
            self.unexpected(meaning, self.quoting_cure())
        token = self.take()
        return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text

    def quoting_cure(self) -> str:
        """Return the advice for a character within or at the start of a name, which must then be quoted."""
        if self.peek().text in {"`", "'", '"'}:
            return "; the quote is not closed"
        if self.peek().kind in {"stray", "number", "text"}:
            return "; back-quote a name that has characters other than letters, digits and _, or only digits"
        return ""

    def comment(self) -> None:
        if self.peek().kind != "text":
            self.unexpected("a quoted text", self.quoting_cure())
        while self.peek().kind == "text":
            self.take()

    def type(self) -> pa.DataType:
        if self.peek().kind != "word":
            self.unexpected("a type", self.quoting_cure())
        token = self.take()
        name = _ALIASES.get(token.text.lower(), token.text.lower())
        if name in _PLAIN:
            return _PLAIN[name]
        if name not in _BUILT:
            self.unknown(token, name)
        return _BUILT[name](self)

    def unknown(self, token: _Token, name: str) -> NoReturn:
        if name in _UNSUPPORTED:
            self.unsupported(token, name)
        near = f"; did you mean {_FOREIGN[name]!r}?" if name in _FOREIGN else did_you_mean(name, _NAMES)
        self.refuse(token, f"unknown type {token}", near)

    def string(self) -> pa.DataType:
        if self.accept("collate"):
            token, collation = self.peek(), self.name("a collation's name")
            if collation.lower() != "utf8_binary":
                self.unsupported(token, f"string collate {collation}")
        return pa.string()

    def char(self) -> pa.DataType:
        self.expect("(", "; it needs a length, as in 'varchar(10)'")
        self.number("a length")
        self.expect(")")
        return self.string()

    def number(self, meaning: str, low: int = 0, high: int = 2**31 - 1) -> int:
        token = self.peek()
        if not token.text.isdecimal() or not low <= int(token.text) <= high:
            self.unexpected(f"{meaning} of {low} to {high}")
        return int(self.take().text)

    def decimal(self) -> pa.DataType:
        if not self.accept("("):
            return pa.decimal128(10, 0)
        precision = self.number("a precision", 1, 38)
        scale = self.number("a scale", 0, precision) if self.accept(",") else 0
        self.expect(")")
        return pa.decimal128(precision, scale)

    def timestamp(self) -> pa.DataType:
        if self.accept("without", "time", "zone"):
            return _PLAIN["timestamp_ntz"]
        self.accept("with", "local", "time", "zone")
        return _PLAIN["timestamp_ltz"]

    def time(self) -> pa.DataType:
        if self.accept("("):
            self.number("a precision", 0, 6)
            self.expect(")")
        self.accept("without", "time", "zone")
        return pa.time64("ns")

    def interval(self) -> pa.DataType:
        first = self.peek()
        if not first.is_one_of(*_UNITS):
            name = f"interval {first.text}" if first.is_one_of("year", "month") else "interval"
            self.unsupported(self.tokens[self.index - 1], name)
        finer = _UNITS[_UNITS.index(self.take().text.lower()) + 1 :]
        if finer and self.accept("to"):
            if not self.peek().is_one_of(*finer):
                self.unexpected(" or ".join(map(repr, finer)))
            self.take()
        return pa.duration("us")

    def not_void(self, dtype: pa.DataType, meaning: str) -> None:
        """Raise an error for a void that may not be null: Spark accepts it, but no value has that type."""
        if pa.types.is_null(dtype):
            self.refuse(self.tokens[self.index - 1], f"expected {meaning}, got 'void'")

    def array(self) -> pa.DataType:
        self.expect("<")
        element = self.type()
        self.expect(">")
        return pa.list_(pa.field("element", element))

    def map(self) -> pa.DataType:
        self.expect("<")
        key = self.type()
        self.not_void(key, "the type of a map's keys")
        self.expect(",")
        value = self.type()
        self.expect(">")
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))

    def struct(self) -> pa.DataType:
        if self.accept("<>") or self.accept("<", ">"):
            return pa.struct([])
        self.expect("<")
        return pa.struct(self.fields(">"))


_BUILT: dict[str, Callable[[_Reader], pa.DataType]] = {
    name: getattr(_Reader, name)
    for name in ("string", "char", "decimal", "timestamp", "time", "interval", "array", "map", "struct")
}
_NAMES = (*_PLAIN, *_BUILT, *_ALIASES)

_UNQUOTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_WRITTEN = (
    (pa.types.is_large_string, "string"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
    (pa.types.is_time64, "time(6)"),
    (pa.types.is_duration, "interval day to second"),
    *((dtype.equals, name) for name, dtype in _PLAIN.items()),
)


def parse_schema(ddl: str, *, label: str = "schema") -> pa.Schema:
    """Return fields, such as ``"id long NOT NULL, `odd name` int"``, or a ``struct<...>`` as an Arrow schema.

    >>> parse_schema("trade_id long NOT NULL, amount decimal(10,2)")
    trade_id: int64 not null
    amount: decimal128(10, 2)
    """
    return pa.schema(_read_fields(ddl, label))


def as_schema(declared: Any, label: str) -> pa.Schema:
    """Return the columns that a user declares: one or more, as DDL, an Arrow schema, or a PySpark ``StructType``.

    >>> as_schema("trade_id long, tier string", "output_type").names
    ['trade_id', 'tier']
    """
    names = getattr(declared, "names", None)
    if names == [] or (isinstance(declared, str) and not declared.strip()):
        msg = f"{label}: expected one or more columns, such as 'trade_id long, tier string', got none"
        raise SchemaError(msg)
    if isinstance(declared, pa.Schema):
        schema_to_ddl(declared, label=label)  # raises an error for a type that Spark lacks
        return declared
    if isinstance(declared, str):
        return parse_schema(declared, label=label)
    if hasattr(declared, "fields") and hasattr(declared, "simpleString"):
        # PySpark's types return their own DDL, so the engine accepts them without importing PySpark.
        fields = (
            f"{back_quoted(field.name)} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            for field in declared.fields
        )
        return parse_schema(", ".join(fields), label=label)
    msg = f"{label}: expected DDL such as 'trade_id long, tier string' or a StructType, got {declared!r}"
    raise SchemaError(msg)


def parse_type(ddl: str, *, label: str = "type") -> pa.DataType:
    """Return one type as an Arrow type; a list of fields is read as a struct.

    >>> parse_type("map<string, bigint>")
    MapType(map<string, int64>)
    >>> parse_type("tier string, since timestamp")
    StructType(struct<tier: string, since: timestamp[us, tz=UTC]>)
    """
    reader = _Reader(ddl, label)
    dtype = pa.struct(reader.fields("")) if reader.begins_with_a_field() else reader.type()
    reader.expect("")
    return dtype


def schema_to_ddl(schema: pa.Schema, *, label: str = "schema") -> str:
    """Return an Arrow schema as the fields that `parse_schema` reads.

    >>> schema_to_ddl(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("odd name", pa.string())]))
    'id bigint NOT NULL, `odd name` string'
    """
    if not len(schema):
        msg = f"{label}: expected at least one field, got none"
        raise SchemaError(msg)
    return ", ".join(_written(schema, " ", label))


def type_to_ddl(dtype: pa.DataType, *, label: str = "type") -> str:
    """Return Spark's name of an Arrow type, which `parse_type` reads.

    >>> type_to_ddl(pa.struct({"tier": pa.string(), "visits": pa.list_(pa.date32())}))
    'struct<tier:string,visits:array<date>>'
    """
    ddl = _written_plain(dtype) or _written_nested(dtype, label)
    if ddl is None:
        msg = f"{label}: expected an Arrow type that Spark has too, got {dtype}; cast it to one of {SUPPORTED}"
        raise SchemaError(msg)
    return ddl


def _written_plain(dtype: pa.DataType) -> str | None:
    if pa.types.is_timestamp(dtype):
        return "timestamp_ntz" if dtype.tz is None else "timestamp"
    if pa.types.is_decimal(dtype) and 0 <= dtype.scale <= dtype.precision <= 38:
        return f"decimal({dtype.precision},{dtype.scale})"
    return next((name for is_kind, name in _WRITTEN if is_kind(dtype)), None)


def _written_nested(dtype: pa.DataType, label: str) -> str | None:
    types = pa.types
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        return f"array<{type_to_ddl(dtype.value_type, label=f'{label}.element')}>"
    if types.is_map(dtype):
        key = type_to_ddl(dtype.key_type, label=f"{label}.key")
        return f"map<{key},{type_to_ddl(dtype.item_type, label=f'{label}.value')}>"
    if types.is_struct(dtype) and not is_tagged(dtype):
        return f"struct<{','.join(_written(dtype, ':', label))}>"
    return type_to_ddl(dtype.value_type, label=label) if types.is_dictionary(dtype) else None


def is_tagged(struct: pa.StructType) -> bool:
    """Return whether this struct is Spark's representation of a variant, geometry or geography."""
    tags = {name.encode() for name in _UNSUPPORTED}
    return any(not tags.isdisjoint(field.metadata or ()) for field in struct)


def _written(fields: Iterable[pa.Field], colon: str, label: str) -> Iterator[str]:
    seen: dict[str, str] = {}
    for field in fields:
        folded = field.name.lower()
        if folded in seen:
            msg = f"{label}: field {field.name!r} repeats {seen[folded]!r}; names must differ by more than case"
            raise SchemaError(msg)
        seen[folded] = field.name
        name = field.name if _UNQUOTED.fullmatch(field.name) else back_quoted(field.name)
        dtype = type_to_ddl(field.type, label=f"{label}.{field.name}")
        yield f"{name}{colon}{dtype}{'' if field.nullable else ' NOT NULL'}"
