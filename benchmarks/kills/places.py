"""Where the checkpoints and tables of killed and suspended drivers lie: beside them, or on S3's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.kills.killed_driver import Job
from tests.servers.s3 import BUCKET

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """Local folders, or S3.

    Attributes:
        endpoint: The server of S3's protocol; None for local folders.
        bucket: The bucket there.
    """

    endpoint: str | None = None
    bucket: str = BUCKET

    def root(self, folder: Path) -> str:
        """Return where the checkpoint and the table of a query go whose folder on this machine is given."""
        return str(folder) if self.endpoint is None else f"s3a://{self.bucket}{folder}"

    def job(self, folder: Path, data: Path, batch: int) -> Job:
        """Return the job of a driver.

        Args:
            folder: Its folder on this machine.
            data: Where trades and customers are.
            batch: The batch that was chosen.
        """
        root = self.root(folder)
        return Job(str(folder), root, str(data), f"{root}/out", batch, endpoint=self.endpoint)
