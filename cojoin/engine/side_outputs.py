"""Side outputs: rows that a function emits beside its main output, each output with its own columns.

A callback yields ``(tag, row)`` for a side output and ``row`` for the main output. Tags are declared where the function
is connected, so that every output has its schema and its sink before the query starts. (PyFlink:
``pyflink.datastream.OutputTag``.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # noqa: TC002 - the dataclass names it

from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.types import as_schema, schema_to_ddl
from cojoin.errors import ConfigurationError, FunctionError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["OutputTag", "check_tags", "encode_outputs"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("main", "output", "rejected", "progress", "control", "manifest", "spark", "state", "execute", "calls")


@dataclass(frozen=True)
class OutputTag:
    """The name of a side output and its columns.

    Attributes:
        tag_id: Its name, which begins with a letter: letters, digits, ``-`` and ``_``. Without a sink, the output goes
            to a folder of this name in the checkpoint.
        output_type: Its columns, as DDL, a ``StructType`` or an Arrow schema.
        schema: Its columns as an Arrow schema.

    Raises:
        ConfigurationError: The name is invalid or reserved.
        SchemaError: The columns do not parse.

    >>> OutputTag("unknown-customers", "trade_id long, customer_id string").schema.names
    ['trade_id', 'customer_id']
    """

    tag_id: str
    output_type: Any = field(compare=False, repr=False)
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tag_id, str) or not _NAME.fullmatch(self.tag_id) or self.tag_id in _RESERVED:
            msg = (
                f"OutputTag: expected a name of letters, digits, '-' and '_' that is none of {', '.join(_RESERVED)}, "
                f"got {self.tag_id!r}"
            )
            raise ConfigurationError(msg)
        object.__setattr__(self, "schema", as_schema(self.output_type, f"side output {self.tag_id!r}"))


def check_tags(tags: Any, what: str) -> tuple[OutputTag, ...]:
    """Return the tags that a function declares, after checking them.

    Raises:
        ConfigurationError: A value is not a tag, or two tags have the same name.
    """
    is_one = isinstance(tags, (OutputTag, str, bytes)) or not hasattr(tags, "__iter__")
    declared = (tags,) if is_one else tuple(tags)
    for tag in declared:
        if not isinstance(tag, OutputTag):
            msg = f"{what}: side_outputs: expected OutputTags, got {tag!r}"
            raise ConfigurationError(msg)
    names = [tag.tag_id.lower() for tag in declared]
    if len(set(names)) < len(names):
        msg = f"{what}: side_outputs: two tags have the same name, in {', '.join(tag.tag_id for tag in declared)}"
        raise ConfigurationError(msg)
    return declared


def encode_outputs(
    yielded: list[Any], main: pa.Schema, tags: Sequence[OutputTag], owner: str
) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the rows that a function yielded as one table for each output: the side outputs, then the main output.

    The main output has the name None. A side output without rows is left out.

    Raises:
        FunctionError: A row does not fit its output, or a tag was not declared.
    """
    rows = yielded
    if tags:
        rows, beside = _split(yielded, tags, owner)
        for tag in tags:
            if beside[tag.tag_id]:
                yield tag.tag_id, encode_rows(beside[tag.tag_id], tag.schema, f"{owner}, side output {tag.tag_id!r}")
    try:
        table = encode_rows(rows, main, owner)
    except FunctionError:
        _split(rows, tags, owner)
        raise
    yield None, table


def _split(yielded: list[Any], tags: Sequence[OutputTag], owner: str) -> tuple[list[Any], dict[str, list[Any]]]:
    main: list[Any] = []
    beside: dict[str, list[Any]] = {tag.tag_id: [] for tag in tags}
    for item in yielded:
        if type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag):
            tag, row = item
            if tag not in tags:
                if declared := [known.schema for known in tags if known.tag_id == tag.tag_id]:
                    columns, own = schema_to_ddl(declared[0]), schema_to_ddl(tag.schema)
                    msg = (
                        f'{owner}: yielded to the side output {tag.tag_id!r} with the columns "{own}", but it was '
                        f'declared with "{columns}"; make one OutputTag, and use it in both places'
                    )
                    raise FunctionError(msg)
                names = [known.tag_id for known in tags]
                near = did_you_mean(tag.tag_id, names)
                msg = (
                    f"{owner}: yielded to the side output {tag.tag_id!r}, which was not declared{near}; declare it "
                    f"with the same columns: process(..., side_outputs=[...])"
                )
                raise FunctionError(msg)
            beside[tag.tag_id].append(row)
        else:
            main.append(item)
    return main, beside
