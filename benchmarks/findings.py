"""What a benchmark was asked and what it measured, and the inputs that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cojoin as cj

__all__ = ["Findings", "open_input"]


@dataclass
class Findings:
    """What was asked, and what was measured."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, asked: str, measured: str, *, holds: bool) -> None:
        """Take one."""
        print(f"{asked}: {measured}: {'holds' if holds else 'MISSED'}", flush=True)
        self.rows.append((asked, measured, "holds" if holds else "MISSED"))

    @property
    def hold(self) -> bool:
        """Whether all do."""
        return all(verdict == "holds" for *_, verdict in self.rows)


def open_input(folder: Path, name: str, ddl: str, files_a_batch: int, watermark: cj.WatermarkStrategy) -> cj.Input:
    """Open one side, so many files a batch."""
    options = {"maxFilesPerTrigger": files_a_batch}
    source = cj.sources.files(str(folder / name), "parquet", schema=ddl, options=options)
    return cj.Input(source, key="customer_id", event_time="event_time", name=name, watermark=watermark)
