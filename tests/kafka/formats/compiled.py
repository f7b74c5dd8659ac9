"""Files of Protobuf compiled by protoc, without the code under test: with the files that Google and Confluent ship."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONFLUENT = "confluent_kafka.schema_registry.confluent"
_MODULES = [
    *(f"google.type.{each}_pb2" for each in ("date", "timeofday", "money", "latlng", "dayofweek", "datetime")),
    f"{_CONFLUENT}.meta_pb2",
    f"{_CONFLUENT}.type.decimal_pb2",
    f"{_CONFLUENT}.type.variant_pb2",
    f"{_CONFLUENT}.types.decimal_pb2",
]
_APICURIO = {
    "additionalTypes/decimal.proto": """syntax = "proto3"; package additionalTypes;
        message Decimal { int64 units = 1; int32 fraction = 2; uint32 precision = 3; int32 scale = 4; }""",
    "metadata/metadata.proto": """syntax = "proto3"; package metadata; import "google/protobuf/descriptor.proto";
        extend google.protobuf.FieldOptions { string metadata_key = 50001; string metadata_value = 50002; }""",
}


@cache
def _known() -> bytes:
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(import_module(each).DESCRIPTOR.serialized_pb) for each in _MODULES
    ]
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


@cache
def _files(text: str, references: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    included = Path(protoc.__file__).with_name("_proto")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for name, each in {**_APICURIO, **dict(references), "it.proto": text}.items():
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each, encoding="utf-8")
        (base / "known").write_bytes(_known())
        command = ["protoc", f"-I{base}", f"-I{included}", f"--descriptor_set_in={base / 'known'}", "--include_imports"]
        assert protoc.main([*command, f"--descriptor_set_out={base / 'out'}", "it.proto"]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString((base / "out").read_bytes()).file
    return {each.name: each for each in files}


def files_of(text: str, references: Mapping[str, str]) -> dict[str, Any]:
    """Return the descriptions of a file and of those that it imports, by name, each after what it imports."""
    return _files(text, tuple(references.items()))


def compiled(text: str, references: Mapping[str, str], message: str) -> Any:
    """Return the class of a message type."""
    return _class(text, tuple(references.items()), message)


@cache
def _class(text: str, references: tuple[tuple[str, str], ...], message: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in _files(text, references).values():
        pool.Add(each)
    return GetMessageClass(pool.FindMessageTypeByName(message))
