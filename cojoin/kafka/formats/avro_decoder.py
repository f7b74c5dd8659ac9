"""Avro's records as columns: each is read by the schema that it was written with, and resolved to the reader's.

With the user's own columns instead of a reader's schema, fields are matched by name, and only those that are wanted
must have a column. A record that does not end where its bytes end has a fault. It costs about 2 microseconds a record
of four fields, by whichever version of the schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.errors import SchemaError
from cojoin.kafka.formats.avro_bytes import DamageError, damage
from cojoin.kafka.formats.avro_columns import avro_type, is_row, without_invalid
from cojoin.kafka.formats.avro_resolution import Resolution
from cojoin.kafka.formats.decoding import rows_by_themselves
from cojoin.kafka.formats.fitting import fitted, misfits
from cojoin.kafka.formats.wire_format import HEADER

if TYPE_CHECKING:
    from cojoin.kafka.formats.decoding import Reading
    from cojoin.kafka.formats.schema_lookup import FoundSchema

__all__ = ["AvroReadings", "avro_columns"]


def avro_columns(found: FoundSchema, part: str, what: str) -> pa.StructType:
    """Return the columns of a reader's schema: a record's fields, or one column named by the part.

    Raises:
        SchemaError: It does not parse, or a type has no column.
    """
    try:
        schema, named = _parsed(found)
        dtype = avro_type(schema, named, what)
        return dtype if is_row(schema, named) else pa.struct([(part, dtype)])
    except SchemaError:
        raise
    except Exception as error:
        msg = f"{what}: the {part}'s schema does not parse: {type(error).__name__}: {error}"
        raise SchemaError(msg) from error


@dataclass(frozen=True)
class AvroReadings:
    """Makes the readings of writers' schemas.

    Attributes:
        columns: The columns of the query.
        reader: The schema that they come from; None where the user gave the columns.
        part: ``"value"`` or ``"key"``.
    """

    columns: pa.StructType
    reader: FoundSchema | None
    part: str

    def __call__(self, written: FoundSchema) -> Reading:
        """Return the reading of a writer's schema.

        Raises:
            ValueError: It does not parse, or can't become the columns.
        """
        try:
            return self._made(written)
        except ValueError:
            raise
        except Exception as error:
            # fastavro's errors have no common root, and a schema can lack anything.
            msg = f"{type(error).__name__}: {error}"
            raise ValueError(msg) from error

    def _made(self, written: FoundSchema) -> Reading:
        there, of_writer = _parsed(written)
        here, of_reader = (there, of_writer) if self.reader in (None, written) else _parsed(self.reader)
        wanted, part, what = self.columns if self.reader is None else None, self.part, f"the {self.part}"
        has_columns = is_row(here, of_reader)
        if wanted is not None and not has_columns:
            wanted = wanted.field(part).type if wanted.get_field_index(part) >= 0 else pa.null()
        own = pa.null() if wanted == pa.null() else avro_type(here, of_reader, what, wanted)
        dtype, columns = own if has_columns else pa.struct([(part, own)]), self.columns
        found = misfits(dtype, columns)
        if found:
            raise ValueError("; ".join(found))
        made = Resolution(of_writer, of_reader)
        read = made.passing(there) if wanted == pa.null() else made.reader(there, here, what, wanted)

        def reading(values: list[bytes]) -> tuple[pa.StructArray | None, list[str | None]]:
            faults: list[str | None] = [None] * len(values)
            rows: list[Any] = []
            for at, value in enumerate(values):
                try:
                    row, end = read(value, HEADER)
                    if end != len(value):
                        msg = f"its bytes end at {len(value)}, and its fields at {end}"
                        raise DamageError(msg)  # noqa: TRY301 - treated as the reader's own
                    rows.append(row if has_columns else {part: row})
                except Exception as error:  # noqa: BLE001, PERF203 - whatever is in the bytes, it is this record's fault
                    faults[at] = damage(error)
                    rows.append(None)
            return fitted(rows_by_themselves(rows, faults, dtype), columns), faults

        return reading


def _parsed(found: FoundSchema) -> tuple[Any, dict[str, Any]]:
    """Return a schema as fastavro has it, and its named types with those that it refers to, by their full names."""
    import fastavro  # noqa: PLC0415 - optional

    named: dict[str, Any] = {}
    for _, text in found.references:
        fastavro.parse_schema(without_invalid(json.loads(text)), named, _write_hint=False)
    return fastavro.parse_schema(without_invalid(json.loads(found.text)), named), named
