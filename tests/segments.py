"""Where segments lie in tests that need no files."""

from __future__ import annotations

import pyarrow as pa


class MemoryStore:
    """A store of segments in memory, which sees that a name never gets another content."""

    place = "memory:"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def write(self, name: str, content: pa.Buffer) -> object:
        assert self.files.get(name, content.to_pybytes()) == content.to_pybytes()
        self.files[name] = content.to_pybytes()
        return id(self.files[name])

    def open(self, name: str) -> tuple[pa.Buffer, object]:
        if name not in self.files:
            raise FileNotFoundError(name)
        return pa.py_buffer(self.files[name]), id(self.files[name])
