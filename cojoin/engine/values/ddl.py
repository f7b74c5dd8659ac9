"""A parser of Spark's DDL: it reads the text of a type or of fields, token by token, as Arrow types.

``types`` documents which texts are accepted and which types they become. An error message shows the faulty line, the
position in it, what was expected there, and how to correct it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import pyarrow as pa

from cojoin.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PLAIN", "SUPPORTED", "UNSUPPORTED", "read_fields", "read_type"]

SUPPORTED = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, char(n), varchar(n), binary, date, "
    "time, timestamp, timestamp_ntz, interval day to second, void, array<>, map<,> and struct<>"
)
"""The types that cojoin supports, by their Spark names."""

PLAIN = {
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
UNSUPPORTED = {"variant", "geometry", "geography"}
_FOREIGN = (
    {"bool": "boolean", "bytes": "binary", "dict": "map", "list": "array", "object": "struct", "str": "string"}
    | {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float32": "float"}
    | {"float64": "double", "datetime": "timestamp", "timedelta": "interval day to second"}
    | {"null": "void", "number": "decimal", "text": "string"}
)
"""What Python, Arrow and other databases call a type, where similarity of letters would not find Spark's name."""

_UNITS = ("day", "hour", "minute", "second")
_CONTINUED = {*_UNITS, "year", "month", "collate", "with", "without"}
"""Words that continue a type's name, so they are never read as the type of a field that has that name."""

_AFTER_FIELD = {
    "default": "; DEFAULT is not supported",
    "generated": "; generated columns are not supported",
    "not": "; write NOT NULL once, before COMMENT",
    "null": "; leave it out, for a field may be null unless it is NOT NULL",
}
"""The advice about a word after a field that other dialects of DDL allow there."""

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


def read_fields(ddl: str, what: str) -> list[pa.Field]:
    """Return the fields of a text, which are written as a list or as one ``struct<...>``.

    Args:
        ddl: The text.
        what: What it configures, for the message.

    Raises:
        SchemaError: It does not parse, or there is no field.
    """
    reader = _Reader(ddl, what)
    is_struct = reader.peek().says("struct") and reader.peek(1).says("<", "<>")
    fields = list(reader.type()) if is_struct else reader.fields("")
    reader.expect("")
    if not fields:
        reader.refuse(reader.peek(), "expected at least one field, got none")
    return fields


def read_type(ddl: str, what: str) -> pa.DataType:
    """Return the type of a text; a list of fields is read as a struct.

    Args:
        ddl: The text.
        what: What it configures, for the message.

    Raises:
        SchemaError: It does not parse.
    """
    reader = _Reader(ddl, what)
    dtype = pa.struct(reader.fields("")) if reader.begins_with_a_field() else reader.type()
    reader.expect("")
    return dtype


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    def says(self, *words: str) -> bool:
        return self.kind in {"word", "sign"} and self.text.lower() in words

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def _tokens(ddl: str) -> Iterator[_Token]:
    for match in _LEXEME.finditer(ddl):
        if match.lastgroup not in {None, "blank"}:
            yield _Token(str(match.lastgroup), match.group(), match.start())
    yield _Token("end", "", len(ddl.rstrip()))


class _Reader:
    """One pass over the tokens of a DDL text; each method reads the construct that it is named after."""

    def __init__(self, ddl: str, what: str) -> None:
        if not isinstance(ddl, str):
            msg = f"{what}: expected Spark DDL such as 'id long, name string', got {ddl!r}"
            raise SchemaError(msg)
        self.ddl = ddl
        self.what = what
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
        found = all(self.peek(ahead).says(word) for ahead, word in enumerate(words))
        self.index += len(words) if found else 0
        return found

    def expect(self, sign: str, cure: str = "", *, also: str = "") -> None:
        """Skip this sign, or check for the end of the text where it is empty; refuse anything else."""
        if not (self.accept(sign) if sign else self.peek().kind == "end"):
            self.unexpected(also + (repr(sign) if sign else "the end"), cure)

    def refuse(self, token: _Token, problem: str, cure: str = "") -> NoReturn:
        """Raise the error that shows the faulty line and the position in it, counted from 0 as in Spark."""
        start = self.ddl.rfind("\n", 0, token.at) + 1
        line = self.ddl[start:].partition("\n")[0].rstrip()
        number = f" (line {self.ddl.count(chr(10), 0, start) + 1})" if "\n" in self.ddl.strip() else ""
        msg = f'{self.what}="{line}"{number}: {problem} at character {token.at - start}{cure}'
        raise SchemaError(msg)

    def unexpected(self, expected: str, cure: str = "") -> NoReturn:
        after = f" after {self.tokens[self.index - 1]}" if self.index else ""
        self.refuse(self.peek(), f"expected {expected}{after}, got {self.peek()}", cure)

    def unsupported(self, token: _Token, name: str) -> NoReturn:
        self.refuse(token, f"unsupported type '{name}'", f"; supported are {SUPPORTED}")

    def begins_with_a_field(self) -> bool:
        known, second = self.peek().text.lower() in _NAMES, self.peek(1)
        if second.kind == "stray":  # it cuts off a name that must be quoted
            return not known
        if second.kind in {"word", "quoted"}:
            return not (known and second.says(*_CONTINUED))
        return second.says(":")

    def fields(self, close: str) -> list[pa.Field]:
        """Return the fields up to a closing sign, or up to the end of the text where it is empty."""
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
        if self.peek().says("not"):
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
        """Return the advice for a character that cuts off a name, or stands where one begins, and must be quoted."""
        if self.peek().text in {"`", "'", '"'}:
            return "; the quote is not closed"
        if self.peek().kind in {"stray", "number", "text"}:
            return "; back-quote a name that has other signs than letters, digits and _, or only digits"
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
        if name in PLAIN:
            return PLAIN[name]
        if name not in _BUILT:
            self.unknown(token, name)
        return _BUILT[name](self)

    def unknown(self, token: _Token, name: str) -> NoReturn:
        if name in UNSUPPORTED:
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
            return PLAIN["timestamp_ntz"]
        self.accept("with", "local", "time", "zone")
        return PLAIN["timestamp_ltz"]

    def time(self) -> pa.DataType:
        if self.accept("("):
            self.number("a precision", 0, 6)
            self.expect(")")
        self.accept("without", "time", "zone")
        return pa.time64("ns")

    def interval(self) -> pa.DataType:
        first = self.peek()
        if not first.says(*_UNITS):
            name = f"interval {first.text}" if first.says("year", "month") else "interval"
            self.unsupported(self.tokens[self.index - 1], name)
        finer = _UNITS[_UNITS.index(self.take().text.lower()) + 1 :]
        if finer and self.accept("to"):
            if not self.peek().says(*finer):
                self.unexpected(" or ".join(map(repr, finer)))
            self.take()
        return pa.duration("us")

    def not_void(self, dtype: pa.DataType, meaning: str) -> None:
        """Raise an error for a void that Spark accepts but neither Arrow nor any value can represent."""
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
_NAMES = (*PLAIN, *_BUILT, *_ALIASES)
