"""The control input (tag 0): rows that the driver sends to every key group, in band and planned like any other.

Its offset is the number of messages sent. By itself it never has news: the driver plans a batch with the next message in Spark's
offset log (``draining``), so a batch that is run again sends the same message and reads nothing newer from the other inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from cojoin.spark.packing import CONTROL_TAG, PACKED_DDL, end_of_input_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["END_OF_INPUT_OFFSET", "open_control"]

END_OF_INPUT_OFFSET = {"messages": 1}


class ControlSource(DataSource):
    """Spark's way to the control input."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "cojoin_control"

    def schema(self) -> str:
        """Give the columns: the packed rows'."""
        return PACKED_DDL

    def streamReader(self, schema: Any) -> ControlReader:  # noqa: N802 - Spark's name
        """Give the reader."""
        del schema
        return ControlReader(int(self.options["key_groups"]))


class ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages between two offsets, a row for every key group."""

    def __init__(self, key_groups: int) -> None:
        self._key_groups = key_groups

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Begin with no message sent."""
        return {"messages": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing is to be fixed; without this method Spark would read all inputs in a single batch."""

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Say that there is no news."""
        del limit
        return start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan a task for each message."""
        return [InputPartition(message) for message in range(start["messages"], end["messages"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int, bytes]]:
        """Give a message's rows."""
        del partition
        for key_group in range(self._key_groups):
            yield key_group, CONTROL_TAG, end_of_input_message()


def open_control(spark: SparkSession, key_groups: int) -> DataFrame:
    """Open the control input."""
    spark.dataSource.register(ControlSource)
    return spark.readStream.format(ControlSource.name()).option("key_groups", key_groups).load()
