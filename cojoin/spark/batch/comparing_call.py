"""The grouped function that runs both versions of a plan over one key group, and emits only what differs.

It runs inside ``applyInArrow``, on the packed rows that ``StaticCall`` takes. It emits rows of ``(kind, payload)``: of
kind 0 the counts of all outputs as JSON, of the kinds from 1 on Arrow messages of the differing rows of each output.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.comparison.key_group_difference import compare_key_group
from cojoin.engine.values.codec import binary_column, read_message, write_messages
from cojoin.engine.values.tables import concat
from cojoin.spark.batch.packing import CONTROL_TAG, read_control

if TYPE_CHECKING:
    from cojoin.comparison.comparison import Comparison
    from cojoin.comparison.key_group_difference import KeyGroupDifference
    from cojoin.engine.time.control_rows import Control

__all__ = ["COUNTS", "DIFFERING_DDL", "OTHER_CONTROL_TAG", "ComparingCall"]

DIFFERING_DDL = "kind int, payload binary"
COUNTS = 0
"""The kind of the counts; the outputs are numbered from 1 on, as ``Comparison.outputs`` has them."""

OTHER_CONTROL_TAG = -1
"""The tag of control rows that are for version b alone."""

_SCHEMA = pa.schema([("kind", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class ComparingCall:
    """Runs two versions over one key group's rows.

    Attributes:
        comparison: What is compared.
        own: The numbers of the inputs of which version b has control rows of its own.
    """

    comparison: Comparison
    own: frozenset[int] = frozenset()

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Compare both versions over all packed rows of a key group; return rows of ``(kind, payload)``."""
        specs = self.comparison.a.inputs
        tables = [[spec.schema.empty_table()] for spec in specs]
        a: list[Control] = []
        b: list[Control] = []
        for tag, payload in zip(packed.column("tag").to_pylist(), packed.column("payload"), strict=True):
            buffer = payload.as_buffer()
            if tag in (CONTROL_TAG, OTHER_CONTROL_TAG):
                control = read_control(buffer.to_pybytes())
                assert control is not None
                if tag == CONTROL_TAG:
                    a.append(control)
                if (tag == OTHER_CONTROL_TAG) == (control.input in self.own):
                    b.append(control)
            else:
                rows = read_message(buffer, specs[tag - 1].schema)
                tables[tag - 1].append(pa.Table.from_batches([rows]))
        left, right = (concat(each) for each in tables)
        return self._emitted(compare_key_group(self.comparison, (left, right), (a, b)))

    def _emitted(self, found: dict[str, KeyGroupDifference]) -> pa.Table:
        counts = {name: [each.counts, each.by_column] for name, each in found.items()}
        kinds, payloads = [COUNTS], [json.dumps(counts).encode()]
        for kind, output in enumerate(self.comparison.outputs, start=1):
            rows = found[output.name].rows
            messages = [*write_messages(rows)] if rows.num_rows else []
            kinds += [kind] * len(messages)
            payloads += [message.to_pybytes() for message in messages]
        return pa.Table.from_arrays([pa.array(kinds, pa.int32()), binary_column(payloads)], schema=_SCHEMA)
