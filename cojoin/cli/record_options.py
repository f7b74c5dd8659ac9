"""The options that say what the records of a topic hold: the form of values, the registry, columns of other parts.

Values are plain JSON unless ``--format`` says otherwise. In a format of a schema registry the columns are those of the
subject's newest schema, or those of ``--left-schema``. A login of the registry belongs into a file of arguments.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cojoin.cli import typed_values
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RECORD_OPTIONS", "add_record_options", "record_settings"]

RECORD_OPTIONS = ("format", "registry")
"""The options for both inputs, or for one."""

_FORMATS = ("json", "avro", "protobuf", "json-schema")


def add_record_options(group: Any, add_for_both: Callable[..., None]) -> None:
    """Add the options.

    Args:
        group: The group of options for topics.
        add_for_both: A function that adds an option for both inputs, and one for each.
    """
    add_for_both(
        group,
        "format",
        "FORMAT",
        f"the form of values, one of {', '.join(_FORMATS)} (default: json); all but json need --registry",
        _format,
    )
    add_for_both(
        group,
        "registry",
        "URL",
        "the schema registry, such as http://localhost:8081; --left-schema then chooses columns (default: those of the "
        "newest schema)",
    )
    group.add_argument(
        "--registry-option",
        type=typed_values.pair,
        action="append",
        metavar="NAME=VALUE",
        help="a setting of the registry's client, such as basic.auth.user.info or ssl.ca.location; repeatable",
    )
    for side in ("left", "right"):
        group.add_argument(
            f"--{side}-column",
            type=_column,
            action="append",
            metavar="NAME=PART",
            help=f"a column of the {side} topic from another part of a record: key, header:NAME, either with a type as "
            f"in key:long, or timestamp; repeatable",
        )


def record_settings(typed: Mapping[str, Any], side: str, name: str, schema: str | None) -> dict[str, Any]:
    """Return the arguments of ``cojoin.kafka.source`` that say what records hold.

    Args:
        typed: The values of the options, by their names.
        side: ``"left"`` or ``"right"``.
        name: The input's name.
        schema: The columns of the records' values, as DDL; None where it was not typed.

    Raises:
        ConfigurationError: A value is missing or invalid.
    """
    from cojoin.kafka.formats import record_formats  # noqa: PLC0415 - so that --help is quick
    from cojoin.kafka.formats.registry import registry  # noqa: PLC0415

    kind, address = (
        typed[each] if typed[f"{side}_{each}"] is None else typed[f"{side}_{each}"] for each in RECORD_OPTIONS
    )
    columns = {column: _part(part) for column, part in typed[f"{side}_column"] or ()}
    settings: dict[str, Any] = {"columns": columns} if columns else {}
    if kind in (None, "json"):
        if address is not None and typed["format"] is None and typed[f"{side}_format"] is None:
            msg = f"input {name!r}: expected --format, one of {', '.join(_FORMATS[1:])}, because --registry is given"
            raise ConfigurationError(msg)
        if schema is None:
            example = "'customer_id long, event_time timestamp'"
            msg = f"input {name!r}: expected --{side}-schema, such as {example}: the columns of a record's JSON value"
            raise ConfigurationError(msg)
        return {**settings, "schema": schema}
    if address is None:
        msg = f"input {name!r}: expected --registry, such as http://localhost:8081, because its values are {kind}"
        raise ConfigurationError(msg)
    made = registry(address, options=dict(typed["registry_option"] or ()))
    makes: dict[str, Any] = {
        "avro": record_formats.avro,
        "protobuf": record_formats.protobuf,
        "json-schema": record_formats.json_schema,
    }
    return {**settings, "value": makes[kind](made, schema=schema)}


def _format(text: str) -> str:
    if text not in _FORMATS:
        msg = f"expected one of {', '.join(_FORMATS)}, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return text


def _column(text: str) -> tuple[str, str]:
    """Read a column and the part of the record that it holds, as texts, which ``_part`` reads."""
    name, _, part = text.partition("=")
    kind, _, rest = part.partition(":")
    if not name.strip() or kind not in ("key", "header", "timestamp") or (kind == "header") > bool(rest):
        msg = f"expected NAME=key, NAME=key:TYPE, NAME=header:HEADER, NAME=timestamp, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return name.strip(), part


def _part(part: str) -> Any:
    from cojoin.kafka.record_columns import header, key, timestamp  # noqa: PLC0415 - so that --help is quick

    kind, _, rest = part.partition(":")
    if kind == "timestamp":
        return timestamp()
    if kind == "key":
        return key(rest or "string")
    name, _, dtype = rest.rpartition(":") if ":" in rest else (rest, "", "")
    return header(name, dtype or "string")
