"""Whether the tasks that read records pack their rows (``packed_records``), decided before the start.

They do so where that gives the same rows as the general way, in which Spark makes rows of the records. Both ways have
the same offsets, so a checkpoint goes on with either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.engine.key_groups import is_hashed
from cojoin.engine.values.types import parse_type, type_to_ddl
from cojoin.kafka.formats.settled_json import is_settled_type
from cojoin.session.kinds import active_session
from cojoin.session.session_settings import is_left_to_spark
from cojoin.spark.batch.arrow_limits import limits_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.kafka.packed_records import Json
    from cojoin.kafka.record_columns import RecordColumn
    from cojoin.kafka.record_description import RecordDescription

__all__ = ["why_through_spark"]

_SETTING = "spark.cojoin.kafka"
_TIMES, _CORRECTED = "spark.sql.legacy.timeParserPolicy", "CORRECTED"


def why_through_spark(records: RecordDescription, spec: InputSpec, *, has_archive: bool) -> str | None:
    """Return why Spark makes rows of an input's records, in words; None where the tasks that read them pack them.

    Args:
        records: What the records hold.
        spec: The input.
        has_archive: Whether older records are in an archive.
    """
    session = active_session()
    reasons = {
        "there is no Spark session": session is None,
        "it has an archive": has_archive,
        "its records are changes of rows": spec.changes is not None,
        "its event time is an expression": records.parts(spec.source_schema.names) is None,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is None and session is not None:
        why = _why_by_session(session)
    return why or _why_by_key(spec) or _why_unsettled(records.json, records.columns)


def _why_by_session(session: SparkSession) -> str | None:
    if is_left_to_spark(session, _SETTING):
        return f"{_SETTING} is spark"
    policy = str(session.conf.get(_TIMES, _CORRECTED))
    if policy.upper() != _CORRECTED:
        return f"{_TIMES} is {policy}"
    # A packed row may have megabytes.
    if not limits_bytes(session):
        return f"Spark {session.version} does not limit the bytes of a batch of rows"
    return None


def _why_by_key(spec: InputSpec) -> str | None:
    for name in spec.key:
        dtype = spec.source_schema.field(name).type
        if not is_hashed(dtype):
            return f"its key {name!r} is of the type {type_to_ddl(dtype)}"
    return None


def _why_unsettled(json: Json, columns: Mapping[str, RecordColumn]) -> str | None:
    """Return why the rows of no record can be settled; None if they can."""
    for field in [field for schema in json.values() for field in schema]:
        if not is_settled_type(field.type):
            return f"Spark alone parses JSON as its column {field.name!r}, of the type {type_to_ddl(field.type)}"
    for name, column in columns.items():
        dtype = parse_type(column.dtype)
        types = pa.types
        plain = types.is_string(dtype) or types.is_binary(dtype) or types.is_signed_integer(dtype)
        if column.part == "header" or (column.part == "key" and not plain):
            return f"Spark alone makes its column {name!r}, {column} as {column.dtype}"
    return None
