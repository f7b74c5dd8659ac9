"""Protobuf's message types from the files that a registry has: as text, or as a compiled descriptor in base64.

Confluent's registry returns a compiled descriptor when it is asked for one; Apicurio's returns the text of the .proto
as it was registered. A text is compiled by protoc, which the package grpcio-tools brings. Each file has a pool of its
own, so that two versions of a type do not meet.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cojoin.kafka.formats.schema_lookup import FoundSchema

__all__ = ["message_type", "place_of", "type_at", "well_known"]

_FILE = "cojoin_schema.proto"
_KNOWN = ("google/protobuf/", "google/type/")


def message_type(found: FoundSchema, name: str | None) -> Any:
    """Return the descriptor of a message type, the first one of the file for None.

    Raises:
        ValueError: The file can't be read, or has no such type.
    """
    file = _file(found)
    there = list(_all_types(file.message_types_by_name.values()))
    if name is None and there:
        return there[0]
    for each in there:
        if name in (each.full_name, each.name):
            return each
    msg = f"there is no message type {name!r}; it has {', '.join(each.full_name for each in there) or 'none'}"
    raise ValueError(msg)


def type_at(found: FoundSchema, place: tuple[int, ...]) -> Any:
    """Return the descriptor of the message type at a place of the wire format.

    Raises:
        ValueError: There is none.
    """
    types = list(_file(found).message_types_by_name.values())
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


def _file(found: FoundSchema) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - optional

    texts = dict([*found.references, (_FILE, found.text)])
    files = [(name, _compiled(text)) for name, text in texts.items()]
    pool = descriptor_pool.DescriptorPool()
    if any(compiled is None for _, compiled in files):
        for compiled in _by_protoc(texts):
            pool.Add(compiled)
        return pool.FindFileByName(_FILE)
    waiting: dict[str, Any] = {}
    for name, compiled in files:
        described = descriptor_pb2.FileDescriptorProto.FromString(compiled)
        described.name = name
        waiting[name] = described
    added: set[str] = set()
    _add(_FILE, waiting, pool, added)
    return pool.FindFileByName(_FILE)


def _add(name: str, waiting: dict[str, Any], pool: Any, added: set[str]) -> None:
    """Add a file to a pool, after those that it imports."""
    if name in added:
        return
    added.add(name)
    described = waiting.get(name)
    if described is None:
        described = well_known(name)
    for needed in described.dependency:
        _add(needed, waiting, pool, added)
    pool.Add(described)


def well_known(name: str) -> Any:
    """Return the description of a file that comes with a package, such as ``google/protobuf/timestamp.proto``.

    Raises:
        ValueError: It is none, or its package is not installed.
    """
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - optional

    if not name.startswith(_KNOWN) or not name.endswith(".proto"):
        msg = f"it imports {name!r}, which the registry's schema does not refer to"
        raise ValueError(msg)
    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError as error:
        msg = f"it imports {name!r}, which is not installed: pip install googleapis-common-protos"
        raise ValueError(msg) from error
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _compiled(text: str) -> bytes | None:
    """Return a compiled descriptor; None for the text of a file."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _by_protoc(texts: dict[str, str]) -> list[Any]:
    """Return the descriptors of files and of those that they import, each after what it imports."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - optional

    try:
        from grpc_tools import protoc  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = "the registry returns the text of a .proto, which protoc compiles: pip install grpcio-tools"
        raise ValueError(msg) from error
    included = Path(protoc.__file__).with_name("_proto")
    with tempfile.TemporaryDirectory(prefix="cojoin-proto-") as folder:
        base = Path(folder).resolve()
        for name, text in texts.items():
            path = (base / name).resolve()
            if not path.is_relative_to(base):
                msg = f"the schema refers to a file by the name {name!r}, which leads out of its folder"
                raise ValueError(msg)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        out = base / "compiled"
        command = ["protoc", f"-I{base}", f"-I{included}", "--include_imports", f"--descriptor_set_out={out}", _FILE]
        if protoc.main(command) != 0:
            msg = "protoc can't compile the schema's .proto"
            raise ValueError(msg)
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)
