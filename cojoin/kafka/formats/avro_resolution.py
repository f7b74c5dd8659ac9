"""What fastavro leaves open where a record was written with another schema than it is read by.

- It takes a default as JSON has it, where bytes are a text: ``with_defaults`` makes bytes of them.
- It is given no logical types (``avro_columns``), so it does not see that a number has another scale or unit in the two
  schemas: ``changed_units`` finds that. Such records are rejected, because Avro does not convert them either.
- It says of a union's value which named type it has where several do. Where one does, it need not
  (``tells_by_class``), and then a value is the same whether the writer's type was a union or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["changed_units", "tells_by_class", "with_defaults"]

_NAMED = ("record", "error", "enum", "fixed")
_ALIKE = {"enum": {"string"}, "fixed": {"bytes"}, "record": {"map"}, "error": {"map"}}
"""The types whose values are of the same class as those of a named one."""


def with_defaults(parsed: Any, named: Mapping[str, Any]) -> None:
    """Make the defaults of a reader's schema, which fastavro has parsed, values as they are decoded."""
    for record in _records(parsed, named):
        for field in record["fields"]:
            if "default" in field:
                field["default"] = _decoded(field["default"], field["type"], named)


def _decoded(default: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    schema, kind = _of(schema, named)
    if kind == "union":
        # A default is of the union's first type.
        return _decoded(default, schema[0], named)
    if kind in ("bytes", "fixed") and isinstance(default, str):
        return default.encode("latin-1")
    if kind == "array":
        return [_decoded(each, schema["items"], named) for each in default]
    if kind == "map":
        return {name: _decoded(each, schema["values"], named) for name, each in default.items()}
    if kind in ("record", "error"):
        missing = {each["name"]: each["default"] for each in schema["fields"] if "default" in each}
        types = {each["name"]: each["type"] for each in schema["fields"]}
        return {name: _decoded(each, types[name], named) for name, each in (missing | default).items() if name in types}
    return default


def changed_units(
    written: Any, reader: Any, of_writer: Mapping[str, Any], of_reader: Mapping[str, Any], place: str = "the value"
) -> list[str]:
    """Return a text for each number that has another scale or unit in the writer's schema than in the reader's.

    Args:
        written: The writer's schema with its logical types, as fastavro parsed it.
        reader: The reader's.
        of_writer: The writer's named types, by their full names.
        of_reader: The reader's.
        place: What the schemas are of, for the texts.
    """
    return list(_changed(written, reader, of_writer, of_reader, place, ()))


def _changed(  # noqa: C901 - one for each kind
    written: Any,
    reader: Any,
    of_writer: Mapping[str, Any],
    of_reader: Mapping[str, Any],
    place: str,
    within: tuple[str, ...],
) -> Iterator[str]:
    ours, our_kind = _of(reader, of_reader)
    theirs, their_kind = _of(written, of_writer)
    if "union" in (our_kind, their_kind):
        for one in theirs if their_kind == "union" else [theirs]:
            for two in ours if our_kind == "union" else [ours]:
                if _of(one, of_writer)[1] == _of(two, of_reader)[1]:
                    yield from _changed(one, two, of_writer, of_reader, place, within)
    elif our_kind != their_kind:
        return
    elif our_kind in ("record", "error"):
        if ours["name"] in within:
            return
        fields = {each["name"]: each["type"] for each in theirs["fields"]}
        for field in ours["fields"]:
            name = next((each for each in (field["name"], *field.get("aliases", ())) if each in fields), None)
            if name is not None:
                inner = f"field {field['name']!r}"
                yield from _changed(fields[name], field["type"], of_writer, of_reader, inner, (*within, ours["name"]))
    elif our_kind in ("array", "map"):
        part = "items" if our_kind == "array" else "values"
        yield from _changed(theirs[part], ours[part], of_writer, of_reader, place, within)
    else:
        there, here = _unit(theirs), _unit(ours)
        if there is not None and here is not None and there != here:
            yield f"{place} is {_spelled(theirs)} there and {_spelled(ours)} here; give the columns as DDL"


def _unit(schema: Any) -> tuple[str, int] | None:
    """Return what a number counts; None where its schema does not say."""
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    if logical == "decimal":
        return logical, int(schema.get("scale", 0))
    family, _, unit = logical.rpartition("-")
    return (unit, 0) if family in ("timestamp", "local-timestamp", "time") else None


def _spelled(schema: Any) -> str:
    logical = str(schema["logicalType"])
    return f"{logical}({schema['precision']},{schema.get('scale', 0)})" if logical == "decimal" else logical


def tells_by_class(parsed: Any, named: Mapping[str, Any]) -> bool:
    """Return whether the class of each union's value tells its type, where one of the types alone has a name."""
    return all(_is_told(union, named) for union in _unions(parsed, named, ()))


def _is_told(union: list[Any], named: Mapping[str, Any]) -> bool:
    kinds = [_of(each, named)[1] for each in union]
    alone = [kind for kind in kinds if kind in _NAMED]
    return len(alone) != 1 or not _ALIKE[alone[0]] & {*kinds}


def _unions(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> Iterator[list[Any]]:
    schema, kind = _of(schema, named)
    if kind == "union":
        yield schema
    parts: list[Any] = schema if kind == "union" else []
    if kind in ("record", "error") and schema["name"] not in within:
        parts, within = [each["type"] for each in schema["fields"]], (*within, schema["name"])
    elif kind in ("array", "map"):
        parts = [schema["items" if kind == "array" else "values"]]
    for each in parts:
        yield from _unions(each, named, within)


def _records(parsed: Any, named: Mapping[str, Any]) -> list[Any]:
    own = [parsed] if isinstance(parsed, dict) and "fields" in parsed else []
    return [*own, *(each for each in named.values() if "fields" in each and each is not parsed)]


def _of(schema: Any, named: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a type, with what a name stands for in its place, and its kind."""
    if isinstance(schema, list):
        return schema, "union"
    if isinstance(schema, str):
        return _of(named[schema], named) if schema in named else (schema, schema)
    kind = schema["type"]
    return (schema, kind) if isinstance(kind, str) and kind not in named else _of(kind, named)
