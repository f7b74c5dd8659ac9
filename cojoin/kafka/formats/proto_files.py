"""Protobuf's message types: from the files that a registry has, and made of columns.

Confluent's registry returns a compiled descriptor in base64 when it is asked for one; Apicurio's returns the text of
the .proto as it was registered. A text is compiled by protoc, which the package grpcio-tools brings; a schema and the
files that it refers to may have different forms. Each file has another pool, so that versions of a type do not meet.

Serializers register no reference to files that are part of them. Those are built in: ``google/protobuf``,
``google/type`` (of the package googleapis-common-protos), Confluent's and Apicurio's own.

======================================  ================================================
Spark                                   a message type that is made of columns
======================================  ================================================
boolean, string, binary, float, double  bool, string, bytes, float, double
tinyint, smallint, int                  int32
bigint                                  int64
timestamp                               google.protobuf.Timestamp
interval day to second                  google.protobuf.Duration
struct, array, map                      a message, repeated, map
======================================  ================================================

Each field that is neither repeated nor a map is optional, so that null is read back as null. A null array or map is
read back as an empty one. Protobuf has neither dates nor decimals nor times without a zone, and no lists of lists.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cojoin.kafka.formats.registry import RegisteredSchema


_FILE = "cojoin_schema.proto"
_PACKAGED = ("google/protobuf/", "google/type/", "google/rpc/", "google/api/")
_IMPORT = re.compile(r"""(?<![\w.])import\s+(?:(?:public|weak|option)\s+)?["']([^"']+)["']\s*;""")
_SHOWN = 500
_DESCRIPTOR = "google/protobuf/descriptor.proto"
# The numbers of FieldDescriptorProto.TYPE_* and LABEL_*.
_NUMBERS = {"int64": 3, "int32": 5, "string": 9, "bytes": 12, "uint32": 13}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3

_DECIMAL: dict[str, tuple[str, ...]] = {"Decimal": ("bytes value", "uint32 precision", "int32 scale")}
_META: dict[str, tuple[str, ...]] = {
    "Meta": ("string doc", "*Meta.ParamsEntry params", "*string tags", "*Rule rules"),
    "Meta.ParamsEntry": ("string key", "string value"),
    "Rule": ("string name", "string doc", "string expr", "string sql"),
}
_OPTIONS = ("File", "Message", "Field", "Enum", "EnumValue")
_OWN: dict[str, tuple[str, dict[str, tuple[str, ...]], list[tuple[str, str, int]]]] = {
    "confluent/meta.proto": (
        "confluent",
        _META,
        [(f"{each}Options", f"Meta {re.sub('(?<=[a-z])V', '_v', each).lower()}_meta", 1088) for each in _OPTIONS],
    ),
    "confluent/type/decimal.proto": ("confluent.type", _DECIMAL, []),
    "confluent/type/variant.proto": ("confluent.type", {"Variant": ("bytes metadata", "bytes value")}, []),
    "metadata/metadata.proto": (
        "metadata",
        {},
        [("FieldOptions", "string metadata_key", 50001), ("FieldOptions", "string metadata_value", 50002)],
    ),
    "additionalTypes/decimal.proto": (
        "additionalTypes",
        {"Decimal": ("int64 units", "int32 fraction", "uint32 precision", "int32 scale")},
        [],
    ),
}
"""Files of Confluent's and Apicurio's serializers: their package, their types, and the options that they add."""

_MOVED = {"confluent/types/decimal.proto": "confluent/type/decimal.proto"}
"""Former places of files."""


def message_type(registered: RegisteredSchema, name: str | None) -> Any:
    """Return the descriptor of a message type, by its name or a part of that; the first one of the file for None."""
    file = _file(registered)
    types = list(_all_types(file.message_types_by_name.values()))
    if name is None and types:
        return types[0]
    wanted = str(name).removeprefix(".")
    full_names = (wanted, f"{file.package}.{wanted}")
    matching = [candidate for spelled in full_names for candidate in types if candidate.full_name == spelled]
    matching += [candidate for candidate in types if candidate.name == wanted]
    if matching:
        return matching[0]
    title = "message type" if name is None else f"message type {name!r}"
    msg = f"the file has no {title}; it has {', '.join(candidate.full_name for candidate in types) or 'none'}"
    raise ValueError(msg)


def type_at(file: Any, place: tuple[int, ...]) -> Any:
    """Return the descriptor of the message type at a place of the wire format; raises ValueError if it is missing."""
    types = list(file.message_types_by_name.values())
    current = None
    for number in place:
        if not 0 <= number < len(types):
            msg = f"its file has no message type at {list(place)}"
            raise ValueError(msg)
        current = types[number]
        types = list(current.nested_types)
    return current


def place_of(descriptor: Any) -> tuple[int, ...]:
    """Return the place of a message type in its file, as the wire format has it."""
    parent = descriptor.containing_type
    siblings = list(descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types)
    number = [each.full_name for each in siblings].index(descriptor.full_name)
    return (number,) if parent is None else (*place_of(parent), number)


def _all_types(types: Any) -> Any:
    for message in types:
        yield message
        yield from _all_types(message.nested_types)


@lru_cache(maxsize=64)  # each is read several times when a reading is made
def _file(registered: RegisteredSchema) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - optional

    texts = dict([*registered.references, (_FILE, registered.text)])
    compiled: dict[str, Any] = {}
    for name, text in texts.items():
        serialized = _compiled(text)
        if serialized is not None:
            compiled[name] = descriptor_pb2.FileDescriptorProto.FromString(serialized)
            compiled[name].name = name
    pool = descriptor_pool.DescriptorPool()
    if len(compiled) < len(texts):
        for described in _by_protoc({name: text for name, text in texts.items() if name not in compiled}, compiled):
            pool.Add(described)
    else:
        for described in _in_order([_FILE], compiled, ()):
            pool.Add(described)
    return pool.FindFileByName(_FILE)


def _in_order(names: list[str], compiled: dict[str, Any], apart: Collection[str]) -> list[Any]:
    """Return the descriptions of files and of those that they import, each after what it imports.

    ``compiled`` has the descriptions of files that are not built in; the files of ``apart`` are left out.
    """
    ordered: dict[str, Any] = {}
    begun: set[str] = set(apart)

    def add(name: str) -> None:
        if name in begun:
            return
        begun.add(name)
        described = compiled[name] if name in compiled else _well_known(name)
        for needed in described.dependency:
            add(needed)
        ordered[name] = described

    for root in names:
        add(root)
    return list(ordered.values())


def _well_known(name: str) -> Any:
    """Return the description of a file that is part of serializers, such as ``google/protobuf/timestamp.proto``."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - optional

    if name in _OWN:
        return _described(name)
    if name in _MOVED:
        return descriptor_pb2.FileDescriptorProto(
            name=name, dependency=[_MOVED[name]], public_dependency=[0], syntax="proto3"
        )
    if not name.startswith(_PACKAGED) or not name.endswith(".proto"):
        msg = (
            f"it imports {name!r}, to which the registry's schema has no reference: register it again with a reference "
            f"of this name"
        )
        raise ValueError(msg)
    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError as error:
        msg = f"it imports {name!r}, which is not installed: pip install googleapis-common-protos"
        raise ValueError(msg) from error
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _described(name: str) -> Any:
    """Return the description of a file of ``_OWN``."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - optional

    package, types, options = _OWN[name]
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    made: dict[str, Any] = {}
    for type_name, fields in types.items():
        outer, _, inner = type_name.rpartition(".")
        made[type_name] = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        made[type_name].options.map_entry = type_name.endswith("Entry")
        for number, field in enumerate(fields, 1):
            _describe(made[type_name].field.add(number=number), field, package)
    for extended, field, number in options:
        file.dependency[:] = [_DESCRIPTOR]
        _describe(file.extension.add(number=number, extendee=f".google.protobuf.{extended}"), field, package)
    return file


def _describe(field: Any, spelled: str, package: str) -> None:
    """Set the name, the label and the type of a field that is spelled as in ``_OWN``; ``*`` stands for repeated."""
    kind, field.name = spelled.split()
    field.label = _REPEATED if kind.startswith("*") else _OPTIONAL
    kind = kind.removeprefix("*")
    field.type = _NUMBERS.get(kind, _MESSAGE)
    if field.type == _MESSAGE:
        field.type_name = f".{package}.{kind}"


def _compiled(text: str) -> bytes | None:
    """Return a compiled descriptor; None for the text of a file."""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _by_protoc(texts: dict[str, str], compiled: dict[str, Any]) -> list[Any]:
    """Compile files, and return their descriptions and those of what they import, each after what it imports."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - optional

    try:
        from grpc_tools import protoc  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = "the registry returns the text of a .proto, which protoc compiles: pip install grpcio-tools"
        raise ValueError(msg) from error
    included = Path(protoc.__file__).with_name("_proto")
    imported = {each for text in texts.values() for each in _IMPORT.findall(text)} - texts.keys()
    others = sorted(each for each in imported - compiled.keys() if not (included / each).is_file())
    unknown = {each: why for each in others if (why := _unknown(each)) is not None}
    known = [*compiled, *(each for each in others if each not in unknown)]
    known_files = descriptor_pb2.FileDescriptorSet(file=_in_order(known, compiled, texts))
    with tempfile.TemporaryDirectory(prefix="cojoin-proto-") as folder:
        base = Path(folder).resolve() / "files"
        for name, text in texts.items():
            path = (base / name).resolve()
            if not path.is_relative_to(base):
                msg = f"the schema refers to a file by the name {name!r}, which leads out of its folder"
                raise ValueError(msg)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        beside, out = base.with_name("known"), base.with_name("compiled")
        beside.write_bytes(known_files.SerializeToString())
        command = [f"-I{base}", f"-I{included}", f"--descriptor_set_in={beside}"]
        command += ["--include_imports", f"--descriptor_set_out={out}", _FILE]
        if protoc.main(["protoc", *command]) != 0:
            for why in unknown.values():  # otherwise they stand in comments
                raise why
            msg = f"protoc can't compile the schema's .proto{_protoc_error(command).replace(f'{base}/', '')}"
            raise ValueError(msg)
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def _unknown(name: str) -> ValueError | None:
    """Return the reason why a file is not among the built-in ones."""
    try:
        _well_known(name)
    except ValueError as error:
        return error
    return None


