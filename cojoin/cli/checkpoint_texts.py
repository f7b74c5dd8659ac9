"""Keys and rows as a user types them, and values for which JSON has no type."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.input_spec import InputSpec

__all__ = ["as_json", "typed_key", "typed_row"]

_NO_ZONE = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?$")


def typed_key(text: str, spec: InputSpec) -> Any:
    """Read a key: the values of its columns, separated by commas.

    Raises:
        ConfigurationError: There are too few or too many values, or one is not of its column's type.
    """
    if len(spec.key) == 1:
        return typed_value(text, spec.schema.field(spec.key[0]).type, f"--key {spec.key[0]}")
    parts = text.split(",")
    if len(parts) != len(spec.key):
        msg = f"--key: expected values of {', '.join(spec.key)} separated by commas, got {text!r}"
        raise ConfigurationError(msg)
    return tuple(
        typed_value(part.strip(), spec.schema.field(name).type, f"--key {name}")
        for name, part in zip(spec.key, parts, strict=True)
    )


def typed_row(pairs: Sequence[tuple[str, str | None]], spec: InputSpec) -> dict[str, Any]:
    """Read the values of columns; that of an unknown column stays a text, and ``explain`` refuses it.

    Raises:
        ConfigurationError: A value is not of its column's type.
    """
    return {
        name: text
        if text is None or name not in spec.schema.names
        else typed_value(text, spec.schema.field(name).type, f"--row {name}")
        for name, text in pairs
    }


def typed_value(text: str, dtype: pa.DataType, what: str) -> Any:
    """Read a value of a type; a time without a time zone is in UTC.

    Raises:
        ConfigurationError: The text is not a value of that type.
    """
    if pa.types.is_timestamp(dtype) and dtype.tz is not None and _NO_ZONE.search(text):
        text += "Z"
    try:
        return pa.scalar(text).cast(dtype).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        msg = f"{what}: expected a value of the type {dtype}, got {text!r}"
        raise ConfigurationError(msg) from None


def as_json(value: Any) -> Any:
    """Return a value that JSON can represent: times as ISO 8601, bytes as hex digits, other values as their text."""
    if isinstance(value, datetime) or hasattr(value, "isoformat"):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
