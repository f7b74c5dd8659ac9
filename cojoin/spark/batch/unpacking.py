"""Unpacks the outputs of the calls into the columns of a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.codec import read_message
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.spark.batch.batch_facts import check_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["unpack"]


@dataclass(frozen=True)
class _Unpacker:
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_places()
        for batch in batches:
            for payload in batch.column(0):
                yield read_message(payload.as_buffer(), self.schema)


def unpack(emitted: DataFrame, kind: int, schema: pa.Schema) -> DataFrame:
    """Return the rows of one output as a DataFrame.

    Args:
        emitted: The emitted rows of ``(kind, payload)``.
        kind: The output's kind in ``Plan.outputs``, or ``SNAPSHOT``.
        schema: The columns of that output.
    """
    payloads = emitted.where(F.col("kind") == F.lit(kind)).select("payload")
    return payloads.mapInArrow(for_workers(_Unpacker(schema)), spark_schema(schema))
