"""The checksums that Hadoop's local file system keeps of a file, in a hidden file beside it.

Spark's logs on a local disk have them. A file whose checksums are others was changed or cut; cojoin writes none.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["checksums_of", "has_checksums", "is_checksum"]

_CRC_HEADER = b"crc\x00"


def checksums_of(place: Path) -> Path:
    """Return where the checksums of a file stand, whether there are any or not."""
    return place.with_name(f".{place.name}.crc")


def has_checksums(place: Path, content: bytes) -> bool:
    """Return whether a file has the checksums that Hadoop wrote beside it; True where it wrote none."""
    try:
        stored = checksums_of(place).read_bytes()
    except OSError:
        return True
    if not stored.startswith(_CRC_HEADER) or len(stored) < 8:
        return False
    step = int.from_bytes(stored[4:8], "big")
    if step < 1:
        return False
    view = memoryview(content)
    sums = b"".join(zlib.crc32(view[at : at + step]).to_bytes(4, "big") for at in range(0, len(content), step))
    return stored[8:] == sums


def is_checksum(place: Path) -> bool:
    """Return whether a file has the checksums of another."""
    return place.name.startswith(".") and place.name.endswith(".crc")