def _protoc_error(command: list[str]) -> str:
    """Return protoc's error for a file that it can't compile, which it writes to a process's standard error alone."""
    ran = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "grpc_tools.protoc", *command], capture_output=True, text=True, check=False
    )
    text = " ".join(ran.stderr.replace(_FILE, "it").split())
    return f": {text[:_SHOWN]}" if text else ""


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_TEXTS, _BYTES = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())
_LISTS = (pa.types.is_list, pa.types.is_large_list)
_KEYS = (*_TEXTS, *_INTEGERS, pa.bool_())
_PLAIN = {
    pa.float64(): 1,
    pa.float32(): 2,
    pa.int64(): 3,
    **dict.fromkeys(_INTEGERS[:3], 5),
    pa.bool_(): 8,
    **dict.fromkeys(_TEXTS, 9),
    **dict.fromkeys(_BYTES, 12),
}
_KNOWN = {pa.timestamp("us", "UTC"): "Timestamp", pa.duration("us"): "Duration"}


def proto_schema(columns: Iterable[pa.Field], name: str, label: str) -> str:
    """Return a compiled file in base64 with one message type; odd characters of its name become ``_``."""
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - optional

    spelled = re.sub(r"[^A-Za-z0-9_]", "_", name)
    spelled = spelled if _NAME.fullmatch(spelled) else f"_{spelled}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{spelled}.proto", syntax="proto3")
    _MessageType(file.message_type.add(name=spelled), f".{spelled}", file, label).fill(columns)
    try:
        pool = descriptor_pool.DescriptorPool()
        for needed in file.dependency:
            pool.Add(_well_known(needed))
        pool.Add(file)
    except TypeError as error:
        msg = f"{label}: the columns' names make no message type of Protobuf: {error}; rename columns, or write JSON"
        raise SchemaError(msg) from None
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


