"""What an input's records hold, and what follows from it: which parts the tasks return, and the rows that Spark makes.

The formats of values and keys are resolved at first use, which may ask a schema registry. The columns then stay as they
were, for this source and all that are made of it, so that both ends of a batch see the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.record_formats import resolve
from cojoin.kafka.record_columns import PLACE, check_names, decoded
from cojoin.kafka.records import DECODED_KEY, KEY, VALUE, RecordFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from cojoin.kafka.archive.archive_index import Layout
    from cojoin.kafka.formats.record_formats import ResolvedFormat, ValueFormat
    from cojoin.kafka.packed_records import Part
    from cojoin.kafka.record_columns import RecordColumn
    from cojoin.kafka.records import Record
    from cojoin.kafka.topics import Topics

__all__ = ["RecordDescription"]


@dataclass(frozen=True)
class RecordDescription:
    """What the records of a source hold.

    Attributes:
        what: The source, for messages.
        topics: Its topics.
        given: DDL of the value's columns, where the user gave them without a format.
        columns: Further columns, by name.
        decode: The user's own function that decodes records.
        formats: The formats of ``"value"`` and ``"key"``; None where there is none.
        resolved: The formats that were resolved before; receives further ones.
    """

    what: str
    topics: Topics
    given: str | None
    columns: Mapping[str, RecordColumn]
    decode: Callable[[Record], Any] | None
    formats: Mapping[str, ValueFormat | None]
    resolved: dict[str, ResolvedFormat]

    def part(self, part: Literal["value", "key"]) -> ResolvedFormat | None:
        """Return the format of values or keys with its columns; None where there is none.

        Raises:
            ConfigurationError: The registry has no such subject or version, or refuses the login.
            SchemaError: A type has no column, or two columns have the same name.
            QueryFailedError: The registry does not answer.
        """
        chosen = self.formats[part]
        if chosen is None:
            return None
        if part not in self.resolved:
            names = self.topics.names if self.topics.pattern is None else ()
            found = resolve(chosen, f"{names[0]}-{part}" if len(names) == 1 else None, part, self.what)
            others = [each.row_names for name, each in self.resolved.items() if name != part]
            if self.given is not None:
                others.append(parse_schema(self.given).names)
            check_names(self.what, *others, found.row_names, self.columns)
            self.resolved[part] = found
        return self.resolved[part]

    @property
    def schema(self) -> str | None:
        """DDL of the value's columns; None where there are none."""
        value = self.part("value")
        return self.given if value is None else value.ddl

    @property
    def in_python(self) -> bool:
        """Whether the tasks decode values; otherwise Spark parses them."""
        value = self.part("value")
        return self.decode is not None if value is None else value.in_python

    @property
    def archived_schema(self) -> str | None:
        """DDL of the columns that an archive may have instead of values; Debezium's envelopes only become rows here."""
        value = self.part("value")
        return None if value is not None and value.row is not None else self.schema

    @property
    def archived_parts(self) -> tuple[str, ...]:
        """The parts of a record, besides its value, that an archive must have."""
        own = {column.source for column in self.columns.values()}
        return tuple(sorted(own | ({KEY} if self.formats["key"] is not None else set())))

    def record_format(self, *, keeps_tombstones: bool, archive: Layout | None) -> RecordFormat:
        """Return which parts of a record the tasks return.

        Args:
            keeps_tombstones: Whether a record without a value is a row like others.
            archive: The archive's columns, where there is one.
        """
        value, key, schema = self.part("value"), self.part("key"), self.schema
        parts = {column.source for column in self.columns.values()}
        if key is not None and key.decoder is None:
            parts |= {KEY}
        dtype: pa.StructType | None = None
        if value is not None and value.in_python:
            dtype = value.columns
        elif schema is not None and self.in_python:
            dtype = pa.struct(list(parse_schema(schema)))
        elif schema is not None and archive is not None and archive.fields is not None:
            dtype = pa.struct([each.with_nullable(True) for each in parse_schema(schema)])
        return RecordFormat(
            (*([] if self.in_python else [VALUE]), *sorted(parts)),
            self.decode,
            dtype,
            keeps_tombstones,
            archive,
            None if value is None else value.decoder,
            None if key is None else key.decoder,
        )

    @property
    def json(self) -> dict[str, pa.Schema]:
        """The columns of JSON that Spark parses, by the record's column in which it is."""
        key, schema = self.part("key"), self.schema
        found = {} if schema is None or self.in_python else {VALUE: parse_schema(schema)}
        if key is not None and not key.in_python:
            found[KEY if key.decoder is None else DECODED_KEY] = pa.schema(list(key.columns))
        return found

    def parts(self, names: Iterable[str]) -> tuple[Part, ...] | None:
        """Return which part of a record each of some columns comes from; None if one comes from none.

        Args:
            names: The names of a row's columns.
        """
        key, schema = self.part("key"), self.schema
        known: dict[str, Part] = dict.fromkeys(PLACE, "place")
        known |= dict.fromkeys([] if schema is None else parse_schema(schema).names, "value")
        known |= dict.fromkeys([] if key is None else key.row_names, "key")
        known |= dict.fromkeys(self.columns, "column")
        found = [known.get(name) for name in names]
        return None if None in found else tuple(part for part in found if part is not None)

    def rows(
        self, records: DataFrame, *, fails_for: str | None, archive: Layout | None, moves_by: Sequence[str] = ()
    ) -> DataFrame:
        """Return what the tasks return as rows, with the columns for the join at the end.

        Args:
            records: What they return.
            fails_for: The input, if a record that can't be decoded ends the query; None otherwise.
            archive: The archive's columns, where there is one.
            moves_by: The key columns of change events.
        """
        return decoded(
            records,
            self.schema,
            self.columns,
            fails_for=fails_for,
            in_python=self.in_python,
            archived=archive is not None and archive.fields is not None,
            value=self.part("value"),
            key=self.part("key"),
            moves_by=moves_by,
        )
