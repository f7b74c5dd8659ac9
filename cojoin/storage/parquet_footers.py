"""The footers of parquet files that others wrote.

A file whose columns are encrypted may have a footer that is not. pyarrow opens it, and then ends the whole process
where it is asked about an encrypted column. Such a footer is signed, by 28 bytes after what it says, so it is known in
time.
(Parquet Modular Encryption, "Plaintext footer mode".)
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["check_not_encrypted", "read_footer"]

_SIGNATURE_BYTES = 28
_END_BYTES = 8
"""The footer's size in four bytes, and four that say that it is parquet."""


def read_footer(stored: pa.NativeFile) -> pq.FileMetaData:
    """Return a file's footer.

    Raises:
        OSError: The file can't be read, or is encrypted.
    """
    metadata = pq.read_metadata(stored)
    check_not_encrypted(stored, metadata)
    return metadata


def check_not_encrypted(stored: pa.NativeFile, metadata: pq.FileMetaData) -> None:
    """Check that a file whose footer was read has no encrypted columns.

    Raises:
        OSError: It has.
    """
    stored.seek(-_END_BYTES, 2)
    size = int.from_bytes(stored.read(4), "little")
    if size - metadata.serialized_size >= _SIGNATURE_BYTES:
        msg = "some of its columns are encrypted"
        raise OSError(msg)
