"""Rows of every type, and what writes them with a schema of a registry."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cojoin.kafka.sink.serializers import RegistryValues

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.kafka.formats.record_formats import RegistryFormat

__all__ = ["AT", "a_row", "head", "writing"]

AT = datetime(2026, 1, 5, 9, 30, 0, 125, tzinfo=timezone.utc)


def writing(chosen: RegistryFormat, rows: pa.Table) -> RegistryValues:
    """Return what writes rows to the topic ``out``."""
    return RegistryValues.of(chosen, rows.schema, "out", "output")


def head(values: RegistryValues) -> bytes:
    """Return the zero byte and the schema's id."""
    assert values.schema.number is not None
    return b"\0" + values.schema.number.to_bytes(4, "big")


def a_row() -> dict[str, Any]:
    """Return a row with a column of each type that Avro has."""
    return {
        "id": 1 << 40,
        "small": -3,
        "tiny": 7,
        "flag": True,
        "real": 0.5,
        "amount": -0.1,
        "name": "Zoë",
        "raw": b"\0\xff",
        "price": Decimal("-12345.67"),
        "day": date(1969, 12, 31),
        "at": AT,
        "local": AT.replace(tzinfo=None),
        "nested": {"a": 1, "b": {"c": None}},
        "many": [{"x": 1.5}, None],
        "by_name": [("a", [1, None]), ("b", None)],
    }
