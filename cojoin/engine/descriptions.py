"""Inputs, operations and plans in a few words for people, without secrets and without reading a row."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

from cojoin.engine.display import Display, display_of
from cojoin.engine.formats import format_span
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.time.watermark_strategies import BoundedOutOfOrderness, ClockLag, NoWatermarks, Punctuated
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.time.watermark_strategies import WatermarkStrategy

__all__ = ["describe_columns", "describe_inputs", "describe_operation", "describe_source", "describe_watermark"]

_MANY_COLUMNS = 12


def describe_operation(operation: Any) -> str:
    """Return a join or a function with the settings that are not the default.

    >>> from cojoin.engine.joins import AsofJoin
    >>> describe_operation(AsofJoin("inner", tolerance="1 hour"))
    "asof_join(how='inner', tolerance='1 hour')"
    """
    name = str(operation.describe()["operator"])
    if isinstance(operation, KeyedCoProcess):
        more = "" if operation.order == "event_time" else f", order={operation.order!r}"
        return f"{name}({type(operation.function).__name__}(){more})"
    given = [each for each in fields(operation) if getattr(operation, each.name) != _default(each)]
    return f"{name}({', '.join(f'{each.name}={getattr(operation, each.name)!r}' for each in given)})"


def describe_watermark(strategy: WatermarkStrategy) -> str:
    """Return a watermark strategy.

    >>> from cojoin.engine.time.watermark_strategies import WatermarkStrategy
    >>> describe_watermark(WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("1 minute"))
    'up to 5 s out of order, idle after 1 min 0 s'
    """
    generator = strategy.generator
    if isinstance(generator, BoundedOutOfOrderness):
        bound = generator.out_of_orderness_ms
        text = f"up to {format_span(bound)} out of order" if bound else "in the order of event time"
    elif isinstance(generator, ClockLag):
        text = f"{format_span(generator.lag_ms)} behind the clock"
    elif isinstance(generator, Punctuated):
        text = f"column {generator.column!r}"
    else:
        text = "none" if isinstance(generator, NoWatermarks) else type(generator).__name__
    idle = strategy.idleness
    return text if idle is None else f"{text}, idle after {format_span(idle.timeout_ms)}"


def describe_inputs(inputs: Iterable[InputSpec], sources: Iterable[str]) -> list[tuple[str, ...]]:
    """Return both inputs as rows of a table, the header first.

    Args:
        inputs: The specifications.
        sources: Where their rows are.
    """
    rows = [
        (
            spec.name,
            source,
            ", ".join(spec.key),
            _times(spec),
            describe_watermark(spec.watermark),
            describe_columns(spec.schema),
        )
        for spec, source in zip(inputs, sources, strict=True)
    ]
    return [("input", "rows", "key", "event time", "watermark", "columns"), *rows]


def _times(spec: InputSpec) -> str:
    if spec.changes is not None and spec.changes.valid_from is not None:
        return f"{spec.changes.valid_from} to {spec.changes.valid_to}"
    return spec.event_time or "none"


def describe_columns(schema: pa.Schema) -> str:
    """Return columns with their types as DDL; of very many the first ones."""
    return _shortened([f"{field.name} {_type(field)}" for field in schema])


def describe_source(source: Any) -> str:
    """Return what an input's rows are: the kind of a frame and its size, or a source by its own name.

    It runs nothing: a frame of Spark's says its columns only, and one whose size takes a query, such as a DuckDB
    relation, its kind only.
    """
    kind = f"{type(source).__module__.partition('.')[0]} {type(source).__name__}"
    title = getattr(source, "title", None) if kind.startswith("cojoin ") else None
    if isinstance(title, str):
        return title
    if kind.startswith("pyspark "):
        return display_of(lambda: Display(_describe_dataframe(source)), "DataFrame of Spark's").head
    if kind in {"pandas DataFrame", "polars DataFrame", "pyarrow Table", "pyarrow RecordBatch"}:
        rows, columns = source.shape
        return f"{kind}, {rows:,} x {columns:,}"
    return kind


def _describe_dataframe(frame: Any) -> str:
    kind = "streaming" if frame.isStreaming else "static"
    return f"{kind} DataFrame of Spark's: {_shortened([f'{name} {dtype}' for name, dtype in frame.dtypes])}"


def _default(each: Field[Any]) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _shortened(columns: Sequence[str]) -> str:
    more = f", and {len(columns) - _MANY_COLUMNS:,} more" if len(columns) > _MANY_COLUMNS else ""
    return ", ".join(columns[:_MANY_COLUMNS]) + more


def _type(field: pa.Field) -> str:
    try:
        return type_to_ddl(field.type)
    except SchemaError:
        return str(field.type)
