"""A Parquet file that was written into a table's folder, as its writer describes it to whoever commits it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["WrittenFile"]


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file in a table's folder.

    Attributes:
        name: The file's name.
        rows: The number of rows.
        size: The size in bytes.
        modified: The time at which it was written, in epoch milliseconds.
        statistics: The column statistics for the Delta log, as JSON (``file_statistics``).
    """

    name: str
    rows: int
    size: int
    modified: int
    statistics: str

    def to_json(self) -> bytes:
        """Return the file as one line of JSON, which ``read`` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, line: bytes) -> WrittenFile:
        """Read a line that ``to_json`` returned."""
        return cls(**json.loads(line))
