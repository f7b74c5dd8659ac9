"""Protobuf's message types from the files that a registry has: as text, or as a compiled descriptor in base64.

Confluent's registry returns a compiled descriptor when it is asked for one; Apicurio's returns the text of the .proto
as it was registered. A text is compiled by protoc, which the package grpcio-tools brings; a schema and the files that
it refers to may have different forms. Each file has a pool of its own, so that two versions of a type do not meet.

Serializers register no reference to files that are part of them. Those are built in here as well: ``google/protobuf``,
``google/type`` (of the package googleapis-common-protos), Confluent's and Apicurio's own.
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

if TYPE_CHECKING:
    from collections.abc import Collection

    from cojoin.kafka.formats.schema_lookup import FoundSchema

__all__ = ["message_type", "place_of", "type_at", "well_known"]

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


def message_type(found: FoundSchema, name: str | None) -> Any:
    """Return the descriptor of a message type, the first one of the file for None.

    A full name is looked for first, then one without the package, and then that of a nested type alone.

    Raises:
        ValueError: The file can't be read, or has no such type.
    """
    file = _file(found)
    there = list(_all_types(file.message_types_by_name.values()))
    if name is None and there:
        return there[0]
    wanted = str(name).removeprefix(".")
    for spelled in (wanted, f"{file.package}.{wanted}"):
        for each in there:
            if each.full_name == spelled:
                return each
    for each in there:
        if each.name == wanted:
            return each
    asked = "message type" if name is None else f"message type {name!r}"
    msg = f"there is no {asked}; it has {', '.join(each.full_name for each in there) or 'none'}"
    raise ValueError(msg)


def type_at(file: Any, place: tuple[int, ...]) -> Any:
    """Return the descriptor of the message type at a place of the wire format.

    Raises:
        ValueError: There is none.
    """
    types = list(file.message_types_by_name.values())
    here = None
    for number in place:
        if not 0 <= number < len(types):
            msg = f"its file has no message type at {list(place)}"
            raise ValueError(msg)
        here = types[number]
        types = list(here.nested_types)
    return here


def place_of(descriptor: Any) -> tuple[int, ...]:
    """Return the place of a message type in its file, as the wire format has it."""
    parent = descriptor.containing_type
    siblings = list(descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types)
    number = [each.full_name for each in siblings].index(descriptor.full_name)
    return (number,) if parent is None else (*place_of(parent), number)


def _all_types(types: Any) -> Any:
    for each in types:
        yield each
        yield from _all_types(each.nested_types)


@lru_cache(maxsize=64)  # each is read several times when a reading is made
def _file(found: FoundSchema) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - optional

    texts = dict([*found.references, (_FILE, found.text)])
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

    Args:
        names: The files.
        compiled: The descriptions of those that are not known.
        apart: Files that are left out.
    """
    found: dict[str, Any] = {}
    begun: set[str] = set(apart)

    def add(name: str) -> None:
        if name in begun:
            return
        begun.add(name)
        described = compiled[name] if name in compiled else well_known(name)
        for needed in described.dependency:
            add(needed)
        found[name] = described

    for each in names:
        add(each)
    return list(found.values())


def well_known(name: str) -> Any:
    """Return the description of a file that is part of serializers, such as ``google/protobuf/timestamp.proto``.

    Raises:
        ValueError: It is none, or its package is not installed.
    """
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
    for each, fields in types.items():
        outer, _, inner = each.rpartition(".")
        made[each] = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        made[each].options.map_entry = each.endswith("Entry")
        for number, field in enumerate(fields, 1):
            _describe(made[each].field.add(number=number), field, package)
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
    """Return the descriptions of files and of those that they import, each after what it imports.

    Args:
        texts: The files to compile, by name.
        compiled: The descriptions of further files.
    """
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
    given = descriptor_pb2.FileDescriptorSet(file=_in_order(known, compiled, texts))
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
        beside.write_bytes(given.SerializeToString())
        command = [f"-I{base}", f"-I{included}", f"--descriptor_set_in={beside}"]
        command += ["--include_imports", f"--descriptor_set_out={out}", _FILE]
        if protoc.main(["protoc", *command]) != 0:
            for why in unknown.values():  # otherwise they stand in comments
                raise why
            msg = f"protoc can't compile the schema's .proto{_said(command).replace(f'{base}/', '')}"
            raise ValueError(msg)
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def _unknown(name: str) -> ValueError | None:
    """Return the reason why a file is not among the built-in ones."""
    try:
        well_known(name)
    except ValueError as error:
        return error
    return None


def _said(command: list[str]) -> str:
    """Return what protoc says of a file that it can't compile; it writes that to a process's standard error alone."""
    ran = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "grpc_tools.protoc", *command], capture_output=True, text=True, check=False
    )
    said = " ".join(ran.stderr.replace(_FILE, "it").split())
    return f": {said[:_SHOWN]}" if said else ""
