"""Contents that execute code where a reader unpickles, evaluates or looks up a class: they would make a file."""

from __future__ import annotations

import base64
import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["payloads"]


class _Touch:
    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._canary), "w")


def payloads(canary: Path) -> dict[str, bytes]:
    """Return the contents, by name.

    Args:
        canary: The file that each would make.
    """
    touch = f"open({str(canary)!r}, 'w')"
    pickled = pickle.dumps(_Touch(canary))
    array = io.BytesIO()
    np.save(array, np.array([_Touch(canary)], dtype=object), allow_pickle=True)
    objects = {"py/reduce": [{"py/type": "builtins.open"}, {"py/tuple": [str(canary), "w"]}]}
    classed = {"@class": "java.lang.ProcessBuilder", "command": ["touch", str(canary)], "__reduce__": touch}
    document = {"format": 1, "sha256": "0" * 64, "content": classed}
    return {
        "pickle": pickled,
        "pickle, protocol 0": pickle.dumps(_Touch(canary), protocol=0),
        "numpy objects": array.getvalue(),
        "jsonpickle": json.dumps(objects).encode(),
        "json with classes": json.dumps(document).encode(),
        "yaml": f"!!python/object/apply:builtins.open [{str(canary)!r}, w]\n".encode(),
        "python": f"__import__('builtins').{touch}\n".encode(),
        "java": b"\xac\xed\x00\x05sr\x00\x11java.util.HashMap" + touch.encode(),
        "arrow file": _arrow(pickled, pa.ipc.new_file),
        "arrow stream": _arrow(pickled, pa.ipc.new_stream),
        "parquet": _parquet(pickled),
        "state bytes": b"cojoin\x02" + _arrow(pickled, pa.ipc.new_stream),
    }


def _extended(pickled: bytes) -> pa.Table:
    """Return a table whose column says that it is of a Python extension type, which older readers unpickled."""
    about = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickled}
    field = pa.field("payload", pa.binary(), metadata=about)
    schema = pa.schema([field], metadata={"pandas": base64.b64encode(pickled)})
    return pa.Table.from_arrays([pa.array([pickled])], schema=schema)


def _arrow(pickled: bytes, new: Any) -> bytes:
    table, sink = _extended(pickled), io.BytesIO()
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _parquet(pickled: bytes) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_extended(pickled), sink)
    return sink.getvalue()