class _MessageType:
    """A message type that gets its fields; ``place`` is its name, such as ``.Trade.address_type``."""

    def __init__(self, described: Any, place: str, file: Any, label: str) -> None:
        self._described, self._place, self._file, self._label = described, place, file, label
        self._names: set[str] = set()

    def fill(self, columns: Iterable[pa.Field]) -> None:
        """Add a field for each column."""
        columns = list(columns)
        self._names.update(column.name for column in columns)
        for number, column in enumerate(columns, 1):
            label = f"{self._label}: column {column.name!r}"
            if not _NAME.fullmatch(column.name):
                msg = (
                    f"{label} can't be a field of Protobuf, whose names are of letters, digits and '_'; rename it, or "
                    f"write JSON"
                )
                raise SchemaError(msg)
            field = self._described.field.add(name=column.name, number=number, label=_OPTIONAL)
            if any(is_list(column.type) for is_list in _LISTS):
                field.label = _REPEATED
                self._set_type(field, column.type.value_type, f"{label}, an element")
            elif pa.types.is_map(column.type):
                self._set_map(field, column.type, label)
            else:
                self._set_type(field, column.type, label)
                if field.type != _MESSAGE:  # a message differs from an absent one anyway
                    field.proto3_optional, field.oneof_index = True, len(self._described.oneof_decl)
                    self._described.oneof_decl.add(name=self._free(f"_{column.name}"))

    def _set_type(self, field: Any, dtype: pa.DataType, label: str) -> None:
        """Set the type of a field's value; a struct becomes a type within this one."""
        if dtype in _PLAIN:
            field.type = _PLAIN[dtype]
        elif dtype in _KNOWN:
            field.type, field.type_name = _MESSAGE, f".google.protobuf.{_KNOWN[dtype]}"
            file = f"google/protobuf/{_KNOWN[dtype].lower()}.proto"
            if file not in self._file.dependency:
                self._file.dependency.append(file)
        elif pa.types.is_struct(dtype):
            self._set_struct(field, dtype, self._free(f"{field.name}_type"), label)
        else:
            msg = (
                f"{label} has the type {type_to_ddl(dtype)}, which Protobuf does not have in this place; cast it to "
                f"string, or write JSON"
            )
            raise SchemaError(msg)

    def _set_struct(self, field: Any, dtype: pa.StructType, name: str, label: str) -> None:
        place = f"{self._place}.{name}"
        field.type, field.type_name = _MESSAGE, place
        _MessageType(self._described.nested_type.add(name=name), place, self._file, label).fill(dtype)

    def _set_map(self, field: Any, dtype: pa.MapType, label: str) -> None:
        """Make a field a map, which is a repeated message of a new type."""
        if dtype.key_type not in _KEYS:
            msg = f"{label}: a map of Protobuf has texts, whole numbers or booleans as keys, got {type_to_ddl(dtype)}"
            raise SchemaError(msg)
        # Protobuf asks for this very name.
        name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.label, field.type, field.type_name = _REPEATED, _MESSAGE, f"{self._place}.{name}"
        entry = self._described.nested_type.add(name=name)
        entry.options.map_entry = True
        self._set_type(entry.field.add(name="key", number=1, label=_OPTIONAL), dtype.key_type, label)
        value, label = entry.field.add(name="value", number=2, label=_OPTIONAL), f"{label}, a value"
        if pa.types.is_struct(dtype.item_type):  # an entry can't contain types
            self._set_struct(value, dtype.item_type, self._free(f"{field.name}_type"), label)
        else:
            self._set_type(value, dtype.item_type, label)

    def _free(self, name: str) -> str:
        """Return a name that nothing in the type has."""
        while name in self._names:
            name = f"X{name}"
        self._names.add(name)
        return name


def fits_field_type(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether each value of a column's type, as far as types go, is one of a field's; null is not looked at.

    >>> fits_field_type(pa.int32(), pa.int64()), fits_field_type(pa.date32(), pa.string())
    (True, False)
    """
    if pa.types.is_struct(want):
        if not pa.types.is_struct(have):
            return False
        mine = {field.name: field.type for field in want}
        return all(field.name not in mine or fits_field_type(field.type, mine[field.name]) for field in have) and any(
            field.name in mine for field in have
        )
    if pa.types.is_list(want):
        return any(is_list(have) for is_list in _LISTS) and fits_field_type(have.value_type, want.value_type)
    if pa.types.is_map(want):
        return (
            pa.types.is_map(have)
            and fits_field_type(have.key_type, want.key_type)
            and fits_field_type(have.item_type, want.item_type)
        )
    if have in _INTEGERS:
        # uint64 is read as a decimal; a number that is not in the field's range is refused with its row.
        return (want in _INTEGERS and _INTEGERS.index(have) <= _INTEGERS.index(want)) or want == pa.decimal128(20, 0)
    as_is = {pa.float32(): pa.float64(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(have.equals(want) or as_is.get(have) == want or pa.types.is_null(have))
