"""Where checkpoints and tables lie: beside the files of their drivers on this machine, or on S3's protocol."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.kills.files import LocalFiles, S3Files
from benchmarks.kills.killed_driver import Job
from tests.servers.s3 import BUCKET

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.kills.files import Files
    from benchmarks.kills.killed_driver import Sink

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """Local folders, or S3.

    Attributes:
        endpoint: The server of S3's protocol; None for local folders.
        bucket: The bucket there.
        sink: How the drivers write their tables.
        url: The database of these tables, where they are in one.
    """

    endpoint: str | None = None
    bucket: str = BUCKET
    sink: Sink = "append"
    url: str = ""

    def root(self, folder: Path) -> str:
        """Return where the checkpoint and the table of a query go whose folder on this machine is given."""
        return str(folder) if self.endpoint is None else f"s3a://{self.bucket}{folder}"

    def files(self) -> Files:
        """Return what copies and deletes folders there."""
        return LocalFiles() if self.endpoint is None else S3Files(self.endpoint)

    def job(self, folder: Path, data: Path, batch: int) -> Job:
        """Return the job of a driver.

        Args:
            folder: Its folder on this machine.
            data: Where trades and customers are.
            batch: The batch that was chosen.
        """
        root = self.root(folder)
        table = f"{root}/out" if self.sink != "sql" else f"out_{uuid.uuid4().hex}"
        return Job(str(folder), root, str(data), table, batch, endpoint=self.endpoint, sink=self.sink, url=self.url)
